"""Is a buffer valid, and does it say everything that must wait for something else?"""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from umd_core.commands import READ, WRITE, Barrier, Command, CommandBuffer, Ref, refs_of
from umd_core.encoding.decode import UNLIMITED_WORK, Source, decode
from umd_core.encoding.layout import LIBRARY_LIMITS, Limits
from umd_core.errors import DecodeError

_BATCH = 4096
"""Conflicts whose order is looked up at once; bounds the memory."""


class MissingDependency(NamedTuple):
    """Two commands that touch the same bytes, one writing, and that nothing orders.

    Attributes:
        first, second: the commands, in program order.
        hazard: "read-after-write", "write-after-read" or "write-after-write".
        slot: of the second one's ref.
        low, high: the bytes [low, high) of that slot.
    """

    first: int
    second: int
    hazard: str
    slot: int
    low: int
    high: int

    def __str__(self) -> str:
        return (
            f"command {self.second} does not wait for command {self.first}: {self.hazard} of slot {self.slot}, "
            f"bytes {self.low} to {self.high}"
        )


@dataclass(slots=True)
class Report:
    """What `verify` found.

    Attributes:
        error: the first broken rule, None when the bytes are valid.
        missing: dependencies that are not there.
        commands: how many commands were looked at.
        conflicts: pairs of commands that must be ordered.
    """

    error: DecodeError | None = None
    missing: list[MissingDependency] = field(default_factory=list)
    commands: int = 0
    conflicts: int = 0

    @property
    def ok(self) -> bool:
        """Whether the bytes are valid and every dependency is there."""
        return self.error is None and not self.missing

    def __str__(self) -> str:
        if self.error is not None:
            return str(self.error)
        lines = "\n".join(map(str, self.missing))
        return lines or f"valid: {self.commands} commands, {self.conflicts} conflicts, all ordered"


def verify(source: Source, limits: Limits = LIBRARY_LIMITS, max_work: int = UNLIMITED_WORK) -> Report:
    """Returns the first broken rule, or the missing dependencies of a valid buffer."""
    try:
        return verify_dependencies(decode(source, limits, max_work))
    except DecodeError as error:
        return Report(error)


def verify_dependencies(cb: CommandBuffer) -> Report:
    """Returns the missing dependencies of a command buffer."""
    conflicts = list(_conflicts(cb))
    missing = _unordered(cb.commands, conflicts)
    return Report(missing=missing, commands=len(cb.commands), conflicts=len(conflicts))


def _unordered(commands: Sequence[Command], conflicts: Sequence[MissingDependency]) -> list[MissingDependency]:
    """Returns the conflicts that neither a path of deps nor a barrier orders."""
    deps = [command.deps for command in commands]
    epochs = list(itertools.accumulate(isinstance(command, Barrier) for command in commands))
    open_conflicts = [c for c in conflicts if epochs[c.first] == epochs[c.second] and c.first not in deps[c.second]]
    open_conflicts.sort()
    missing = []
    while open_conflicts:
        firsts = sorted({c.first for c in open_conflicts[:_BATCH]})
        end = bisect.bisect_right(open_conflicts, firsts[-1], key=lambda c: c.first)
        missing += _without_path(deps, firsts, open_conflicts[:end])
        del open_conflicts[:end]
    return sorted(missing, key=lambda c: (c.second, c.first))


def _without_path(
    deps: Sequence[Sequence[int]], firsts: Sequence[int], conflicts: Sequence[MissingDependency]
) -> list[MissingDependency]:
    """Returns the conflicts whose second command no path of deps leads to from the first.

    One pass in program order: each command carries the set of `firsts` before it, as the bits of an integer.
    """
    bits = {first: 1 << at for at, first in enumerate(firsts)}
    asked: dict[int, list[MissingDependency]] = {}
    for conflict in conflicts:
        asked.setdefault(conflict.second, []).append(conflict)
    start, stop = firsts[0], max(asked) + 1
    waiting = collections.Counter(itertools.chain.from_iterable(deps[start:stop]))
    before: dict[int, int] = {}
    missing = []
    for command in range(start, stop):
        reached = 0
        for dep in deps[command]:
            reached |= before.get(dep, 0)
            waiting[dep] -= 1
            if not waiting[dep]:
                before.pop(dep, None)
        missing += [c for c in asked.get(command, ()) if not reached & bits[c.first]]
        reached |= bits.get(command, 0)
        if reached and waiting[command]:
            before[command] = reached
    return missing


class _Segment:
    """Bytes [low, high): their last writer (-1: none) and who has read them since."""

    __slots__ = ("high", "low", "readers", "writer")

    def __init__(self, low: int, high: int, writer: int, readers: list[int]) -> None:
        self.low, self.high, self.writer, self.readers = low, high, writer, readers

    def part(self, low: int, high: int) -> _Segment:
        """Returns a part of it."""
        return _Segment(low, high, self.writer, self.readers.copy())


def _conflicts(cb: CommandBuffer) -> Iterator[MissingDependency]:
    """Yields each pair of commands that must be ordered, once, unless pairs between them imply it."""
    memory = [-slot.alias_group or at for at, slot in enumerate(cb.slots)]
    segments: dict[int, list[_Segment]] = {}
    for index, command in enumerate(cb.commands):
        seen: set[int] = set()
        for ref in refs_of(command):
            if ref.length:
                for found in _access(segments.setdefault(memory[ref.slot], []), index, ref):
                    if found.first not in seen and found.first != index:
                        seen.add(found.first)
                        yield found


def _access(segments: list[_Segment], index: int, ref: Ref) -> list[MissingDependency]:
    """Records an access in the segments of its memory; returns what it conflicts with."""
    low, high, writes = ref.offset, ref.offset + ref.length, bool(ref.access & WRITE)
    first = bisect.bisect_right(segments, low, key=lambda segment: segment.high)
    last = bisect.bisect_left(segments, high, key=lambda segment: segment.low)
    found: list[MissingDependency] = []
    inside: list[_Segment] = []
    outside: list[_Segment] = []
    for segment in segments[first:last]:
        start, end = max(segment.low, low), min(segment.high, high)
        outside += [segment.part(a, b) for a, b in ((segment.low, start), (end, segment.high)) if a < b]
        inside.append(segment if (segment.low, segment.high) == (start, end) else segment.part(start, end))
        if segment.writer >= 0:
            hazard = "read-after-write" if ref.access & READ else "write-after-write"
            found.append(MissingDependency(segment.writer, index, hazard, ref.slot, start, end))
        if writes:
            hazard = "write-after-read"
            found += [MissingDependency(reader, index, hazard, ref.slot, start, end) for reader in segment.readers]
    merged = [_Segment(low, high, index, [])] if writes else _read(inside, index, low, high)
    segments[first:last] = sorted(outside + merged, key=lambda segment: segment.low)
    return found


def _read(inside: list[_Segment], index: int, low: int, high: int) -> list[_Segment]:
    """Returns segments that cover [low, high) without gaps, each read by `index`."""
    covering = []
    cursor = low
    for segment in inside:
        if cursor < segment.low:
            covering.append(_Segment(cursor, segment.low, -1, [index]))
        segment.readers.append(index)
        covering.append(segment)
        cursor = segment.high
    if cursor < high:
        covering.append(_Segment(cursor, high, -1, [index]))
    return covering
