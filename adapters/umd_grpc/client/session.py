"""The session behind a RemoteDevice: gathers frames, sends them, waits for answers, frees what nobody holds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from umd_core.device import Buffer
from umd_core.errors import CancelledError, DeviceLostError, UmdError, UnsupportedError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.access import Access
from umd_grpc.client.bulk import Bulk
from umd_grpc.client.calls import Client
from umd_grpc.client.channel import open_channel
from umd_grpc.client.forks import Process, keep
from umd_grpc.client.link import Link, Reply
from umd_grpc.client.outbox import HandleMaker, Outbox
from umd_grpc.client.program import RemoteProgram
from umd_grpc.client.resume import add_unsent, lost_frames, recover
from umd_grpc.client.shared_memory import offered_share

PROTOCOL = 1
DROPPED = 1_024
_PAUSE = 0.02


class RemoteSession:
    """One session with one device of a server.

    Whoever adds frames holds `lock`, calls `begin` before and `end` after.

    Attributes:
        name: "grpc://host:port/device".
        timeout: seconds that an answer may take.
        description: what the server says of the device.
        limits: the server's.
        programs: those that somebody holds, by handle.
        outbox: frames that have not been sent.
        link, bulk: the session's stream, and its transfers.
        round_trips: times that an answer was waited for.
    """

    def __init__(
        self,
        access: Access,
        device: str,
        *,
        timeout: float,
        lease_seconds: int = 0,
        priority: int = 0,
        shared_memory: bool = True,
    ) -> None:
        """Opens the session; see `RemoteDevice`."""
        self._lease, self._priority, self._resume = lease_seconds, priority, b""
        self.programs: WeakValueDictionary[int, RemoteProgram] = WeakValueDictionary()
        scheme, target = "grpcs" if access.secure else "grpc", access.target
        self.name, self.timeout = f"{scheme}://{target}/{device}", timeout
        self.lock = threading.RLock()
        self.outbox = Outbox()
        self.round_trips = self._bytes_sent = 0
        self._process = Process()
        keep(self)
        self._buffers, self._others = HandleMaker(), HandleMaker()
        self._dropped_buffers: deque[Buffer] = deque()
        self._dropped_fences: deque[int] = deque()
        self.dropped_programs: deque[int] = deque()
        self._client = Client(access, timeout=timeout)
        self._bulk_channel = open_channel(access, own_connection=True)
        try:
            self.description = self._describe(device)
            self.name = f"{scheme}://{target}/{self.description.name}"
            self.link = Link(self._client.channel, self.name, keep=bool(lease_seconds))
            opened = self._open()
        except BaseException:
            self._close_channels()
            raise
        self.limits = opened.limits
        share = offered_share(target, self._offered, opened.session, wanted=shared_memory)
        chunk = opened.limits.chunk_size
        self.bulk = Bulk(self._bulk_channel, self.name, opened.session, chunk, alive=self._goes_on, share=share)

    def _describe(self, device: str) -> pb.Device:
        described = self._client.describe()
        self._offered = described.shared_memory
        for found in described.devices:
            if device in ("", found.name):
                return found
        known = ", ".join(found.name for found in described.devices) or "none that this client may use"
        raise UnsupportedError(f"the server has no such device; it has {known}", device=self.name)

    def _open(self) -> pb.Opened:
        frame = self.outbox.frame()
        self._fill_open(frame.open)
        opened = self.ask([self.expect(frame)])[0].opened
        self._lease, self._resume = opened.lease_seconds, opened.resume
        return opened

    def _fill_open(self, command: pb.Open) -> None:
        command.device, command.protocol, command.client = self.description.name, PROTOCOL, "umd_grpc"
        command.lease_seconds, command.priority, command.resume = self._lease, self._priority, self._resume

    def after_fork(self) -> None:
        """Frees the lock in a child: whoever holds it there is not there."""
        self.lock = threading.RLock()

    def __del__(self) -> None:
        if hasattr(self, "link") and self.link.lost is None and self._process.here:
            if self._lease:
                self.link.say_last(self._closing())
            else:
                self.link.abandon()

    def _closing(self) -> bytes:
        """Returns the message that ends the session, lease or none."""
        self.outbox.frame().close.SetInParent()
        return self.outbox.take()

    def close(self) -> None:
        """Ends the session: the server frees everything that it made. In a child made by fork it does nothing."""
        if not self._process.here:
            return
        with self.lock:
            if self._resumable:
                with suppress(UmdError):  # then its lease ends it
                    self._attach_again()
            if self.link.lost is None:
                with suppress(DeviceLostError, CancelledError):  # it is being closed: nobody needs these
                    self.send()
                if self._lease:
                    self.link.say_last(self._closing())
                self.link.close()
            self._lease = 0
            self._close_channels()

    def _goes_on(self) -> bool:
        return self.link.lost is None or self._resumable

    def _close_channels(self) -> None:
        if hasattr(self, "bulk"):
            self.bulk.close()
        self._client.close()
        self._bulk_channel.close()

    @property
    def bytes_up(self) -> int:
        """Bytes of messages sent, transfers included."""
        return self._bytes_sent + self.bulk.bytes_up

    @property
    def bytes_down(self) -> int:
        """Bytes of messages received, transfers included."""
        return self.link.bytes_down + self.bulk.bytes_down

    # frames

    def begin(self) -> None:
        """Checks that the session goes on.

        Raises:
            DeviceLostError: it does not, or belongs to another process.
        """
        self._process.check(self.name)
        if self.link.lost is not None:
            if self._resumable:
                self._attach_again()
            self.link.check()

    @property
    def _resumable(self) -> bool:
        """Whether the connection was lost and the session may still be there."""
        broken = self.link.broken
        return bool(self._lease) and broken is not None and time.monotonic() < broken + self._lease

    def _attach_again(self) -> None:
        """Attaches to the session over another stream; what was lost with the old one fails, see `resume.recover`.

        Raises:
            UmdError: the server does not answer in time, or the session is not there any more.
        """
        deadline = min(time.monotonic() + self.timeout, (self.link.broken or 0.0) + self._lease)
        unsent, messages = self.outbox.take_frames(), list[bytes]()
        while True:
            messages += self.link.connect_again()
            try:
                opened = self._ask_to_attach(max(0.1, deadline - time.monotonic()))
                break
            except UmdError as error:
                if self.link.broken is None or time.monotonic() > deadline:
                    self._lease = 0
                    reason = f"the connection was lost, and the session could not be resumed: {error}"
                    raise self.link.give_up(reason) from error
                time.sleep(_PAUSE)
        self._resume = opened.resume
        recover(lost_frames(messages, opened.processed_through), self.outbox, self.link, self._writes)
        add_unsent(unsent, self.outbox, self.link)

    def _ask_to_attach(self, seconds: float) -> pb.Opened:
        frame = self.outbox.frame()
        self._fill_open(frame.open)
        reply, message = self.expect(frame), self.outbox.take()
        self.link.send(message, self.outbox.sent, seconds)
        self.round_trips += 1
        return self.link.result(reply, seconds).opened

    def _writes(self, handle: int) -> Sequence[bool] | None:
        program = self.programs.get(handle)
        return None if program is None else program.writes

    def enter(self, size: int) -> bool:
        """Takes the lock if adding and sending frames of `size` bytes waits for nobody; returns whether it did."""
        if not self.lock.acquire(blocking=False):
            return False
        if (self.link.lost is not None and self._resumable) or not self.link.has_room(self.outbox.size + size):
            self.lock.release()
            return False
        return True

    def end(self) -> None:
        """Sends what has gathered when it is much."""
        if self.outbox.full or len(self._dropped_buffers) > DROPPED:
            self.send()

    def send(self) -> None:
        """Sends what has gathered."""
        if self._dropped_buffers or self._dropped_fences or self.dropped_programs:
            self._reap()
        if not self.outbox.empty:
            message = self.outbox.take()
            self._bytes_sent += len(message)
            self.link.send(message, self.outbox.sent, self.timeout)

    def expect(self, frame: pb.Frame) -> Reply:
        """Returns where the answer to a frame will arrive."""
        return self.link.expect(frame.seq)

    def ask(self, replies: Sequence[Reply], timeout: float | None = None) -> list[pb.Reply]:
        """Sends what has gathered and returns the answers.

        Raises:
            UmdError: what went wrong in one of the frames, or with the session.
        """
        with self.lock:
            self.send()
            self.round_trips += 1
        seconds = self.timeout if timeout is None else timeout
        return [self.link.result(reply, seconds) for reply in replies]

    def command(self, fill: Callable[[pb.Frame], None], timeout: float | None = None) -> pb.Reply:
        """Returns the answer to one frame, which `fill` makes."""
        with self.lock:
            self.begin()
            frame = self.outbox.frame()
            fill(frame)
            reply = self.expect(frame)
        return self.ask([reply], timeout)[0]

    def cancel(self, seqs: Sequence[int] = (), queues: Sequence[int] = ()) -> None:
        """Ends submissions, at once: by number, by queue, or all."""
        with self.lock:
            self.begin()
            command = self.outbox.frame().cancel
            command.SetInParent()
            command.seqs.extend(seqs)
            command.queues.extend(queues)
            self.send()

    # handles

    def new_buffer(self) -> int:
        """Returns a handle for a buffer."""
        return self._buffers.make()

    def new_handle(self) -> int:
        """Returns a handle for a program or a fence."""
        return self._others.make()

    def free(self, buffers: Sequence[Buffer]) -> None:
        """Frees those buffers that are alive."""
        alive = [buffer for buffer in buffers if buffer.alive]
        if alive:
            self.outbox.free(buffers=[buffer.memory for buffer in alive])
            for buffer in alive:
                buffer.alive = False
                self._buffers.release(buffer.memory)

    def drop(self, *buffers: Buffer) -> None:
        """Frees buffers soon: callable from a finalizer, on any thread."""
        self._dropped_buffers.extend(buffers)

    def drop_fence(self, handle: int) -> None:
        """Frees a fence soon: callable from a finalizer, on any thread."""
        self._dropped_fences.append(handle)

    def _reap(self) -> None:
        """Frees what finalizers have dropped."""
        self.free(_emptied(self._dropped_buffers))
        fences, programs = _emptied(self._dropped_fences), _emptied(self.dropped_programs)
        if fences or programs:
            self.outbox.free(fences=fences, programs=programs)
            for handle in (*fences, *programs):
                self._others.release(handle)


def _emptied(dropped: deque[Any]) -> list[Any]:
    """Returns what a deque held; finalizers may add to it meanwhile."""
    return [dropped.popleft() for _ in range(len(dropped))]
