"""Elementwise launches that follow each other become one, so that what passes between them never reaches memory.

A launch joins its consumer where nobody else sees its result, the consumer reads exactly the elements that it wrote,
and nothing in between overwrites what it reads. It may have written over what it read. Numbers that are the same for
every element become constants of the program.
"""

from __future__ import annotations

import bisect
import functools
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from umd_core.chains import Number, Piece, Place, chained, form_of
from umd_core.commands import WRITE, DebugInfo
from umd_core.dtypes import DType
from umd_core.kernels import chain
from umd_core.linking import Linked, LinkedStep
from umd_core.recorder import Launch, Supports

MOST = 32
"""Launches that one chain may be made of: copies among them are no steps."""


def fuse(linked: Linked, supports: Supports | None) -> None:
    """Replaces launches of a linked program by chains, where the device has that kernel.

    Args:
        linked: its steps and debug entries are changed.
        supports: whether the device has a kernel for given types; None: it has all.
    """
    has_chains = functools.cache(lambda dtype: supports is None or supports(chain.NAME, (dtype,)))
    found = [_piece(linked, at, step, has_chains) for at, step in enumerate(linked.steps)]
    pieces = {piece.at: piece for piece in found if piece is not None}
    if len(pieces) < 2:
        return
    groups = _Groups(linked, pieces)
    chains: dict[int, LinkedStep] = {}
    gone: set[int] = set()
    for at in sorted(pieces, reverse=True):
        if at not in gone:
            members, fused = groups.grow(pieces[at], gone)
            if fused is not None:
                gone.update(members)
                chains[at] = _linked_step(linked, fused, sorted(members))
    linked.steps = [chains.get(at, step) for at, step in enumerate(linked.steps) if at not in gone or at in chains]


def _linked_step(linked: Linked, launch: Launch, members: Sequence[int]) -> LinkedStep:
    """Returns a chain as a step whose debug entry names what it was made of."""
    nodes = list(dict.fromkeys(linked.steps[at].node for at in members))
    infos = [linked.debug[node] for node in nodes]
    number = nodes[-1]
    if len(nodes) > 1:
        number = len(linked.debug)
        names = "+".join(info.node for info in infos if info.node)
        linked.debug.append(DebugInfo("+".join(info.op for info in infos), names, infos[-1].source))
    return LinkedStep(launch, launch.refs, number)


# pieces


def _piece(linked: Linked, at: int, linked_step: LinkedStep, has_chains: Callable[[DType], bool]) -> Piece | None:
    """Returns a step as a piece; None when it is none, or the device has no chains of its type."""
    step = linked_step.step
    if not isinstance(step, Launch) or step.record.row.family != "expression":
        return None
    form = form_of(step.record, step.parameters)
    if form is None or not has_chains(form.dtype):
        return None
    size = form.dtype.size
    places = [
        Place(ref[0], ref[2] // size + first, strides)
        for ref, (first, strides) in zip(linked_step.refs, form.places, strict=True)
    ]
    out = places.pop()
    return Piece(at, form, tuple([_number(linked, form.dtype, place) for place in places]), out)


def _number(linked: Linked, dtype: DType, place: Place) -> Place | Number:
    """Returns the number that a constant of one element holds, else the place."""
    data = linked.constants.get(place.buffer)
    if data is None or any(place.strides):
        return place
    return struct.pack("<d", np.frombuffer(data, dtype.numpy, 1, place.offset * dtype.size)[0])


# groups


class _Groups:
    """Grows a chain backwards from its last launch."""

    def __init__(self, linked: Linked, pieces: Mapping[int, Piece]) -> None:
        self._linked, self._pieces = linked, pieces
        self._reads = {
            at: frozenset([place.buffer for place in piece.inputs if isinstance(place, Place)])
            for at, piece in pieces.items()
        }
        self._uses: dict[int, list[int]] = defaultdict(list)  # by buffer, the steps that read or write it
        self._writers: dict[int, list[int]] = defaultdict(list)
        self._written: dict[int, list[int]] = defaultdict(list)  # as _writers, by memory
        for at, step in enumerate(linked.steps):
            for buffer, access, _, _ in step.refs:
                self._uses[buffer].append(at)
                if access & WRITE:
                    self._writers[buffer].append(at)
                    self._written[self._memory(buffer)].append(at)

    def _memory(self, buffer: int) -> int:
        return self._linked.same.get(buffer, buffer)

    def grow(self, last: Piece, gone: set[int]) -> tuple[set[int], Launch | None]:
        """Returns the steps that become one with `last`, and the launch of them all; None when there are no others."""
        members = {last.at}
        best: Launch | None = None
        refused: set[int] = set()
        while True:
            candidates = self._candidates(last, members, gone | refused)
            if not candidates or len(members) == MOST:
                return members, best
            at = max(candidates)
            more = members | {at}
            fused = None
            if self._may_move(self._pieces[at], last.at, more):
                fused = chained([self._pieces[m] for m in sorted(more)], self._memory)
            if fused is None:
                refused.add(at)
            else:
                members, best = more, fused

    def _candidates(self, last: Piece, members: set[int], barred: set[int]) -> set[int]:
        """Returns the launches that made what members read, and whose results nobody else sees."""
        found: set[int] = set()
        for member in members:
            for buffer in self._reads[member]:
                before = bisect.bisect_left(self._writers[buffer], member)
                writer = self._writers[buffer][before - 1] if before else -1
                if writer in self._pieces and self._is_private(buffer, writer, last, members):
                    found.add(writer)
        return found - members - barred

    def _is_private(self, buffer: int, writer: int, last: Piece, members: set[int]) -> bool:
        """Returns whether only members see what a launch wrote; after them it is overwritten, or not looked at."""
        if buffer not in self._linked.transients:
            return False
        uses = self._uses[buffer]
        for at in uses[bisect.bisect_right(uses, writer) :]:
            if at not in members if at <= last.at else last.out.buffer != buffer:
                return False
        return True

    def _may_move(self, piece: Piece, to: int, members: set[int]) -> bool:
        """Returns whether what a piece reads is still there at a later step, once members write no more."""
        for buffer in self._reads[piece.at]:
            written = self._written[self._memory(buffer)]
            between = written[bisect.bisect_right(written, piece.at) : bisect.bisect_left(written, to)]
            if not members.issuperset(between):
                return False
        return True
