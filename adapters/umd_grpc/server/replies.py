"""What a session says: replies gathered into responses."""

from __future__ import annotations

import time
import traceback
from collections import OrderedDict
from collections.abc import Sequence

from umd_core.device.control import CommandTime
from umd_core.errors import InternalError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.messages.convert import error_text, facts_text
from umd_grpc.server.port import Outlet
from umd_grpc.server.report import log

REMEMBERED = 1_024
PROGRESS_SECONDS = 0.005


class Replies:
    """The replies of one session. Everything here runs on the device's thread.

    Attributes:
        seq: number of the last frame that was carried out.
        consumed: bytes of requests that are done with and have not been reported.
        moved: queues that moved, each with the seq up to which everything on it ended.
        told: when something was said last, or work began again, by `time.monotonic`.
    """

    def __init__(self, number: int, limits: Limits, epoch: int, outlet: Outlet, *, remember: bool) -> None:
        """`remember` keeps what a client must hear that attaches again: the last failures, and how far queues are."""
        self._number, self._limits, self._epoch, self._outlet = number, limits, epoch, outlet
        self._response = pb.SessionResponse()
        self._size = 0
        self.seq = self.consumed = 0
        self.told = 0.0
        self.moved: dict[int, int] = {}
        self._remember = remember
        self._failures: OrderedDict[int, pb.Reply] = OrderedDict()
        self._through: dict[int, int] = {}

    def done(self, seq: int, value: int = 0, times: Sequence[CommandTime] = ()) -> None:
        """Answers that something is done."""
        reply = self._response.replies.add(seq=seq)
        reply.done.value = value
        _write_times(reply, times)

    def data(self, seq: int, data: bytes) -> None:
        """Answers with bytes."""
        self._response.replies.add(seq=seq).data = data
        self._size += len(data)
        if self._size > self._limits.inline:
            self.flush()

    def opened(self, seq: int) -> pb.Opened:
        """Answers Open, with the message that is to be filled; repeats what was said while nobody may have heard it."""
        opened = self._response.replies.add(seq=seq).opened
        self._response.replies.extend(self._failures.values())
        self.moved.update(self._through)
        return opened

    def fail(self, seq: int, error: Exception, times: Sequence[CommandTime] = ()) -> None:
        """Answers that something went wrong; what is not umd's own is also logged."""
        if not isinstance(error, UmdError):
            log("internal_error", where=f"session {self._number}", traceback="".join(traceback.format_exception(error)))
            error = InternalError(f"frame {seq} failed: {type(error).__name__}")
        reply = self._response.replies.add(seq=seq)
        found = reply.error
        found.status, found.message, found.facts = int(error.status), error_text(error), facts_text(error)
        _write_times(reply, times)
        if self._remember and seq:
            self._failures[seq] = reply
            if len(self._failures) > REMEMBERED:
                self._failures.popitem(last=False)

    @property
    def pending(self) -> bool:
        """Whether there is something to say."""
        return bool(self._response.replies or self.consumed or self.moved)

    def flush_part(self, now: float) -> None:
        """Sends answers in the middle of a message; how far queues are only now and then, for more of it follows."""
        if self._response.replies or (self.moved and now > self.told + PROGRESS_SECONDS):
            self.flush()

    def flush(self) -> None:
        """Sends what there is to say."""
        self.told = time.monotonic()
        response, moved = self._response, self.moved
        response.processed_through = self.seq
        response.credit = self._limits.credit
        response.device_epoch = self._epoch
        for queue, seq in moved.items():
            response.completed_through.add(queue=queue, seq=seq)
        if self._remember:
            self._through.update(moved)
        moved.clear()
        consumed, self.consumed, self._size = self.consumed, 0, 0
        self._response = pb.SessionResponse()
        self._outlet.send(response.SerializeToString(), consumed)

    def drop(self) -> None:
        """Forgets what was to be said: whoever asked is gone."""
        self._response = pb.SessionResponse()
        self._size = 0

    def remembers(self, queue: int) -> bool:
        """Returns whether a submission on this queue can be remembered for a client that attaches again."""
        return not self._remember or len(self._through) < self._limits.queues or queue in self._through


def _write_times(reply: pb.Reply, times: Sequence[CommandTime]) -> None:
    for each in times:
        reply.profile.add(command=each.command, kernel=each.kernel, nanoseconds=each.nanoseconds)
