"""Elementwise launches that follow each other become one, so that what passes between them never reaches memory.

A launch joins its consumer where nobody else sees its result, the consumer reads exactly the elements that it wrote,
and nothing in between overwrites what it reads. It may have written over what it read. Numbers that are the same for
every element become constants of the program.
"""

from __future__ import annotations

import bisect
import itertools
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from umd_core.commands import WRITE, DebugInfo
from umd_core.dtypes import DType
from umd_core.errors import LimitError
from umd_core.kernels import PRIMITIVES, Box, chain
from umd_core.linking import Linked, LinkedStep
from umd_core.recorder import Launch, Recorder, Supports
from umd_core.views import View

MOST = 32
"""Launches that one chain may be made of: copies among them are no steps."""
Strides = tuple[int, ...]


class Place(NamedTuple):
    """Where an operand lies: buffer, first element, and a stride for each extent of its launch, in elements."""

    buffer: int
    offset: int
    strides: Strides


@dataclass(frozen=True, slots=True)
class Piece:
    """A launch that may be part of a chain.

    Attributes:
        at: index of its step.
        shape: its extents other than 1.
        words: its program.
        inputs: places, or numbers that are the same for every element, by operand.
    """

    at: int
    dtype: DType
    shape: tuple[int, ...]
    words: tuple[str, ...]
    inputs: Mapping[str, Place | float]
    out: Place

    def reads(self) -> set[int]:
        """Returns the buffers that it reads."""
        return {place.buffer for place in self.inputs.values() if isinstance(place, Place)}


def fuse(linked: Linked, supports: Supports | None) -> None:
    """Replaces launches of a linked program by chains, where the device has that kernel.

    Args:
        linked: its steps and debug entries are changed.
        supports: whether the device has a kernel for given types; None: it has all.
    """
    pieces = {piece.at: piece for at, step in enumerate(linked.steps) if (piece := _piece(linked, at, step, supports))}
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


def _piece(linked: Linked, at: int, linked_step: LinkedStep, supports: Supports | None) -> Piece | None:
    """Returns a step as a piece; None when it is no elementwise launch of one float type."""
    step = linked_step.step
    if not isinstance(step, Launch) or step.record.row.family != "expression":
        return None
    row, dtype = step.record.row, step.record.types[0]
    words = tuple(row.program.split())
    one_type = all(operand.type == "T" for operand in row.operands)
    if not (one_type and dtype.is_float and all(w in chain.CODES for w in words if w in PRIMITIVES)):
        return None
    if supports is not None and not supports(chain.NAME, (dtype,)):
        return None
    flat = step.record.struct.unpack(step.parameters)
    extents = [flat[extent] for extent, _ in step.record.boxes[-1].axes]
    kept = [axis for axis, extent in enumerate(extents) if extent != 1]
    places = {
        box.operand.name: _place(box, ref, flat, kept)
        for box, ref in zip(step.record.boxes, linked_step.refs, strict=True)
    }
    out = places.pop("out")
    inputs: dict[str, Place | float] = {n: _number(linked, dtype, p) for n, p in places.items()}
    return Piece(at, dtype, tuple(extents[axis] for axis in kept), words, inputs, out)


def _place(box: Box, ref: tuple[int, int, int, int], flat: Sequence[int], kept: Sequence[int]) -> Place:
    offset = ref[2] // box.dtype.size + flat[box.offset]
    return Place(ref[0], offset, tuple(flat[box.axes[axis][1]] for axis in kept))


def _number(linked: Linked, dtype: DType, place: Place) -> Place | float:
    """Returns the number that a constant of one element holds, else the place."""
    data = linked.constants.get(place.buffer)
    if data is None or any(place.strides):
        return place
    return float(np.frombuffer(data, dtype.numpy, 1, place.offset * dtype.size)[0])


# groups


class _Groups:
    """Grows a chain backwards from its last launch."""

    def __init__(self, linked: Linked, pieces: Mapping[int, Piece]) -> None:
        self._linked, self._pieces = linked, pieces
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
                fused = _Chain(last, [self._pieces[m] for m in sorted(more - {last.at})], self._memory).launch()
            if fused is None:
                refused.add(at)
            else:
                members, best = more, fused

    def _candidates(self, last: Piece, members: set[int], barred: set[int]) -> set[int]:
        """Returns the launches that made what members read, and whose results nobody else sees."""
        found: set[int] = set()
        for member in members:
            for buffer in self._pieces[member].reads():
                before = bisect.bisect_left(self._writers[buffer], member)
                writer = self._writers[buffer][before - 1] if before else -1
                if writer in self._pieces and self._is_private(buffer, writer, last, members):
                    found.add(writer)
        return found - members - barred

    def _is_private(self, buffer: int, writer: int, last: Piece, members: set[int]) -> bool:
        """Returns whether only members see what a launch wrote; after them it is overwritten, or not looked at."""
        if buffer not in self._linked.transients:
            return False
        later = self._uses[buffer][bisect.bisect_right(self._uses[buffer], writer) :]
        return all(at in members if at <= last.at else last.out.buffer == buffer for at in later)

    def _may_move(self, piece: Piece, to: int, members: set[int]) -> bool:
        """Returns whether what a piece reads is still there at a later step, once members write no more."""
        for buffer in piece.reads():
            written = self._written[self._memory(buffer)]
            between = written[bisect.bisect_right(written, piece.at) : bisect.bisect_left(written, to)]
            if not members.issuperset(between):
                return False
        return True


