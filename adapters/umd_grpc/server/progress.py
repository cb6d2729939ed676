"""What a session waits for: submissions in flight, by queue, and wait frames."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from umd_core.device import Fence, SubmissionTicket
from umd_core.device.control import CommandTime
from umd_core.errors import CancelledError, LimitError
from umd_grpc.server.work import Work

Done = Callable[[int, Exception | None, int, Sequence[CommandTime]], None]
"""Called with seq, error, the fence's value (0 for submissions), and the times of commands if they were asked for."""


@dataclass(slots=True)
class _Submission:
    work: Work
    ticket: SubmissionTicket
    reply: bool


@dataclass(slots=True)
class _Wait:
    seq: int
    fence: Fence
    value: int
    deadline: float


class Progress:
    """Submissions and waits of one session that have not ended yet.

    Attributes:
        moved: queues that moved since they were last taken, each with the seq up to which everything ended.
    """

    def __init__(self, most: int, done: Done) -> None:
        """At most `most` submissions and waits may be unfinished; `done` is told about each that ends."""
        self._most, self._done = most, done
        self._queues: dict[int, deque[_Submission]] = {}
        self._waits: list[_Wait] = []
        self.moved: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._queues or self._waits)

    @property
    def count(self) -> int:
        """Submissions and waits that have not ended."""
        return len(self._waits) + sum(map(len, self._queues.values()))

    def check(self, others: int = 0) -> None:
        """Checks that one more may wait, beside these and `others`.

        Raises:
            LimitError: too many wait already.
        """
        count = self.count + others
        if count >= self._most:
            raise LimitError("unfinished submissions and waits", count + 1, self._most)

    def submitted(self, work: Work, ticket: SubmissionTicket, reply: bool) -> None:
        """Notes a submission."""
        if work.queue not in self._queues and ticket.done():
            self._end(_Submission(work, ticket, reply))
        else:
            self._queues.setdefault(work.queue, deque()).append(_Submission(work, ticket, reply))

    def refused(self, seq: int, queue: int) -> None:
        """Notes a submission that was refused."""
        if queue not in self._queues:
            self.moved[queue] = seq

    def wait(self, seq: int, fence: Fence, value: int, timeout: float) -> None:
        """Notes a wait frame; with a timeout of 0 seconds it waits for ever."""
        deadline = time.monotonic() + timeout if timeout else float("inf")
        self._waits.append(_Wait(seq, fence, value, deadline))

    def due(self) -> float:
        """Returns when the next deadline is, by `time.monotonic`; infinity when there is none."""
        ends = [wait.deadline for wait in self._waits]
        ends += [each.work.deadline for line in self._queues.values() for each in line if not each.ticket.done()]
        return min(ends, default=float("inf"))

    def unfinished(self) -> Iterable[tuple[Work, SubmissionTicket]]:
        """Returns the submissions that have not ended."""
        return [(s.work, s.ticket) for line in self._queues.values() for s in line if not s.ticket.done()]

    def poll(self) -> None:
        """Tells about everything that has ended."""
        for queue in list(self._queues):
            line = self._queues[queue]
            while line and line[0].ticket.done():
                self._end(line.popleft())
            if not line:
                del self._queues[queue]
        if self._waits:
            now = time.monotonic()
            self._waits = [wait for wait in self._waits if not self._ended(wait, now)]

    def _end(self, submission: _Submission) -> None:
        work = submission.work
        self.moved[work.queue] = work.seq
        error = submission.ticket.error
        if error is not None or submission.reply or work.times is not None:
            self._done(work.seq, error, 0, work.times or ())

    def _ended(self, wait: _Wait, now: float) -> bool:
        if wait.fence.value >= wait.value:
            self._done(wait.seq, None, wait.fence.value, ())
        elif now >= wait.deadline:
            detail = f"the fence is at {wait.fence.value}, {wait.value} was not reached in time"
            self._done(wait.seq, CancelledError(detail), 0, ())
        else:
            return False
        return True

    def clear(self) -> list[SubmissionTicket]:
        """Forgets everything and returns the tickets of unfinished submissions."""
        tickets = [submission.ticket for line in self._queues.values() for submission in line]
        self._queues.clear()
        self._waits.clear()
        return tickets
