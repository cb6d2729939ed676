"""Status words: where a kernel notes that an index of its data was out of range."""

from __future__ import annotations

import struct
from collections import deque

from umd_core.errors import IndexRangeError
from umd_cuda.driver import Call, Driver, Memory
from umd_cuda.pool import Pool

WORD = struct.Struct("<IIq")
"""A code (0: all is well), 0, and the index that was out of range."""
_CLEAR = bytes(WORD.size)
_WORDS = 256


class StatusWords:
    """The status words of one device: each launch that may fail has its own."""

    def __init__(self, driver: Driver, pool: Pool, device: str) -> None:
        self._driver, self._pool, self._device = driver, pool, device
        self._free: deque[tuple[Memory, int]] = deque()
        self._blocks: list[Memory] = []

    def take(self) -> tuple[Memory, int]:
        """Returns the memory and the byte offset of a word that is clear."""
        if not self._free:
            block = self._pool.allocate(_WORDS * WORD.size, self._device)
            self._driver.synchronise()  # launches of any queue may use a word next
            self._blocks.append(block)
            self._free.extend((block, at) for at in range(0, _WORDS * WORD.size, WORD.size))
        return self._free.popleft()

    def give_back(self, place: tuple[Memory, int]) -> None:
        """Takes a word back; callable from a finalizer, on any thread."""
        self._free.append(place)

    def value(self, place: tuple[Memory, int]) -> int | None:
        """Returns the index that a launch found out of range, None when there was none; the word is clear after."""
        memory, at = place
        code, _, value = WORD.unpack(self._driver.read(memory, at, WORD.size))
        if not code:
            return None
        self._driver.write(memory, at, memoryview(_CLEAR))
        return int(value)

    def close(self) -> None:
        """Gives the memory back."""
        for block in self._blocks:
            self._pool.free(block)
        self._blocks.clear()
        self._free.clear()


class CheckedCall:
    """A launch whose status word is looked at as soon as the work is done.

    Attributes:
        deferred: the word is left for later: work is being captured.
    """

    __slots__ = ("_extent", "_kernel", "_launch", "_place", "_words", "deferred")

    def __init__(self, words: StatusWords, place: tuple[Memory, int], launch: Call, kernel: str, extent: int) -> None:
        self._words, self._place, self._launch = words, place, launch
        self._kernel, self._extent = kernel, extent
        self.deferred: bool = False

    def __call__(self) -> None:
        self._launch()
        if not self.deferred:
            self.check()

    def check(self) -> None:
        """Looks at the word.

        Raises:
            IndexRangeError: the launch found an index out of range.
        """
        value = self._words.value(self._place)
        if value is not None:
            raise IndexRangeError(self._kernel, -1, value, self._extent)

    def __del__(self) -> None:
        self._words.give_back(self._place)
