"""Chunks of a read that are put where they belong while the next ones come."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait

from umd_grpc.messages.chunks import Chunk


class Placed:
    """Chunks that another thread looks at and puts in their place, while the next ones come.

    Attributes:
        done: bytes that are in place.
    """

    def __init__(self, ahead: Callable[..., Future[int]], into: memoryview, done: int) -> None:
        self._ahead, self._into = ahead, into
        self._under_way: Future[int] | None = None
        self.done = done

    def add(self, chunk: Chunk) -> None:
        """Takes the next chunk, once the one before is in place.

        Raises:
            DecodeError: that one was damaged, or this one does not follow it.
            DeviceLostError: the device was closed meanwhile.
        """
        chunk.check_order(self.settle(), len(self._into))
        self._under_way = self._ahead(_place, chunk, self._into)

    def settle(self) -> int:
        """Returns how many bytes are in place, when nothing is under way any more.

        Raises:
            DecodeError: what was under way was damaged.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self.done += under_way.result()
        return self.done

    def leave(self) -> None:
        """Returns when nothing is written any more, whatever came of it."""
        if self._under_way is not None:
            wait([self._under_way])


def _place(chunk: Chunk, into: memoryview) -> int:
    """Returns the size of a chunk that was found whole and put in its place."""
    chunk.check_whole()
    into[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data
    return len(chunk.data)
