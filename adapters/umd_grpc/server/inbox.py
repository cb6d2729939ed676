"""Messages of one session that have arrived: their frames are cut out one by one, as they are carried out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from umd_core.errors import UmdError
from umd_grpc.limits import Limits
from umd_grpc.messages.frames import cut_frames


class Inbox:
    """What a session has been sent and has not carried out.

    A message may have thousands of frames: cutting them all at once would keep others from the device for
    milliseconds.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._messages: deque[tuple[bytes, float, Sequence[bytes] | None]] = deque()
        self._frames: Iterator[bytes] | None = None
        self._next: bytes | None = None
        self._fault: UmdError | None = None

    def __bool__(self) -> bool:
        return bool(self._messages)

    @property
    def size(self) -> int:
        """Bytes of messages that are not over."""
        return sum(len(raw) for raw, _, _ in self._messages)

    @property
    def arrived(self) -> float:
        """When the first message came, by `time.monotonic`."""
        return self._messages[0][1]

    def add(self, raw: bytes, arrived: float, frames: Sequence[bytes] | None = None) -> None:
        """Adds a message, and its frames if they are known."""
        self._messages.append((raw, arrived, frames))

    def frame(self) -> bytes | None:
        """Returns the next frame of the first message, the same until it is `done`; None when there is no other.

        Raises:
            DecodeError, LimitError: what follows in the message cannot be read.
        """
        if self._fault is not None:
            raise self._fault
        if self._next is None:
            if self._frames is None:
                raw, _, frames = self._messages[0]
                self._frames = cut_frames(raw, self._limits) if frames is None else iter(frames)
            try:
                self._next = next(self._frames, None)
            except UmdError as error:
                self._fault = error
                raise
        return self._next

    @property
    def at_end(self) -> bool:
        """Whether the first message has no other frame, as far as can be read."""
        try:
            return self.frame() is None
        except UmdError:
            return False

    def done(self) -> None:
        """Goes on to the next frame."""
        self._next = None

    def end_message(self) -> int:
        """Forgets the first message; returns its size in bytes."""
        self._frames = self._next = self._fault = None
        return len(self._messages.popleft()[0])

    def clear(self) -> None:
        """Forgets everything."""
        self._messages.clear()
        self._frames = self._next = self._fault = None
