"""The client's side of a session's stream: messages out, replies in.

Responses are taken in by the deserializer that gRPC calls for each, on the thread on which they arrive: whoever waits
for an answer is woken by it at once. One more thread asks gRPC for the next response and hears how the stream ends.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import grpc

from umd_core.device.control import CommandTime
from umd_core.errors import CancelledError, DeviceLostError, NotAuthorisedError, QuotaError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.channel import call_error
from umd_grpc.messages.convert import read_error

_SESSION = "/umd.runtime.Runtime/Session"
_CREDIT = 1 << 20

Reply = queue.SimpleQueue[Any]
"""Where the answer to one frame arrives: a Reply message, or the error that ended the session."""


class Receiver(Protocol):
    """Takes what a `Reply` takes, on the thread on which it arrives; must not wait for anything."""

    def put(self, item: Any, /) -> None:
        """Takes the answer."""
        ...


class _Sent(NamedTuple):
    """A message that the server may not have carried out: number of its last frame, its size, itself if it is kept."""

    last: int
    size: int
    message: bytes


class Ticket:
    """A submission of the session.

    Attributes:
        seq: number of its frame.
        error: what went wrong in it, None until that is known.
        times: how long each command took, when that was asked for and the work has ended.
    """

    __slots__ = ("__weakref__", "_link", "_queue", "error", "seq", "times")

    def __init__(self, link: Link, seq: int, queue: int) -> None:
        self._link, self.seq, self._queue = link, seq, queue
        self.error: UmdError | None = None
        self.times: list[CommandTime] = []

    @property
    def ended(self) -> bool:
        """Whether it is known that the work has ended, well or badly."""
        return self._link.completed.get(self._queue, 0) >= self.seq or self.error is not None


class Link:
    """A session's stream, or one after the other. Usable from many threads, one of which sends at a time.

    Attributes:
        completed: the seq up to which every submission has ended, by queue.
        processed: the seq up to which every frame has been carried out.
        tickets: submissions that somebody holds, by seq.
        bytes_down: bytes of responses.
        broken: when the connection was lost, by `time.monotonic`; None while it holds, or when the server has ended
            the session and said why.
    """

    def __init__(self, channel: grpc.Channel, name: str, *, keep: bool = False) -> None:
        """`name` names the device in errors. `keep` keeps messages until they are carried out: `connect_again`."""
        self.name, self._keep = name, keep
        self.broken: float | None = None
        self.completed: dict[int, int] = {}
        self.processed = self.bytes_down = 0
        self._credit, self._under_way = _CREDIT, 0
        self._sent: deque[_Sent] = deque()
        self._waiting: dict[int, Receiver] = {}
        self.tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
        self._epoch = 0
        self._lost: UmdError | None = None
        self._moved = threading.Condition()
        self._method: Any = channel.stream_stream(_SESSION, response_deserializer=self._heard)
        self._connect()

    def _connect(self) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        again = self._lost is not None
        self._call = self._method(iter(self._outbox.get, None), wait_for_ready=again)
        self._lost = self.broken = None
        self._thread = threading.Thread(target=self._listen, args=(self._call,), name=f"umd-{self.name}", daemon=True)
        self._thread.start()

    def connect_again(self) -> list[bytes]:
        """Begins another stream after the connection was lost; the first frame must attach to the session.

        Returns the kept messages whose frames may not have been carried out.
        """
        self._thread.join()
        with self._moved:
            messages = [sent.message for sent in self._sent]
            self._sent.clear()
            self._under_way = 0
        self._connect()
        return messages

    def give_up(self, reason: str) -> DeviceLostError:
        """Ends the session for good; returns the error that every further use raises."""
        self.abandon()
        self._thread.join()
        self._lost, self.broken = DeviceLostError(self.name, reason), None
        return self._lost

    def lose(self, seq: int, error: UmdError) -> None:
        """Notes that a submission was never carried out."""
        with self._moved:
            ticket = self.tickets.pop(seq, None)
            if ticket is not None:
                ticket.error = error
            self._moved.notify_all()

    def renumber(self, seq: int, new: int) -> None:
        """Gives a frame that has not been sent another number."""
        ticket, reply = self.tickets.pop(seq, None), self._waiting.pop(seq, None)
        if ticket is not None:
            ticket.seq = new
            self.tickets[new] = ticket
        if reply is not None:
            self._waiting[new] = reply

    @property
    def lost(self) -> UmdError | None:
        """Why the session has ended, None while it goes on."""
        return self._lost

    def check(self) -> None:
        """Checks that the session goes on.

        Raises:
            DeviceLostError: it does not.
            NotAuthorisedError: the server does not know the client any more.
            QuotaError: the client may not have another session.
        """
        if isinstance(self._lost, (NotAuthorisedError, QuotaError)):
            raise UmdError.from_facts(self._lost.status, str(self._lost), self._lost.facts()) from self._lost
        if self._lost is not None:
            raise DeviceLostError(self.name, str(getattr(self._lost, "reason", self._lost))) from self._lost

    def expect(self, seq: int) -> Reply:
        """Returns where the answer to a frame, not sent yet, will arrive."""
        reply: Reply = queue.SimpleQueue()
        self.answer_to(seq, reply)
        return reply

    def answer_to(self, seq: int, receiver: Receiver) -> None:
        """Has the answer to a frame, not sent yet, given to something."""
        self._waiting[seq] = receiver

    def has_room(self, size: int) -> bool:
        """Returns whether the server has room for `size` bytes of messages: sending them does not wait."""
        with self._moved:
            return self._under_way + size <= self._credit

    def send(self, message: bytes, last: int, timeout: float) -> None:
        """Sends a message whose last frame is `last`, when the server has room for it.

        Raises:
            DeviceLostError: the session has ended.
            CancelledError: the server had no room in time.
        """
        size = len(message)
        with self._moved:
            if self._lost is not None and self._keep:
                self._sent.append(_Sent(last, size, message))
            self.check()
            if self._under_way and self._under_way + size > self._credit:
                self._wait_for(lambda: not self._under_way or self._under_way + size <= self._credit, timeout, "room")
            self._under_way += size
            self._sent.append(_Sent(last, size, message if self._keep else b""))
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
            raise self.late(timeout) from None
        return self.answer(found)

    def late(self, timeout: float) -> CancelledError:
        """Returns the error of an answer that did not come in time."""
        return CancelledError(f"{self.name} gave no answer within {timeout:g} s")

    def answer(self, found: Any) -> pb.Reply:
        """Returns the answer that has arrived for a frame.

        Raises:
            UmdError: the frame failed, or the session has ended.
        """
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

    def say_last(self, message: bytes) -> None:
        """Sends a message whatever is under way, as the last one."""
        self._outbox.put(message)
        self._outbox.put(None)

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

    # the threads of gRPC, and the one that listens

    def _heard(self, raw: bytes) -> UmdError | bool:
        """Takes a response in; returns what ends the session, True when nothing does."""
        try:
            self.bytes_down += len(raw)
            self._take(pb.SessionResponse.FromString(raw))
        except UmdError as error:
            return error
        except Exception as error:  # noqa: BLE001  # whatever went wrong ends the session: nobody may wait for it
            return DeviceLostError(self.name, f"a response made no sense: {type(error).__name__}: {error}")
        return True

    def _listen(self, call: Any) -> None:
        error: UmdError = DeviceLostError(self.name, "its session has ended")
        broken = True
        try:
            for heard in call:
                if heard is not True:
                    raise heard
        except grpc.RpcError as found:
            error = call_error(found, self.name)
            broken = call.code() is not grpc.StatusCode.ABORTED and not isinstance(error, NotAuthorisedError)
        except UmdError as found:
            error, broken = found, False
            call.cancel()
        except Exception as found:  # noqa: BLE001  # whatever ends this thread ends the session: nobody may wait for it
            error = DeviceLostError(self.name, f"its stream ended with {type(found).__name__}: {found}")
        self._end(error, broken)

    def _take(self, response: pb.SessionResponse) -> None:
        if response.device_epoch != self._epoch:
            if self._epoch:
                raise DeviceLostError(self.name, "everything on the device was lost")
            self._epoch = response.device_epoch
        with self._moved:
            self._credit = response.credit or self._credit
            self.processed = response.processed_through
            while self._sent and self._sent[0].last <= self.processed:
                self._under_way -= self._sent.popleft().size
            for reply in response.replies:  # before what is completed: whoever sees an end must see how it was
                self._answer(reply)
            for progress in response.completed_through:
                self.completed[progress.queue] = progress.seq
            self._moved.notify_all()

    def _answer(self, reply: pb.Reply) -> None:
        waiting = self._waiting.pop(reply.seq, None)
        if waiting is not None:
            waiting.put(reply)
        if reply.profile:
            self._note_times(reply)
        if not reply.HasField("error"):
            return
        error = read_error(reply.error.status, reply.error.message, reply.error.facts)
        if not reply.seq:
            raise error
        ticket = self.tickets.pop(reply.seq, None)
        if ticket is not None:
            ticket.error = error

    def _note_times(self, reply: pb.Reply) -> None:
        ticket = self.tickets.get(reply.seq)
        if ticket is not None:
            ticket.times = [CommandTime(each.command, each.kernel, each.nanoseconds) for each in reply.profile]

    def _end(self, error: UmdError, broken: bool) -> None:
        with self._moved:
            self._lost = error
            self.broken = time.monotonic() if broken else None
            waiting, self._waiting = self._waiting, {}
            for reply in waiting.values():
                reply.put(error)
            self._moved.notify_all()
