"""The client's side of a session's stream: messages out, replies in, one thread that listens."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from umd_core.errors import CancelledError, DeviceLostError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.channel import call_error
from umd_grpc.messages.convert import read_error

_SESSION = "/umd.runtime.Runtime/Session"
_CREDIT = 1 << 20

Reply = queue.SimpleQueue[Any]
"""Where the answer to one frame arrives: a Reply message, or the error that ended the session."""


class Ticket:
    """A submission of the session.

    Attributes:
        error: what went wrong in it, None until that is known.
    """

    __slots__ = ("__weakref__", "_link", "_queue", "_seq", "error")

    def __init__(self, link: Link, seq: int, queue: int) -> None:
        self._link, self._seq, self._queue = link, seq, queue
        self.error: UmdError | None = None

    @property
    def seq(self) -> int:
        """Number of its frame."""
        return self._seq

    @property
    def ended(self) -> bool:
        """Whether the server has said that the work has ended, well or badly."""
        return self._link.completed.get(self._queue, 0) >= self._seq


class Link:
    """A session's stream. Usable from many threads, one of which sends at a time.

    Attributes:
        completed: the seq up to which every submission has ended, by queue.
        processed: the seq up to which every frame has been carried out.
        tickets: submissions that somebody holds, by seq.
        bytes_down: bytes of responses.
    """

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        """`name` names the device in errors."""
        self.name = name
        self.completed: dict[int, int] = {}
        self.processed = self.bytes_down = 0
        self._credit, self._under_way = _CREDIT, 0
        self._sizes: deque[tuple[int, int]] = deque()
        self._waiting: dict[int, Reply] = {}
        self.tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
        self._epoch = 0
        self._lost: UmdError | None = None
        self._moved = threading.Condition()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method: Any = channel.stream_stream(_SESSION)
        self._call = method(iter(self._outbox.get, None))
        self._thread = threading.Thread(target=self._listen, name=f"umd-{name}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> UmdError | None:
        """Why the session has ended, None while it goes on."""
        return self._lost

    def check(self) -> None:
        """Checks that the session goes on.

        Raises:
            DeviceLostError: it does not.
        """
        if self._lost is not None:
            raise DeviceLostError(self.name, str(getattr(self._lost, "reason", self._lost))) from self._lost

    def expect(self, seq: int) -> Reply:
        """Returns where the answer to a frame, not sent yet, will arrive."""
        reply: Reply = queue.SimpleQueue()
        self._waiting[seq] = reply
        return reply

    def send(self, message: bytes, last: int, timeout: float) -> None:
        """Sends a message whose last frame is `last`, when the server has room for it.

        Raises:
            DeviceLostError: the session has ended.
            CancelledError: the server had no room in time.
        """
        size = len(message)
        with self._moved:
            self.check()
            if self._under_way and self._under_way + size > self._credit:
                self._wait_for(lambda: not self._under_way or self._under_way + size <= self._credit, timeout, "room")
            self._under_way += size
            self._sizes.append((last, size))
        self._outbox.put(message)

    def result(self, reply: Reply, timeout: float) -> pb.Reply:
        """Returns the answer to a frame.

        Raises:
            UmdError: the frame failed, or the session has ended.
            CancelledError: no answer came in time.
        """
        try:
            found = reply.get(timeout=timeout)
        except queue.Empty:
            raise CancelledError(f"{self.name} gave no answer within {timeout:g} s") from None
        if isinstance(found, UmdError):
            self.check()
            raise found
        if found.HasField("error"):
            raise read_error(found.error.status, found.error.message, found.error.facts)
        answer: pb.Reply = found
        return answer

    def wait_until(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Returns when a condition on what the server has told holds.

        Raises:
            DeviceLostError, CancelledError: the session has ended, or it does not hold in time.
        """
        with self._moved:
            self._wait_for(condition, timeout, what)

    def _wait_for(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            self.check()
            if not self._moved.wait(max(0.0, deadline - time.monotonic())):
                raise CancelledError(f"{self.name}: {what} did not come within {timeout:g} s")

    def close(self, timeout: float = 5.0) -> None:
        """Ends the session, and waits for the server to have ended it. What was sent is still carried out."""
        self._outbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        self.abandon()

    def abandon(self) -> None:
        """Ends the session without waiting for anything."""
        self._outbox.put(None)
        self._call.cancel()

    # the listening thread

    def _listen(self) -> None:
        error: UmdError = DeviceLostError(self.name, "its session has ended")
        try:
            for raw in self._call:
                self.bytes_down += len(raw)
                self._take(pb.SessionResponse.FromString(raw))
        except grpc.RpcError as found:
            error = call_error(found, self.name)
        except UmdError as found:
            error = found
            self._call.cancel()
        self._end(error)

    def _take(self, response: pb.SessionResponse) -> None:
        if response.device_epoch != self._epoch:
            if self._epoch:
                raise DeviceLostError(self.name, "everything on the device was lost")
            self._epoch = response.device_epoch
        with self._moved:
            self._credit = response.credit or self._credit
            self.processed = response.processed_through
            while self._sizes and self._sizes[0][0] <= self.processed:
                self._under_way -= self._sizes.popleft()[1]
            for progress in response.completed_through:
                self.completed[progress.queue] = progress.seq
            for reply in response.replies:
                self._answer(reply)
            self._moved.notify_all()

    def _answer(self, reply: pb.Reply) -> None:
        waiting = self._waiting.pop(reply.seq, None)
        if waiting is not None:
            waiting.put(reply)
        if not reply.HasField("error"):
            return
        error = read_error(reply.error.status, reply.error.message, reply.error.facts)
        if not reply.seq:
            raise error
        ticket = self.tickets.pop(reply.seq, None)
        if ticket is not None:
            ticket.error = error

    def _end(self, error: UmdError) -> None:
        with self._moved:
            self._lost = error
            waiting, self._waiting = self._waiting, {}
            for reply in waiting.values():
                reply.put(error)
            self._moved.notify_all()
