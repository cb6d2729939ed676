"""Transient memory: from lifetimes to offsets in one arena."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from umd_core.commands import ARENA_ALIGNMENT

MANY = 2048
"""Blocks up to which each is compared with those that lie already: a tenth of a second for all."""
_SLACK = 128
"""An arena is as good as the smallest possible one when it is no more than its 128th part larger."""


class Transient(NamedTuple):
    """A buffer that lives from command `first` to command `last`, both included.

    `inherits` is the index of a transient that dies where this one is born and whose bytes it may take over (-1: none).
    """

    size: int
    first: int
    last: int
    inherits: int = -1


class _Block(NamedTuple):
    """The bytes of a transient and of those that take them over one after another, from `first` to `last`."""

    size: int
    first: int
    last: int


def aligned(size: int, alignment: int = ARENA_ALIGNMENT) -> int:
    """Returns the bytes of arena that a transient of `size` bytes takes."""
    return -(-max(size, 1) // alignment) * alignment


def plan(transients: Sequence[Transient], alignment: int = ARENA_ALIGNMENT) -> tuple[list[int], int]:
    """Returns the offset of each transient and the arena's size, in bytes.

    No two transients that live at the same time overlap, unless one inherits the other's bytes; the arena is never
    larger than the sum of all aligned sizes. Where placing blocks in program order leaves gaps, the largest come first.
    """
    blocks, block_of = _blocks(transients, alignment)
    offsets, arena, live = _in_order(blocks)
    if arena > live + live // _SLACK and len(blocks) <= MANY:
        packed, least = _by_size(blocks)
        if least < arena:
            offsets, arena = packed, least
    return [offsets[block] for block in block_of], arena


def _blocks(transients: Sequence[Transient], alignment: int) -> tuple[list[_Block], list[int]]:
    """Returns the blocks, and which of them each transient lies in."""
    heirs = {t.inherits: index for index, t in enumerate(transients) if t.inherits >= 0}
    blocks: list[_Block] = []
    block_of = [0] * len(transients)
    for index, transient in enumerate(transients):
        if transient.inherits >= 0:
            continue
        member = last = index
        while member >= 0:
            block_of[member], last = len(blocks), member
            member = heirs.get(member, -1)
        blocks.append(_Block(aligned(transient.size, alignment), transient.first, transients[last].last))
    return blocks, block_of


def _in_order(blocks: Sequence[_Block]) -> tuple[list[int], int, int]:
    """Returns offsets, the end of all, and the most bytes that live at a time.

    Each in turn takes the free block that fits best, O(n log n).
    """
    moments: dict[int, tuple[list[int], list[int]]] = {}  # who is born, who dies
    for index, block in enumerate(blocks):
        moments.setdefault(block.first, ([], []))[0].append(index)
        moments.setdefault(block.last, ([], []))[1].append(index)
    offsets, free, live, peak = [0] * len(blocks), _FreeBlocks(), 0, 0
    for _, (births, deaths) in sorted(moments.items()):
        for index in births:
            offsets[index] = free.take(blocks[index].size)
            live += blocks[index].size
        peak = max(peak, live)
        for index in deaths:
            free.give(offsets[index], blocks[index].size)
            live -= blocks[index].size
    return offsets, free.top, peak


def _by_size(blocks: Sequence[_Block]) -> tuple[list[int], int]:
    """Returns offsets and the end of all.

    The largest first, each takes the lowest offset that is free while it lives, O(n²).
    """
    offsets, top = [0] * len(blocks), 0
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    for index in sorted(range(len(blocks)), key=lambda index: (-blocks[index].size, blocks[index].first)):
        size, first, last = blocks[index]
        offset = 0
        for low, high, born, dies in placed:
            if born <= last and first <= dies:
                if low - offset >= size:
                    break
                offset = max(offset, high)
        bisect.insort(placed, (offset, offset + size, first, last))
        offsets[index], top = offset, max(top, offset + size)
    return offsets, top


class _FreeBlocks:
    """Free blocks below `top`, by size and by neighbour."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_by_end: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Returns the offset of `size` bytes: the best fitting free block, else grown at the top."""
        at = bisect.bisect_left(self._by_size, (size, 0))
        if at < len(self._by_size):
            have, offset = self._by_size[at]
            self._remove(offset, have)
            if have > size:
                self._add(offset + size, have - size)
            return offset
        offset = self._start_by_end.get(self.top, self.top)
        if offset < self.top:
            self._remove(offset, self.top - offset)
        self.top = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Frees a block and joins it with free neighbours."""
        after = self._size_at.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        before = self._start_by_end.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            size += offset - before
            offset = before
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        bisect.insort(self._by_size, (size, offset))
        self._size_at[offset] = size
        self._start_by_end[offset + size] = offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect.bisect_left(self._by_size, (size, offset))]
        del self._size_at[offset]
        del self._start_by_end[offset + size]
