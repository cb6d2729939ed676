"""Submissions that wait: lines of work, one per queue, each in submission order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from umd_core.device.fence import Fence, SubmissionTicket
from umd_core.device.program import Program
from umd_core.device.protocol import Binding, Buffer, FenceValue

Work = tuple[Program, tuple[Binding, ...], tuple[int, ...], Sequence[FenceValue]]
"""What a checked submission does: its program, bindings, values, and what it signals.

A plain tuple: one is made for every submission, and anything with names takes far longer to make.
"""


def end(work: Work, ticket: SubmissionTicket, error: Exception | None) -> None:
    """Tells ticket and fences that work has ended; `error` is the first thing that went wrong in it."""
    ticket.complete(error)
    for fence, value in work[3]:
        fence.advance(value)


@dataclass(slots=True)
class Submission:
    """A checked submission that has not run yet."""

    work: Work
    waits: tuple[FenceValue, ...]
    ticket: SubmissionTicket

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The ranges that it uses."""
        return self.work[1]

    def unmet(self) -> FenceValue | None:
        """Returns a wait that is not met yet."""
        return next((w for w in self.waits if w[0].value < w[1]), None)

    def uses(self, buffer: Buffer) -> bool:
        """Returns whether a buffer is among the bindings."""
        return any(binding[0] is buffer for binding in self.bindings)

    def writes(self, buffer: Buffer) -> bool:
        """Returns whether a buffer is among the bindings that may be written."""
        return any(binding[0] is buffer for binding in self.work[0].written(self.bindings))


class Lines:
    """Waiting submissions.

    Attributes:
        by_queue: those of each queue, in order; a queue without any is not there.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.by_queue: dict[int, deque[Submission]] = {}
        self._watched: set[Fence] = set()
        self._users: Counter[Buffer] = Counter()
        self._wake = wake

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
        line = self.by_queue.setdefault(queue, deque())
        line.append(submission)
        self._users.update(binding[0] for binding in submission.bindings)
        return unmet is None and len(line) == 1

    def pop(self) -> Submission | None:
        """Returns and removes the submission that may run now, the one of highest priority; None when there is none."""
        best: tuple[int, int] | None = None
        for queue, line in self.by_queue.items():
            if line[0].unmet() is None:
                control = line[0].ticket.control
                priority = 0 if control is None else control.priority
                if best is None or priority > best[0]:
                    best = priority, queue
        if best is not None:
            return self._take(best[1], 0)
        for fence in self._watched if not self.by_queue else ():
            fence.unwatch(self._wake)
        if not self.by_queue:
            self._watched.clear()
        return None

    def _take(self, queue: int, position: int) -> Submission:
        line = self.by_queue[queue]
        submission = line[position]
        del line[position]
        if not line:
            del self.by_queue[queue]
        for buffer, _, _ in submission.bindings:
            self._users[buffer] -= 1
            if not self._users[buffer]:
                del self._users[buffer]
        return submission

    def remove(self, ticket: SubmissionTicket) -> Submission | None:
        """Takes a waiting submission out and returns it; None when it is not there."""
        for queue, line in self.by_queue.items():
            for position, submission in enumerate(line):
                if submission.ticket is ticket:
                    return self._take(queue, position)
        return None

    def user(self, buffer: Buffer, *, writers: bool = False) -> Submission | None:
        """Returns a waiting submission that uses the buffer, or may write it."""
        return next(iter(self.users(buffer, writers=writers)), None)

    def users(self, buffer: Buffer, *, writers: bool = False) -> list[Submission]:
        """Returns all waiting submissions that use the buffer, or may write it."""
        if buffer not in self._users:
            return []
        found = [s for line in self.by_queue.values() for s in line if s.uses(buffer)]
        return [s for s in found if s.writes(buffer)] if writers else found

    def clear(self) -> list[Submission]:
        """Removes and returns everything."""
        waiting = [submission for line in self.by_queue.values() for submission in line]
        self.by_queue.clear()
        self._users.clear()
        self.pop()
        return waiting
