"""Window geometry: which output meets which input through which position of the kernel, without ever padding.

Along each spatial axis, input = output · stride - pad + tap · dilation. Strides, dilations and pads come from untrusted
bytes and may be huge or 0, so ranges are clipped with Python integers, and loops run over the taps or over the outputs,
whichever are fewer.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_sim.lowerings.layout import Array, Launch

Index = tuple[Any, ...]


class Axis(NamedTuple):
    """One spatial axis of a windowed kernel."""

    output: int
    kernel: int
    input: int
    stride: int
    dilation: int
    pad: int

    @property
    def low(self) -> int:
        """The first position that a window covers."""
        return -self.pad

    @property
    def high(self) -> int:
        """One past the last position that a window covers."""
        return (self.output - 1) * self.stride + (self.kernel - 1) * self.dilation - self.pad + 1

    @property
    def inside(self) -> bool:
        """Whether every window lies in the input."""
        return self.low >= 0 and self.high <= self.input

    @property
    def swapped(self) -> Axis:
        """The axis with outputs and taps exchanged: the relation between them and the input is symmetric."""
        return Axis(self.kernel, self.output, self.input, self.dilation, self.stride, self.pad)

    def part(self, start: int, end: int) -> Axis:
        """Returns the axis for outputs [start, end) alone."""
        return self._replace(output=end - start, pad=self.pad - start * self.stride)

    def reaching(self, tap: int) -> tuple[int, int]:
        """Returns the outputs [low, high) whose window has this tap in the input; empty when low ≥ high."""
        start = tap * self.dilation - self.pad
        if self.stride == 0:
            return (0 if start >= 0 else self.output), (self.output if start < self.input else 0)
        low = 0 if start >= 0 else min(-(start // self.stride), self.output)
        high = min((self.input - 1 - start) // self.stride + 1, self.output)
        return low, high

    def inputs(self, tap: int, low: int, high: int) -> slice:
        """Returns the input positions of outputs [low, high) at a tap; a single one when the stride is 0."""
        start = low * self.stride + tap * self.dilation - self.pad
        if self.stride == 0:
            return slice(start, start + 1)
        return slice(start, start + (high - low - 1) * self.stride + 1, self.stride)

    def taps(self) -> range:
        """Returns the taps that may meet the input; with dilation 0, where all are one, every tap."""
        if self.dilation == 0:
            return range(self.kernel)
        least = self.pad - (self.output - 1) * self.stride
        first = max(0, -(-least // self.dilation))
        last = (self.input - 1 + self.pad) // self.dilation
        return range(first, min(last + 1, self.kernel))


class Meeting(NamedTuple):
    """A tap and the outputs that it serves, or an output and the taps that serve it, with the input positions between.

    Attributes:
        by_output: whether `one` is an output and `many` are taps.
        single: whether all of `many` meet in one input position.
    """

    by_output: bool
    one: int
    many: slice
    inputs: slice
    single: bool

    @property
    def number(self) -> int:
        """How many taps or outputs `many` are."""
        return int(self.many.stop) - int(self.many.start)

    @property
    def pair(self) -> tuple[int | slice, int | slice]:
        """The index into (tap, output)."""
        return (self.many, self.one) if self.by_output else (self.one, self.many)


def meetings(axis: Axis) -> list[Meeting]:
    """Returns everything that meets along one axis, in as few pieces as possible."""
    by_output = axis.output < axis.kernel
    by = axis.swapped if by_output else axis
    found = []
    for one in by.taps():
        low, high = by.reaching(one)
        if low < high:
            single = by.stride == 0 and high - low > 1
            found.append(Meeting(by_output, one, slice(low, high), by.inputs(one, low, high), single))
    return found


def all_meetings(axes: Sequence[Axis]) -> Iterator[tuple[Index, tuple[slice, ...], tuple[bool, ...]]]:
    """Yields, for every combination of the axes' meetings, an index, slices, and which axes are `single`.

    The index is into (tap 0, output 0, tap 1, output 1, …), the slices into the input.
    """
    for combination in itertools.product(*(meetings(axis) for axis in axes)):
        pairs = tuple(itertools.chain.from_iterable(m.pair for m in combination))
        yield pairs, tuple(m.inputs for m in combination), tuple(m.single for m in combination)


def at(dimension: int, where: Any) -> tuple[Any, ...]:
    """Returns an index that picks along one axis."""
    return (*(slice(None),) * dimension, where)


class Arrival(NamedTuple):
    """A tap's outputs along one axis: those that it reaches first, and those that an earlier tap has reached."""

    tap: int
    first: tuple[int, int]
    later: tuple[int, int]


_FEW = 64


def arrivals(axis: Axis) -> Sequence[Arrival]:
    """Returns the taps that meet the input, in order."""
    return _few_arrivals(axis) if axis.kernel <= _FEW else _arrivals(axis)


def _arrivals(axis: Axis) -> Sequence[Arrival]:
    found = []
    reached = axis.output
    for tap in axis.taps():
        low, high = axis.reaching(tap)
        found.append(Arrival(tap, (low, min(reached, high)), (max(reached, low), high)))
        reached = min(reached, low)
    return found


_few_arrivals = functools.lru_cache(maxsize=1024)(_arrivals)


def counts(axis: Axis, low: int, high: int) -> Array:
    """Returns how many taps of each output lie at positions in [low, high), (output,) int64."""
    starts = np.arange(axis.output, dtype=np.int64) * axis.stride - axis.pad
    if axis.dilation == 0:
        return np.asarray(np.where((starts >= low) & (starts < high), axis.kernel, 0))
    first = np.maximum(-((starts - low) // axis.dilation), 0)
    last = np.minimum((high - 1 - starts) // axis.dilation, axis.kernel - 1)
    return np.asarray(np.maximum(last - first + 1, 0))


def uncovered(axis: Axis) -> bool:
    """Returns whether some window along the axis lies outside the input altogether."""
    if axis.kernel > _FEW:
        return not counts(axis, 0, axis.input).all()
    return sum(max(high - low, 0) for _, (low, high), _ in arrivals(axis)) < axis.output


def axes_of(launch: Launch) -> tuple[Axis, ...]:
    """Returns the spatial axes of a windowed launch."""
    names = ("output", "kernel", "input", "window_strides", "dilations", "pads")
    return tuple(Axis(*numbers) for numbers in zip(*(launch[name] for name in names), strict=True))


def interleaved(spatial: int, before: int) -> tuple[int, ...]:
    """Returns the permutation from (…, taps…, outputs…) to (…, tap 0, output 0, tap 1, output 1, …)."""
    pairs = ((before + axis, before + spatial + axis) for axis in range(spatial))
    return (*range(before), *itertools.chain.from_iterable(pairs))
