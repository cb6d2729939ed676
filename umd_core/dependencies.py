"""Which command must wait for which: every read-after-write, write-after-read and write-after-write by byte range."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any

from umd_core.commands import WRITE

WINDOW = 512
"""Dependencies are transitively reduced over this many commands back; what is left further back is harmless."""
_MASK = (1 << WINDOW) - 1
NOBODY = -1

_Segment = list[Any]
"""[low, high, last writer, readers since]"""


class Hazards:
    """Byte ranges of memory objects, with the commands that last wrote and since read them.

    Commands are numbered upward. `barrier` is the number of the last barrier: everything before it is ordered already.
    """

    def __init__(self) -> None:
        self._segments: dict[int, list[_Segment]] = {}
        self._ancestors: dict[int, int] = {}
        self.barrier = NOBODY

    def depend(self, command: int, refs: Iterable[tuple[int, int, int, int]]) -> list[int]:
        """Returns the commands that `command` must wait for, ascending, transitively reduced, and records its accesses.

        `refs` are (memory object, access, offset, length). Reads are looked up before writes.
        """
        found: set[int] = set()
        writes = []
        for ref in refs:
            memory, access, offset, length = ref
            if not length:
                continue
            if access & WRITE:
                writes.append((memory, offset, offset + length))
            else:
                self._read(command, memory, offset, offset + length, found)
        for memory, low, high in writes:
            self._write(command, memory, low, high, found)
        found.discard(command)
        return self._reduce(command, found) if found else []

    def _read(self, command: int, memory: int, low: int, high: int, found: set[int]) -> None:
        segments = self._segments.setdefault(memory, [])
        if len(segments) == 1 and segments[0][0] == low and segments[0][1] == high:
            segment = segments[0]
            if segment[2] > self.barrier:
                found.add(segment[2])
            segment[3].append(command)
            return
        at, stop = _carve(segments, low, high)
        position = low
        while at < stop:
            segment = segments[at]
            if segment[0] > position:
                segments.insert(at, [position, segment[0], NOBODY, [command]])
                at, stop = at + 1, stop + 1
            if segment[2] > self.barrier:
                found.add(segment[2])
            segment[3].append(command)
            position = segment[1]
            at += 1
        if position < high:
            segments.insert(at, [position, high, NOBODY, [command]])

    def _write(self, command: int, memory: int, low: int, high: int, found: set[int]) -> None:
        segments = self._segments.setdefault(memory, [])
        at, stop = _carve(segments, low, high)
        for segment in segments[at:stop]:
            if segment[2] > self.barrier:
                found.add(segment[2])
            found.update(reader for reader in segment[3] if reader > self.barrier)
        segments[at:stop] = [[low, high, command, []]]

    def _reduce(self, command: int, found: set[int]) -> list[int]:
        kept = []
        covered = 0
        for dependency in sorted(found, reverse=True):
            distance = command - 1 - dependency
            if distance < WINDOW:
                if covered >> distance & 1:
                    continue
                covered |= 1 << distance | self._ancestors.get(dependency, 0) << distance + 1
            kept.append(dependency)
        self._ancestors[command] = covered & _MASK
        if len(self._ancestors) > 2 * WINDOW:
            self._ancestors = {c: a for c, a in self._ancestors.items() if command - c < WINDOW}
        kept.reverse()
        return kept


def _carve(segments: list[_Segment], low: int, high: int) -> tuple[int, int]:
    """Splits segments at `low` and `high`; returns the index range of those inside."""
    # a list is less than one that it begins: [low + 1] stands before the first segment that begins behind `low`
    at = bisect.bisect_left(segments, [low + 1]) - 1
    if at >= 0 and segments[at][1] > low:
        segment = segments[at]
        if segment[0] < low:
            before = [segment[0], low, segment[2], segment[3][:]]
            segments[at : at + 1] = [before, [low, *segment[1:3], segment[3][:]]]
            at += 1
    else:
        at += 1
    stop = bisect.bisect_left(segments, [high], lo=at)
    if stop > at and segments[stop - 1][1] > high:
        segment = segments[stop - 1]
        before = [segment[0], high, segment[2], segment[3][:]]
        segments[stop - 1 : stop] = [before, [high, *segment[1:3], segment[3][:]]]
    return at, stop
