"""When commands run: queues in order, dependencies, and what is left of a device that several commands share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Work(NamedTuple):
    """A command to be scheduled.

    Attributes:
        queue: it follows what came before it there.
        deps: commands that it waits for.
        barrier: it waits for everything before it, and everything after it waits for it.
        launch: seconds in which it leaves the device to others.
        seconds: how long it works when it has the device for itself.
        share: of the device that it can use, above 0 to 1.
    """

    queue: int
    deps: Sequence[int]
    barrier: bool
    launch: float
    seconds: float
    share: float


class Span(NamedTuple):
    """When a command runs, in seconds."""

    start: float
    end: float


@dataclass(slots=True)
class _Running:
    index: int
    start: float
    launch: float
    left: float
    share: float


def schedule(works: Sequence[Work]) -> list[Span]:
    """Returns when each command runs. Commands that together ask for more than the device is all slow down alike.

    Every dependency is on a command before it, as in a command buffer that has been decoded.
    """
    return _Schedule(works).run()


class _Schedule:
    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works
        self._queues: dict[int, deque[int]] = {}
        self._barriers: list[int] = []
        last = -1
        for index, work in enumerate(works):
            self._queues.setdefault(work.queue, deque()).append(index)
            self._barriers.append(last)
            last = index if work.barrier else last
        self._spans: list[Span | None] = [None] * len(works)
        self._first_open = 0
        self._running: dict[int, _Running] = {}
        self._now = 0.0

    def run(self) -> list[Span]:
        while any(self._queues.values()) or self._running:
            self._start()
            self._advance()
        return [span or Span(0.0, 0.0) for span in self._spans]

    def _start(self) -> None:
        """Starts what is at the head of an idle queue and waits for nothing."""
        for queue, line in self._queues.items():
            if queue not in self._running and line and self._is_ready(line[0]):
                index = line.popleft()
                work = self._works[index]
                self._running[queue] = _Running(index, self._now, work.launch, work.seconds, work.share)

    def _is_ready(self, index: int) -> bool:
        work = self._works[index]
        if work.barrier and self._first_open < index:
            return False
        before = self._barriers[index]
        waits = (*work.deps, before) if before >= 0 else work.deps
        return all(self._spans[one] is not None for one in waits)

    def _advance(self) -> None:
        """Goes on to the next moment at which a launch or a command ends."""
        asked = sum(one.share for one in self._running.values() if not one.launch)
        speed = min(1.0, 1.0 / asked) if asked else 1.0
        step = min(one.launch or one.left / speed for one in self._running.values())
        self._now += step
        for queue, one in list(self._running.items()):
            if one.launch:
                one.launch = max(0.0, one.launch - step)
            else:
                one.left = max(0.0, one.left - step * speed)
            if not one.launch and not one.left:
                self._spans[one.index] = Span(one.start, self._now)
                del self._running[queue]
        while self._first_open < len(self._spans) and self._spans[self._first_open] is not None:
            self._first_open += 1
