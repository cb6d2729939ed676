"""Frames gathered into few messages, and the handles that a client makes."""

from __future__ import annotations

from collections.abc import Sequence

from umd_grpc._pb.umd import runtime_pb2 as pb

FLUSH_SIZE, FLUSH_FRAMES = 256 << 10, 4_096
_FRAME_SIZE, _BINDING_SIZE = 32, 16


class HandleMaker:
    """Makes handles: id | generation << 32. Ids are used again, their generation rises each time."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._count = 0

    def make(self) -> int:
        """Returns a handle that was never used before."""
        if self._free:
            return self._free.pop() + (1 << 32)
        self._count += 1
        return self._count | 1 << 32

    def release(self, handle: int) -> None:
        """Takes back a handle whose freeing stands in the session's order."""
        if handle >> 32 < 0xFFFF_FFFF:
            self._free.append(handle)


class Outbox:
    """Frames that have not been sent.

    Attributes:
        seq: number of the last frame.
        sent: number of the last frame that was taken to be sent.
    """

    def __init__(self) -> None:
        self._request = pb.SessionRequest()
        self._size = 0
        self._allocate: pb.Allocate | None = None
        self.seq = self.sent = 0

    @property
    def size(self) -> int:
        """About how many bytes there are to send."""
        return self._size

    @property
    def full(self) -> bool:
        """Whether it is time to send."""
        return self._size >= FLUSH_SIZE or len(self._request.frames) >= FLUSH_FRAMES

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return self.seq == self.sent

    def frame(self, size: int = 0) -> pb.Frame:
        """Returns a new frame to be filled with about `size` bytes."""
        self.seq += 1
        self._size += _FRAME_SIZE + size
        self._allocate = None
        return self._request.frames.add(seq=self.seq)

    def allocate(self, handle: int, size: int) -> None:
        """Adds an allocation; those in a row share a frame."""
        if self._allocate is None:
            self._allocate = self.frame().allocate
        self._allocate.handles.append(handle)
        self._allocate.sizes.append(size)
        self._size += _BINDING_SIZE

    def free(self, buffers: Sequence[int] = (), programs: Sequence[int] = (), fences: Sequence[int] = ()) -> None:
        """Adds a frame that frees handles."""
        command = self.frame(_BINDING_SIZE * len(buffers)).free
        command.buffers.extend(buffers)
        command.programs.extend(programs)
        command.fences.extend(fences)

    def copy(self, frame: pb.Frame) -> int:
        """Adds a copy of a frame; returns its number."""
        added = self.frame(frame.ByteSize())
        added.MergeFrom(frame)
        added.seq = self.seq
        return self.seq

    def take_frames(self) -> list[pb.Frame]:
        """Returns the frames gathered, and forgets them."""
        frames = list(self._request.frames)
        self.take()
        return frames

    def take(self) -> bytes:
        """Returns the message of everything gathered."""
        message = self._request.SerializeToString()
        self._request = pb.SessionRequest()
        self._size, self._allocate, self.sent = 0, None, self.seq
        return message
