"""Whose turn it is on a device: deficit round robin between lanes of jobs, by measured time."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]
QUANTUM_SECONDS = 0.005
"""What a lane of weight 1 may use before the others have their turn."""
LEAST_WEIGHT = 1 / 64
DEBT_SECONDS = 0.5
"""The most that is held against a lane: one very long job must not shut its session out for as long again."""


class Lane:
    """Jobs that run one after the other.

    Attributes:
        weight: its share beside other lanes.
        credit: seconds that it may use before the next turn of the others; below 0 it has used more.
        rounds: turns that it has had, or made up for.
    """

    __slots__ = ("credit", "jobs", "listed", "rounds", "weight")

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = max(weight, LEAST_WEIGHT)
        self.credit = QUANTUM_SECONDS * self.weight
        self.jobs: deque[Job | None] = deque()
        self.listed = False
        self.rounds = 0

    def refill(self, turns: int) -> None:
        """Adds what it may use in so many turns; more than one turn's is not saved up."""
        quantum = QUANTUM_SECONDS * self.weight
        self.credit = min(quantum, self.credit + turns * quantum)


class Lanes:
    """The lanes of one device. Jobs may be put from any thread; one thread takes them, and holds `turn` for each.

    While there is none, another thread may `claim` the turn instead, for a job that is not put.

    A lane that wakes up and has credit left goes before those that are always busy, so little work waits for one slice
    of a busy lane and not for a turn of all of them. Whoever has used up its credit goes to the end and gets a quantum
    for its next turn. A lane that had nothing to do while others had their turns gets the credit of those it missed, so
    it is who uses less than its share that goes first, and not only who has just come.

    Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin" (1995); the two lists are those
    of RFC 8290, section 4.2. A job's cost is known when it has run, so it is charged afterwards.

    Attributes:
        turn: held while a job runs.
    """

    def __init__(self) -> None:
        self._fresh: deque[Lane] = deque()
        self._turns: deque[Lane] = deque()
        self._lock, self.turn = threading.Lock(), threading.Lock()
        self._taken = self._rounds = 0
        self._count: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def depth(self) -> int:
        """Jobs that wait."""
        return self._count.qsize()

    def put(self, lane: Lane, job: Job | None) -> None:
        """Adds a job to a lane."""
        with self._lock:
            lane.jobs.append(job)
            if not lane.listed:
                lane.listed = True
                missed = self._rounds - 1 - lane.rounds  # lanes that are always busy are one apart
                if missed > 0:
                    lane.refill(missed)
                    lane.rounds += missed
                (self._fresh if lane.credit > 0 else self._turns).append(lane)
        self._count.put(None)

    def take(self) -> tuple[Lane, Job | None]:
        """Returns the next job and its lane, as soon as there is one."""
        self._count.get()
        with self._lock:
            lane = self._next()
            job = lane.jobs.popleft()
            self._taken += 1
            if not lane.jobs:
                (self._fresh or self._turns).popleft()
                lane.listed = False
        return lane, job

    def _next(self) -> Lane:
        while True:
            line = self._fresh or self._turns
            lane = line[0]
            if lane.credit > 0:
                return lane
            line.popleft()
            lane.refill(1)
            lane.rounds += 1
            self._rounds = max(self._rounds, lane.rounds)
            self._turns.append(lane)

    def charge(self, lane: Lane, seconds: float) -> None:
        """Notes that a job which was taken, or claimed, is over, and the time that it has used."""
        with self._lock:
            self._taken -= 1
            lane.credit = max(lane.credit - seconds, -DEBT_SECONDS)

    def claim(self, lane: Lane) -> bool:
        """Takes the turn, unless a job runs, waits, or was taken and is about to run; returns whether it did.

        Who has claimed it runs one job, releases `turn` and calls `charge`. Jobs that are put meanwhile come after it.
        """
        with self._lock:
            if self._taken or self._fresh or self._turns:
                return False
            self._taken += 1
            if lane.credit <= 0:
                lane.refill(1)  # nobody else had use for the time that it has used
            return self.turn.acquire()

    def others(self, lane: Lane) -> bool:
        """Returns whether another lane has work."""
        return len(self._fresh) + len(self._turns) > lane.listed
