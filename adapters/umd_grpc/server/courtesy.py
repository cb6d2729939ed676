"""Giving way: a device's thread lets the thread that serves the clients run when that has something to do.

The interpreter's own rule is not enough. A thread that wants to run waits for an interval and then asks the other to
stop, but the interval begins anew whenever the other has let go of the interpreter meanwhile. A device does so for each
kernel, for a few microseconds, and has taken it back before anybody has woken up: others may wait for milliseconds. So
between two pieces of work the device's thread looks whether the other one is wanted, and steps aside for a moment.

Source: take_gil in CPython's Python/ceval_gil.h, for the rule.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from collections.abc import Callable

EVERY_SECONDS = 0.0001
"""How long the device's thread goes on at least, whatever others want."""
PAUSE_SECONDS = 0.00002


class Courtesy:
    """What a device's thread knows of one other thread."""

    def __init__(self, descriptor: int, busy: Callable[[], bool] = lambda: False) -> None:
        """The other thread is wanted when `descriptor` can be read, and wants to go on while it is `busy`."""
        self._poll, self._busy = select.poll(), busy
        self._poll.register(descriptor, select.POLLIN)
        self._next = 0.0

    def give_way(self, now: float) -> None:
        """Steps aside for a moment if the other thread wants to run; `now` is of `time.perf_counter`."""
        if now < self._next:
            return
        if self._busy() or self._poll.poll(0):
            time.sleep(PAUSE_SECONDS)
        self._next = time.perf_counter() + EVERY_SECONDS


class _Selector(selectors.DefaultSelector):
    """A selector that knows whether its loop has something to do.

    Attributes:
        busy: whether it does, beside what has happened since it waits.
    """

    busy = True

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Returns what has happened; see `selectors`."""
        self.busy = timeout is not None and timeout <= 0
        try:
            return super().select(timeout)
        finally:
            self.busy = True


class PoliteLoop(asyncio.SelectorEventLoop):
    """An event loop to which devices' threads give way.

    Attributes:
        courtesy: makes what such a thread has to know.
    """

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        self._its = selector

    def courtesy(self) -> Courtesy:
        """Returns what one thread has to know to give way."""
        return Courtesy(self._its.fileno(), lambda: self._its.busy)