# chains


class _Chain:
    """One launch in the making.

    Args:
        last: the launch whose result it writes.
        producers: the launches that it takes in, in order.
        memory: returns what stands for the memory of a buffer.
    """

    def __init__(self, last: Piece, producers: Sequence[Piece], memory: Callable[[int], int]) -> None:
        self._last, self._producers, self._memory = last, producers, memory
        self._cuts = _cuts([last.shape, *(piece.shape for piece in producers)])
        self._tokens: list[int] = []
        self._operands: list[Place] = []
        self._constants: list[bytes] = []
        self._results: dict[int, int] = {}
        self._steps = 0

    def launch(self) -> Launch | None:
        """Returns the launch; None when the pieces do not fit together, or are too many for one."""
        if not self._cuts or not self._emit(self._last) or len(self._tokens) > chain.TOKENS:
            return None
        out = self._spread(self._last, self._last.out)
        places = [*self._operands, *(self._spread(piece, piece.out) for piece in self._producers)]
        fits = all(p[1:] == out[1:] for p in places if self._memory(p.buffer) == self._memory(out.buffer))
        if not fits or not 0 < len(self._operands) <= chain.OPERANDS or len(self._constants) > chain.CONSTANTS:
            return None
        return None if chain.fault_of(self._tokens) else self._record(out)

    def _record(self, out: Place) -> Launch | None:
        shape = tuple(b // a for a, b in itertools.pairwise(self._cuts))[::-1]
        dtype = self._last.dtype
        repeated = self._operands + self._operands[:1] * (chain.OPERANDS - len(self._operands))
        views = [View(p.buffer, dtype, shape, p.strides, p.offset) for p in (*repeated, out)]
        operands = {operand.name: view for operand, view in zip(chain.ROW.operands, views, strict=True)}
        numbers = [*self._constants, *[_bits(0.0)] * (chain.CONSTANTS - len(self._constants))]
        constants = tuple(struct.unpack("<d", number)[0] for number in numbers)
        recorder = Recorder(())
        try:
            fields = {"program": chain.padded(self._tokens), "constants": constants}
            recorder.launch(chain.NAME, {"extents": shape}, operands, fields)
        except LimitError:  # more axes than a launch can have
            return None
        (step,) = recorder.steps
        return step if isinstance(step, Launch) else None

    def _emit(self, piece: Piece) -> bool:
        """Appends a piece's program, its producers' in the places of their results; returns whether all fits."""
        for word in piece.words:
            value = piece.inputs.get(word)
            if word in PRIMITIVES:
                self._tokens.append(chain.CODES[word])
                self._steps += 1
            elif not isinstance(value, Place):
                self._tokens.append(
                    chain.CONSTANT + _index(self._constants, _bits(float(word) if value is None else value))
                )
            elif (producer := self._producer(piece, value)) is not None:
                if not self._push_result(piece, value, producer):
                    return False
            else:
                self._tokens.append(chain.OPERAND + _index(self._operands, self._spread(piece, value)))
        return True

    def _producer(self, piece: Piece, place: Place) -> Piece | None:
        """Returns the member that last wrote what a piece reads there."""
        found = [p for p in self._producers if p.at < piece.at and p.out.buffer == place.buffer]
        return found[-1] if found else None

    def _push_result(self, piece: Piece, place: Place, producer: Piece) -> bool:
        """Appends what pushes a producer's result; returns whether `piece` reads exactly what it wrote."""
        if self._spread(piece, place) != self._spread(producer, producer.out):
            return False
        if producer.at in self._results:
            self._tokens.append(self._results[producer.at])
            return True
        if not self._emit(producer):
            return False
        is_step = self._tokens[-1] in chain.BY_CODE
        self._results[producer.at] = chain.RESULT + self._steps - 1 if is_step else self._tokens[-1]
        return True

    def _spread(self, piece: Piece, place: Place) -> Place:
        """Returns a place with a stride for each extent of the whole chain."""
        strides: list[int] = []
        begin = 1
        for extent, stride in zip(reversed(piece.shape), reversed(place.strides), strict=True):
            end = begin * extent
            strides += [stride * (cut // begin) for cut in self._cuts if begin <= cut < end]
            begin = end
        return place._replace(strides=tuple(reversed(strides)))


def _index(known: list[Any], value: object) -> int:
    """Returns where a value stands in a list; appends it when it is new."""
    if value not in known:
        known.append(value)
    return known.index(value)


def _bits(number: float) -> bytes:
    return struct.pack("<d", number)


def _cuts(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Returns the products of trailing extents of one shape that all of these are merged from; empty if there is none.

    Its extents are the quotients of neighbours, innermost first.
    """
    counts = {math.prod(shape) for shape in shapes}
    if len(counts) != 1:
        return []
    cuts = sorted({math.prod(shape[axis:]) for shape in shapes for axis in range(len(shape) + 1)})
    return cuts if all(b % a == 0 for a, b in itertools.pairwise(cuts)) else []
