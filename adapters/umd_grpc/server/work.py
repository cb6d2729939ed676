"""Submissions that run on a device: their deadlines, and the watchdog that ends those which run too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from umd_core.device.control import Control
from umd_core.errors import CancelledError

if TYPE_CHECKING:
    from umd_core.device import SequentialDevice
    from umd_grpc.server.cancels import Cancels

LOOK_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""How long a submission that was told to end may go on before the watchdog calls for help."""
_NEVER = float("inf")


class Work(Control):
    """One submission of a session.

    Attributes:
        owner: what its session has cancelled.
        seq, queue: of its frame.
        deadline: when it is cancelled, by `time.monotonic`.
        started: when it began, 0 before.
    """

    __slots__ = ("deadline", "owner", "queue", "seq", "started")

    def __init__(self, owner: Cancels, seq: int, queue: int, priority: int = 0, *, profile: bool = False) -> None:
        super().__init__(priority, time.perf_counter_ns if profile else None)
        self.owner, self.seq, self.queue = owner, seq, queue
        self.deadline, self.started = _NEVER, 0.0

    def begin(self) -> Exception | None:
        """Notes the time; what is late, or was cancelled, does not start."""
        self.started = time.monotonic()
        if self.started >= self.deadline:
            return self.late()
        return self.owner.begin(self)

    def late(self) -> CancelledError:
        """Returns the error of a submission whose deadline has passed."""
        return CancelledError(f"submission {self.seq} was cancelled: its deadline has passed")


class Watchdog:
    """A thread that looks at what runs on a device now and then.

    What is past its deadline, or has run for longer than the limit, ends at its next command. When it does not, because
    one command goes on for ever, `stuck` is called once: a process of its own can be ended.
    """

    def __init__(self, device: SequentialDevice, limit_seconds: float, stuck: Callable[[Work], None]) -> None:
        """A limit of 0 seconds is none."""
        self._device, self._limit, self._stuck = device, limit_seconds or _NEVER, stuck
        self._told: Work | None = None
        self._told_at = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"umd-watchdog-{device.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            work = self._device.control
            if isinstance(work, Work) and work.started:
                self.look(work, time.monotonic())

    def look(self, work: Work, now: float) -> None:
        """Ends work that runs, if it has to."""
        if not work.stops:
            if now >= work.deadline:
                work.stops.append(work.late())
            elif now - work.started > self._limit:
                detail = f"submission {work.seq} ran for more than the {self._limit:g} s that one may take"
                work.stops.append(CancelledError(detail))
        if work.stops and work is not self._told:
            self._told, self._told_at = work, now
        elif work.stops and now - self._told_at > GRACE_SECONDS:
            self._told_at = _NEVER
            self._stuck(work)
