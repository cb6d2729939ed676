"""The order in which captured submissions run, one at a time: fences are followed on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from umd_core.capture.events import Event, Free, NewFence, Read, Signal, Submit, Write
from umd_core.errors import UnsupportedError

Numbered = tuple[int, Event]


def in_order(events: Sequence[Numbered]) -> Iterator[Numbered]:
    """Yields events as they take effect: a submission once its waits are met, after those before it on its queue.

    A submission whose waits are never met never ran, and is left out.

    Raises:
        UnsupportedError: the host touches a buffer that a waiting submission uses.
    """
    lines = _Lines()
    for number, event in events:
        if isinstance(event, Submit):
            yield from lines.submit(number, event)
        elif isinstance(event, Signal):
            yield from lines.signal(event.fence, event.value)
        elif isinstance(event, NewFence):
            lines.fences.append(0)
        else:
            if isinstance(event, (Free, Read, Write)):
                lines.check(event.buffer)
            yield number, event


class _Lines:
    """Waiting submissions by queue.

    Attributes:
        fences: the value of each.
    """

    def __init__(self) -> None:
        self.fences: list[int] = []
        self._lines: dict[int, deque[tuple[int, Submit]]] = {}

    def submit(self, number: int, event: Submit) -> Iterator[Numbered]:
        self._lines.setdefault(event.queue, deque()).append((number, event))
        yield from self._drain()

    def signal(self, fence: int, value: int) -> Iterator[Numbered]:
        self.fences[fence] = max(self.fences[fence], value)
        yield from self._drain()

    def check(self, buffer: int) -> None:
        for line in self._lines.values():
            for number, event in line:
                if any(buffer == used for used, _, _ in event.bindings):
                    reason = f"the host uses buffer {buffer} while submission {number} waits for a fence"
                    raise UnsupportedError(f"{reason}: such a run can be replayed, but not compared command by command")

    def _drain(self) -> Iterator[Numbered]:
        while (ready := self._pop()) is not None:
            yield ready
            for fence, value in ready[1].signals:
                self.fences[fence] = max(self.fences[fence], value)

    def _pop(self) -> tuple[int, Submit] | None:
        for queue, line in self._lines.items():
            if all(self.fences[fence] >= value for fence, value in line[0][1].waits):
                ready = line.popleft()
                if not line:
                    del self._lines[queue]
                return ready
        return None
