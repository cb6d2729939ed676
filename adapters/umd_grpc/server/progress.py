"""What a session waits for: submissions in flight, by queue, and wait frames."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from umd_core.device import Fence, SubmissionTicket
from umd_core.errors import CancelledError, LimitError

Done = Callable[[int, Exception | None, int], None]
"""Called with seq, error and the fence's value (0 for submissions)."""


@dataclass(slots=True)
class _Submission:
    seq: int
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

    def check(self) -> None:
        """Checks that one more may wait.

        Raises:
            LimitError: too many wait already.
        """
        count = len(self._waits) + sum(map(len, self._queues.values()))
        if count >= self._most:
            raise LimitError("unfinished submissions and waits", count + 1, self._most)

    def submitted(self, seq: int, queue: int, ticket: SubmissionTicket, reply: bool) -> None:
        """Notes a submission."""
        if queue not in self._queues and ticket.done():
            self._end(queue, _Submission(seq, ticket, reply))
        else:
            self._queues.setdefault(queue, deque()).append(_Submission(seq, ticket, reply))

    def refused(self, seq: int, queue: int) -> None:
        """Notes a submission that was refused."""
        if queue not in self._queues:
            self.moved[queue] = seq

    def wait(self, seq: int, fence: Fence, value: int, timeout: float) -> None:
        """Notes a wait frame; with a timeout of 0 seconds it waits for ever."""
        deadline = time.monotonic() + timeout if timeout else float("inf")
        self._waits.append(_Wait(seq, fence, value, deadline))

    def poll(self) -> None:
        """Tells about everything that has ended."""
        for queue in list(self._queues):
            line = self._queues[queue]
            while line and line[0].ticket.done():
                self._end(queue, line.popleft())
            if not line:
                del self._queues[queue]
        if self._waits:
            now = time.monotonic()
            self._waits = [wait for wait in self._waits if not self._ended(wait, now)]

    def _end(self, queue: int, submission: _Submission) -> None:
        self.moved[queue] = submission.seq
        error = submission.ticket.error
        if error is not None or submission.reply:
            self._done(submission.seq, error, 0)

    def _ended(self, wait: _Wait, now: float) -> bool:
        if wait.fence.value >= wait.value:
            self._done(wait.seq, None, wait.fence.value)
        elif now >= wait.deadline:
            detail = f"the fence is at {wait.fence.value}, {wait.value} was not reached in time"
            self._done(wait.seq, CancelledError(detail), 0)
        else:
            return False
        return True

    def clear(self) -> list[SubmissionTicket]:
        """Forgets everything and returns the tickets of unfinished submissions."""
        tickets = [submission.ticket for line in self._queues.values() for submission in line]
        self._queues.clear()
        self._waits.clear()
        return tickets
