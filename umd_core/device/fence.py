"""Completion: Fence, a growing counter, and SubmissionTicket."""

from __future__ import annotations

from collections.abc import Callable

from umd_core.device.control import Control
from umd_core.errors import CancelledError, LimitError

_LARGEST = 2**64 - 1


class Fence:
    """A counter that only grows (u64, from 0). Submissions wait for values of it and signal values to it.

    Attributes:
        value: the highest value signalled so far.
    """

    __slots__ = ("__weakref__", "_watchers", "value")

    def __init__(self) -> None:
        self.value: int = 0
        self._watchers: set[Callable[[], None]] = set()

    def __repr__(self) -> str:
        return f"Fence(value={self.value})"

    def signal(self, value: int) -> None:
        """Raises the counter to `value`, from the host; work that waited for it runs.

        Raises:
            LimitError: the counter is beyond the value already, or the value does not fit in 64 bits.
        """
        if not self.value <= value <= _LARGEST:
            limit = _LARGEST if value > _LARGEST else self.value
            raise LimitError("fence value", value, limit)
        self.advance(value)

    def advance(self, value: int) -> None:
        """Raises the counter to `value` unless it is there already; work that waited for it runs."""
        if value > self.value:
            self.value = value
            for watcher in tuple(self._watchers):
                watcher()

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Returns when the counter has reached `value`.

        Work never runs in the background here, so what has not been signalled when this is called never will be.

        Raises:
            CancelledError: nothing that was submitted will signal the value.
        """
        if self.value < value:
            raise CancelledError(f"wait for a fence at {self.value}: nothing that was submitted will signal {value}")

    def watch(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` after every growth."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Ends `watch`."""
        self._watchers.discard(watcher)


class SubmissionTicket:
    """A submission of a SequentialDevice.

    Attributes:
        error: the first thing that went wrong in it, None until then.
        control: what its owner may do with it while it runs, None for nothing.
    """

    __slots__ = ("_done", "blocked_on", "control", "error")

    def __init__(self) -> None:
        self._done = False
        self.error: Exception | None = None
        self.control: Control | None = None
        self.blocked_on: str = ""

    def complete(self, error: Exception | None) -> None:
        """Marks the work as ended."""
        self._done = True
        self.error = error

    def done(self) -> bool:
        return self._done

    def wait(self, timeout: float | None = None) -> None:
        if not self._done:
            raise CancelledError(
                f"wait for a submission that {self.blocked_on}: nothing that was submitted will start it"
            )
        if self.error is not None:
            raise self.error
