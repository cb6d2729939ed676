"""Submissions that wait: lines of work, one per queue, each in submission order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from umd_core.device.fence import Fence, SubmissionTicket
from umd_core.device.program import Program
from umd_core.device.protocol import Binding, Buffer, FenceValue


@dataclass(slots=True)
class Submission:
    """A checked submission that has not run yet."""

    program: Program
    bindings: tuple[Binding, ...]
    words: tuple[int, ...]
    waits: tuple[FenceValue, ...]
    signals: tuple[FenceValue, ...]
    ticket: SubmissionTicket

    def unmet(self) -> FenceValue | None:
        """Returns a wait that is not met yet."""
        return next((w for w in self.waits if w[0].value < w[1]), None)

    def uses(self, buffer: Buffer) -> bool:
        """Returns whether a buffer is among the bindings."""
        return any(binding[0] is buffer for binding in self.bindings)


class Lines:
    """Waiting submissions by queue."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._lines: dict[int, deque[Submission]] = {}
        self._watched: set[Fence] = set()
        self._wake = wake

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, queue: int, submission: Submission) -> bool:
        """Puts a submission at the end of its queue; returns whether it may run now."""
        unmet = submission.unmet()
        submission.ticket.blocked_on = (
            f"waits for a fence at {unmet[0].value} to reach {unmet[1]}"
            if unmet
            else f"follows such work on queue {queue}"
        )
        for fence, _ in submission.waits:
            fence.watch(self._wake)
            self._watched.add(fence)
        line = self._lines.setdefault(queue, deque())
        line.append(submission)
        return unmet is None and len(line) == 1

    def pop(self) -> Submission | None:
        """Returns and removes a submission that may run now, None when there is none."""
        for queue, line in self._lines.items():
            if line[0].unmet() is None:
                submission = line.popleft()
                if not line:
                    del self._lines[queue]
                return submission
        for fence in self._watched if not self._lines else ():
            fence.unwatch(self._wake)
        if not self._lines:
            self._watched.clear()
        return None

    def remove(self, ticket: SubmissionTicket) -> bool:
        """Takes a waiting submission out; returns whether it was there."""
        for queue, line in self._lines.items():
            for submission in line:
                if submission.ticket is ticket:
                    line.remove(submission)
                    if not line:
                        del self._lines[queue]
                    return True
        return False

    def user(self, buffer: Buffer) -> Submission | None:
        """Returns a waiting submission that uses the buffer."""
        return next((s for line in self._lines.values() for s in line if s.uses(buffer)), None)

    def clear(self) -> list[Submission]:
        """Removes and returns everything."""
        waiting = [submission for line in self._lines.values() for submission in line]
        self._lines.clear()
        self.pop()
        return waiting
