"""Forks: gRPC does not survive them. A child that would use it hangs or is aborted, so it is told instead.

What the parent had open is kept in the child, unused, for taking it apart would be use as well.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from umd_core.errors import DeviceLostError, UnsupportedError

_RIGHT = (
    "start processes by spawn or forkserver (multiprocessing_context= of a DataLoader), or fork before gRPC is used"
)


class Kept(Protocol):
    """Something that must not be taken apart in a child."""

    def after_fork(self) -> None:
        """Is called in the child."""
        ...


class Process:
    """The process that a connection belongs to."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this is still the same process."""
        return os.getpid() == self._pid

    def check(self, what: str) -> None:
        """Checks that this is still the same process.

        Raises:
            DeviceLostError: it is a child made by fork.
        """
        if not self.here:
            raise DeviceLostError(what, f"it was opened by process {self._pid}, and no fork keeps it: {_RIGHT}")


class _State:
    """What a fork has to know.

    Attributes:
        used: whether this process has opened a connection.
        forked: whether it was forked from one that had.
        open: what must not be taken apart in a child.
        left: what a child keeps for that reason.
    """

    def __init__(self) -> None:
        self.used = self.forked = False
        self.open: WeakSet[Kept] = WeakSet()
        self.left: list[Kept] = []

    def after_fork(self) -> None:
        """Is called in a child."""
        self.forked = self.forked or self.used
        self.left += self.open
        for kept in self.left:
            kept.after_fork()


_STATE = _State()
os.register_at_fork(after_in_child=_STATE.after_fork)


def check_opening(target: str) -> None:
    """Checks that this process may open connections, and notes that it does.

    Raises:
        UnsupportedError: it was forked from one that had opened some.
    """
    if _STATE.forked:
        raise UnsupportedError(f"gRPC was used by the process from which this one was forked: {_RIGHT}", device=target)
    _STATE.used = True


def keep(kept: Kept) -> None:
    """Has something kept, as it is, in children."""
    _STATE.open.add(kept)
