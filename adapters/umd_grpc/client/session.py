"""The session behind a RemoteDevice: gathers frames, sends them, waits for answers, frees what nobody holds."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from umd_core.device import Buffer
from umd_core.errors import CancelledError, DeviceLostError, UnsupportedError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.bulk import Bulk
from umd_grpc.client.calls import Client
from umd_grpc.client.channel import Process, open_channel
from umd_grpc.client.link import Link, Reply
from umd_grpc.client.outbox import HandleMaker, Outbox

PROTOCOL = 1
DROPPED = 1_024


class RemoteSession:
    """One session with one device of a server.

    Whoever adds frames holds `lock`, calls `begin` before and `end` after.

    Attributes:
        name: "grpc://host:port/device".
        timeout: seconds that an answer may take.
        description: what the server says of the device.
        limits: the server's.
        outbox: frames that have not been sent.
        link, bulk: the session's stream, and its transfers.
        round_trips: times that an answer was waited for.
    """

    def __init__(self, target: str, device: str, *, secure: bool, timeout: float) -> None:
        """Opens the session; see `RemoteDevice`."""
        scheme = "grpcs" if secure else "grpc"
        self.name, self.timeout = f"{scheme}://{target}/{device}", timeout
        self.lock = threading.RLock()
        self.outbox = Outbox()
        self.round_trips = self._bytes_sent = 0
        self._process = Process()
        self._buffers, self._others = HandleMaker(), HandleMaker()
        self._dropped_buffers: deque[Buffer] = deque()
        self._dropped_fences: deque[int] = deque()
        self.dropped_programs: deque[int] = deque()
        self._client = Client(target, secure=secure, timeout=timeout)
        self._bulk_channel = open_channel(target, secure=secure, own_connection=True)
        try:
            self.description = self._describe(device)
            self.name = f"{scheme}://{target}/{self.description.name}"
            self.link = Link(self._client.channel, self.name)
            opened = self._open()
        except BaseException:
            self._close_channels()
            raise
        self.limits = opened.limits
        self.bulk = Bulk(self._bulk_channel, self.name, opened.session, opened.limits.chunk_size)

    def _describe(self, device: str) -> pb.Device:
        described = self._client.describe()
        for found in described.devices:
            if device in ("", found.name):
                return found
        known = ", ".join(found.name for found in described.devices)
        raise UnsupportedError(f"the server has no such device; it has {known}", device=self.name)

    def _open(self) -> pb.Opened:
        frame = self.outbox.frame()
        frame.open.device, frame.open.protocol, frame.open.client = self.description.name, PROTOCOL, "umd_grpc"
        return self.ask([self.expect(frame)])[0].opened

    def __del__(self) -> None:
        if hasattr(self, "link") and self.link.lost is None:
            self.link.abandon()

    def close(self) -> None:
        """Ends the session: the server frees everything that it made."""
        with self.lock:
            if self.link.lost is None:
                with suppress(DeviceLostError, CancelledError):
                    self.send()
                self.link.close()
            self._close_channels()

    def _close_channels(self) -> None:
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
        self.link.check()

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
