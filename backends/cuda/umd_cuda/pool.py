"""Pool: freed blocks are kept and handed out again, zeroed, so that no owner reads what another left."""

from __future__ import annotations

from umd_core.errors import OutOfMemoryError
from umd_cuda.driver import Driver, DriverMemoryError, Memory

LEAST = 512
STEPS = 4
"""Block sizes in each octave: at most a fifth of a block is unused."""


def block_size(size: int) -> int:
    """Returns the size of the block that serves a request of `size` bytes."""
    if size <= LEAST:
        return LEAST
    step = max(1 << (size - 1).bit_length() - 1, LEAST) // STEPS
    return -(-size // step) * step


class Pool:
    """Blocks of one driver, by size.

    Attributes:
        in_use: bytes of blocks that are handed out.
        kept: bytes of blocks that wait to be handed out again.
        limit: when both together pass it, the blocks that wait are given back.
    """

    limit: int

    def __init__(self, driver: Driver, limit: int) -> None:
        self._driver, self.limit = driver, limit
        self._free: dict[int, list[Memory]] = {}
        self.in_use: int = 0
        self.kept: int = 0

    @property
    def largest_free(self) -> int:
        """Size of the largest block that waits, 0 when none does."""
        return max((size for size, blocks in self._free.items() if blocks), default=0)

    def allocate(self, size: int, device: str) -> Memory:
        """Returns a zeroed block of at least `size` bytes; kept blocks are given up before it fails.

        Raises:
            OutOfMemoryError: there is no room.
        """
        wanted = block_size(size)
        waiting = self._free.get(wanted)
        if waiting:
            block = waiting.pop()
            self.kept -= wanted
        else:
            block = self._fresh(wanted, size, device)
        self.in_use += wanted
        self._driver.fill(block, 0, b"\0", wanted)
        return block

    def _fresh(self, wanted: int, size: int, device: str) -> Memory:
        if self.in_use + self.kept + wanted > self.limit:
            self.trim()
        try:
            return self._driver.allocate(wanted)
        except DriverMemoryError:
            self.trim()
        try:
            return self._driver.allocate(wanted)
        except DriverMemoryError as error:
            free = self._driver.memory_info().free
            raise OutOfMemoryError(size, self.in_use, self.limit, free, device=device) from error

    def free(self, block: Memory) -> None:
        """Takes a block back."""
        self.in_use -= block.size
        self.kept += block.size
        self._free.setdefault(block.size, []).append(block)

    def trim(self, limit: int = 0) -> None:
        """Gives blocks that wait back to the driver, the largest first, until at most `limit` bytes wait."""
        for size in sorted(self._free, reverse=True):
            blocks = self._free[size]
            while blocks and self.kept > limit:
                self.kept -= size
                self._driver.free(blocks.pop())
            if not blocks:
                del self._free[size]
