"""Whether the events of a capture fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from umd_core.capture.events import Allocate, Event, Free, NewFence, Read, Refused, Result, Signal, Submit, Write

Problem = tuple[str, str]


class Checker:
    """Follows the events; buffers, ranges and fences must exist where they are used.

    Args:
        memory: bytes of buffers that may live at the same time.

    Attributes:
        peak: the most bytes of buffers that did.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._sizes: dict[int, int] = {}
        self._made = self._fences = self._submissions = self._live = 0
        self._ended: set[int] = set()
        self._bindings: list[int] = []
        self.peak: int = 0

    def problem(self, event: Event) -> Problem | None:
        """Returns (rule, detail) of what is wrong with the next event, None when nothing is."""
        return _RULES[type(event)](self, event)

    def allocate(self, event: Allocate) -> Problem | None:
        self._sizes[self._made] = event.size
        self._made += 1
        self._live += event.size
        self.peak = max(self.peak, self._live)
        if self._live > self._memory:
            return "memory", f"{self._live} bytes of buffers at the same time, the limit is {self._memory}"
        return None

    def free(self, event: Free) -> Problem | None:
        size = self._sizes.pop(event.buffer, None)
        if size is None:
            return "buffer", f"buffer {event.buffer} does not exist"
        self._live -= size
        return None

    def _range(self, buffer: int, offset: int, size: int) -> Problem | None:
        held = self._sizes.get(buffer)
        if held is None:
            return "buffer", f"buffer {buffer} does not exist"
        if offset + size > held:
            return "range", f"bytes [{offset}, {offset + size}) are outside buffer {buffer} of {held} bytes"
        return None

    def touch(self, event: Write | Read) -> Problem | None:
        if isinstance(event, Write) and not event.data:
            return "data", "a write names no data"
        return self._range(event.buffer, event.offset, event.size)

    def fence(self, event: NewFence) -> None:
        self._fences += 1

    def _known(self, fences: Iterable[int]) -> Problem | None:
        unknown = [number for number in fences if number >= self._fences]
        return ("fence", f"fence {unknown[0]} does not exist") if unknown else None

    def signal(self, event: Signal) -> Problem | None:
        return self._known([event.fence])

    def submit(self, event: Submit) -> Problem | None:
        self._submissions += 1
        self._bindings.append(len(event.bindings))
        missing = next((b for b, _, _ in event.bindings if b not in self._sizes), None)
        if missing is not None:
            return "buffer", f"buffer {missing} does not exist"
        return self._known(number for number, _ in (*event.waits, *event.signals))

    def end(self, event: Refused | Result) -> Problem | None:
        number = event.submission
        if number >= self._submissions or number in self._ended:
            return "submission", f"submission {number} has ended before, or was never made"
        self._ended.add(number)
        if isinstance(event, Result) and any(index >= self._bindings[number] for index, _ in event.outputs):
            return "output", f"submission {number} has {self._bindings[number]} bindings"
        return None


_RULES: dict[type, Callable[[Checker, Any], Problem | None]] = {
    Allocate: Checker.allocate,
    Free: Checker.free,
    Write: Checker.touch,
    Read: Checker.touch,
    NewFence: Checker.fence,
    Signal: Checker.signal,
    Submit: Checker.submit,
    Refused: Checker.end,
    Result: Checker.end,
}
