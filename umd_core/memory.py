"""Transient memory: from lifetimes to offsets in one arena."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from umd_core.commands import ARENA_ALIGNMENT


class Transient(NamedTuple):
    """A buffer that lives from command `first` to command `last`, both included.

    `inherits` is the index of a transient that dies where this one is born and whose bytes it may take over (-1: none).
    """

    size: int
    first: int
    last: int
    inherits: int = -1


def plan(transients: Sequence[Transient], alignment: int = ARENA_ALIGNMENT) -> tuple[list[int], int]:
    """Returns the offset of each transient and the arena's size, in bytes.

    Best fit over free blocks in program order, in O(n log n). No two transients that live at the same time overlap,
    unless one inherits the other's bytes; the arena is never larger than the sum of all aligned sizes.
    """
    births: dict[int, list[int]] = {}
    deaths: dict[int, list[int]] = {}
    heirs = {t.inherits for t in transients if t.inherits >= 0}
    for index, transient in enumerate(transients):
        births.setdefault(transient.first, []).append(index)
        if index not in heirs:
            deaths.setdefault(transient.last, []).append(index)
    offsets = [0] * len(transients)
    owned = [0] * len(transients)
    free = _FreeBlocks()
    for moment in sorted({*births, *deaths}):
        for index in births.get(moment, ()):
            size, _, _, inherits = transients[index]
            if inherits >= 0:
                offsets[index], owned[index] = offsets[inherits], owned[inherits]
                continue
            owned[index] = -(-max(size, 1) // alignment) * alignment
            offsets[index] = free.take(owned[index])
        for index in deaths.get(moment, ()):
            free.give(offsets[index], owned[index])
    return offsets, free.top


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
