"""Elementwise launches as pieces of a chain, and the one launch that does the work of several of them."""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from umd_core.dtypes import DType
from umd_core.errors import LimitError
from umd_core.kernels import PRIMITIVES, Box, KernelRecord, chain
from umd_core.recorder import Launch, Recorder
from umd_core.views import View

Strides = tuple[int, ...]
_CHAINS = 4096
"""Chains that are remembered, and launches of which it is remembered what kind of piece they are."""


class Place(NamedTuple):
    """Where an operand lies: buffer, first element, and a stride for each extent of its launch, in elements."""

    buffer: int
    offset: int
    strides: Strides


Number = bytes
"""A number that is the same for every element, as the eight bytes of a double: -0.0 is another number than 0.0."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What the parameters of a launch say that may be part of a chain. `form_of` makes one object for equal launches.

    Attributes:
        dtype: element type of all its operands.
        shape: its extents other than 1.
        words: its program.
        names: the operands that it reads.
        places: first element and strides of those, and last of the one that it writes.
    """

    dtype: DType
    shape: tuple[int, ...]
    words: tuple[str, ...]
    names: tuple[str, ...]
    places: tuple[tuple[int, Strides], ...]


class Piece(NamedTuple):
    """A launch that may be part of a chain.

    Attributes:
        at: index of its step.
        form: what its parameters say.
        inputs: places, or numbers that are the same for every element, one for each of the form's names.
        out: what it writes.
    """

    at: int
    form: Form
    inputs: tuple[Place | Number, ...]
    out: Place


@functools.lru_cache(_CHAINS)
def form_of(record: KernelRecord, parameters: bytes) -> Form | None:
    """Returns the form of a launch; None when it is no elementwise launch of one float type, whatever it works on."""
    row, dtype = record.row, record.types[0]
    words = tuple(row.program.split())
    one_type = all(operand.type == "T" for operand in row.operands)
    if not (one_type and dtype.is_float and all(w in chain.CODES for w in words if w in PRIMITIVES)):
        return None
    flat = record.struct.unpack(parameters)
    extents = [flat[extent] for extent, _ in record.boxes[-1].axes]
    kept = [axis for axis, extent in enumerate(extents) if extent != 1]
    names = tuple(box.operand.name for box in record.boxes[:-1])
    places = tuple((flat[box.offset], _strides(box, flat, kept)) for box in record.boxes)
    return Form(dtype, tuple(extents[axis] for axis in kept), words, names, places)


def _strides(box: Box, flat: Sequence[int], kept: Sequence[int]) -> Strides:
    return tuple(flat[box.axes[axis][1]] for axis in kept)


def chained(pieces: Sequence[Piece], memory: Callable[[int], int]) -> Launch | None:
    """Returns the launch that does what these do; None when they do not fit together, or are too many for one.

    Args:
        pieces: in program order; the last one's result is what the launch writes.
        memory: returns what stands for the memory of a buffer.
    """
    numbers: dict[int, int] = {}
    alike = tuple([_renumbered(piece, at, numbers) for at, piece in enumerate(pieces)])
    buffers = list(numbers)
    memories: dict[int, int] = {}
    found = _launch(alike, tuple([memories.setdefault(memory(b), len(memories)) for b in buffers]))
    if found is None:
        return None
    refs = tuple([(buffers[buffer], access, offset, length) for buffer, access, offset, length in found.refs])
    return found._replace(refs=refs)


def _renumbered(piece: Piece, at: int, numbers: dict[int, int]) -> Piece:
    """Returns a piece with its buffers, and itself, numbered in the order in which they come."""
    inputs = tuple([p if isinstance(p, Number) else _numbered(p, numbers) for p in piece.inputs])
    return Piece(at, piece.form, inputs, _numbered(piece.out, numbers))


def _numbered(place: Place, numbers: dict[int, int]) -> Place:
    return Place(numbers.setdefault(place.buffer, len(numbers)), place.offset, place.strides)


@functools.lru_cache(_CHAINS)
def _launch(pieces: tuple[Piece, ...], memories: tuple[int, ...]) -> Launch | None:
    """Returns `chained` of pieces whose buffers are 0, 1, …, lying in these memories."""
    return _Chain(pieces[-1], pieces[:-1], memories).launch()


class _Chain:
    """One launch in the making.

    Args:
        last: the launch whose result it writes.
        producers: the launches that it takes in, in order.
        memories: what stands for the memory of each buffer.
    """

    def __init__(self, last: Piece, producers: Sequence[Piece], memories: Sequence[int]) -> None:
        self._last, self._producers, self._memories = last, producers, memories
        self._cuts = _cuts([last.form.shape, *(piece.form.shape for piece in producers)])
        self._tokens: list[int] = []
        self._operands: list[Place] = []
        self._constants: list[Number] = []
        self._results: dict[int, int] = {}
        self._steps = 0

    def launch(self) -> Launch | None:
        """Returns the launch; None when the pieces do not fit together, or are too many for one."""
        if not self._cuts or not self._emit(self._last) or len(self._tokens) > chain.TOKENS:
            return None
        out = self._spread(self._last, self._last.out)
        places = [*self._operands, *(self._spread(piece, piece.out) for piece in self._producers)]
        memory = self._memories[out.buffer]
        fits = all(p[1:] == out[1:] for p in places if self._memories[p.buffer] == memory)
        if not fits or not 0 < len(self._operands) <= chain.OPERANDS or len(self._constants) > chain.CONSTANTS:
            return None
        return None if chain.fault_of(self._tokens) else self._record(out)

    def _record(self, out: Place) -> Launch | None:
        shape = tuple(b // a for a, b in itertools.pairwise(self._cuts))[::-1]
        dtype = self._last.form.dtype
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
        inputs = dict(zip(piece.form.names, piece.inputs, strict=True))
        for word in piece.form.words:
            value = inputs.get(word)
            if word in PRIMITIVES:
                self._tokens.append(chain.CODES[word])
                self._steps += 1
            elif not isinstance(value, Place):
                number = _bits(float(word)) if value is None else value
                self._tokens.append(chain.CONSTANT + _index(self._constants, number))
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
        for extent, stride in zip(reversed(piece.form.shape), reversed(place.strides), strict=True):
            end = begin * extent
            strides += [stride * (cut // begin) for cut in self._cuts if begin <= cut < end]
            begin = end
        return place._replace(strides=tuple(reversed(strides)))


_Item = TypeVar("_Item", Place, Number)


def _index(known: list[_Item], value: _Item) -> int:
    """Returns where a value stands in a list; appends it when it is new."""
    if value not in known:
        known.append(value)
    return known.index(value)


def _bits(number: float) -> Number:
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
