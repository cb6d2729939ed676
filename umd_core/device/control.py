"""What the owner of a submission may do with it: stop it, time its commands, put it before others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class CommandTime(NamedTuple):
    """How long one command of a submission took on the host's clock: its index, its kernel's name, nanoseconds."""

    command: int
    kernel: str
    nanoseconds: int


class Control:
    """The reins of one submission.

    Attributes:
        stops: an error that is added here, by any thread, ends the submission at its next command: what is left of it
            does not run, and what that should have written is poisoned. Work that a device replays as a whole goes on.
        times: how long each command took, None when that was not asked for.
        clock: nanoseconds, from any start; read around commands when they are timed.
        priority: of submissions that may start at the same time, the one with the highest starts first.
    """

    __slots__ = ("clock", "priority", "stops", "times")

    clock: Callable[[], int] | None
    priority: int

    def __init__(self, priority: int = 0, clock: Callable[[], int] | None = None) -> None:
        """Commands are timed when there is a clock."""
        self.stops: list[Exception] = []
        self.clock, self.priority = clock, priority
        self.times: list[CommandTime] | None = None if clock is None else []

    def begin(self) -> Exception | None:
        """Called when the work starts. An error that is returned ends it before its first command."""
        return self.stops[0] if self.stops else None
