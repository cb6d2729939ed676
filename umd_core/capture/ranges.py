"""A set of byte ranges."""

from __future__ import annotations

import bisect
from collections.abc import Iterator


class Ranges:
    """Disjoint ranges [start, end), ascending; neighbours are merged."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def covers(self, start: int, end: int) -> bool:
        """Returns whether every byte of a range is in the set."""
        at = bisect.bisect_right(self._starts, start) - 1
        return start >= end or (at >= 0 and end <= self._ends[at])

    def meets(self, start: int, end: int) -> bool:
        """Returns whether a byte of a range is in the set."""
        at = bisect.bisect_right(self._ends, start)
        return start < end and at < len(self._starts) and self._starts[at] < end

    def add(self, start: int, end: int) -> None:
        """Puts a range in."""
        if start >= end:
            return
        first = bisect.bisect_left(self._ends, start)
        last = bisect.bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def remove(self, start: int, end: int) -> None:
        """Takes a range out."""
        if start >= end:
            return
        kept = [(s, e) for s, e in zip(self._starts, self._ends, strict=True) if e <= start or end <= s]
        for s, e in zip(self._starts, self._ends, strict=True):
            if s < end and start < e:
                kept += [(a, b) for a, b in ((s, start), (end, e)) if a < b]
        kept.sort()
        self._starts, self._ends = [s for s, _ in kept], [e for _, e in kept]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(tuple(self._starts), tuple(self._ends), strict=True)
