"""im2col and back: the window contents of a tile as the matrix that a convolution multiplies.

A tile is a range of samples and of outputs along the first spatial axis, chosen so that its columns stay near the
processor's cache. Columns have the logical axes (batch, groups, channels, taps…, outputs…); in memory either channels
or outputs come last, whichever makes the longer contiguous runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_sim.lowerings.layout import Array, product
from umd_sim.lowerings.windows import Axis, all_meetings, interleaved
from umd_sim.scratch import Scratch

TILE = 1 << 21
"""Elements of columns in a tile, where a sample does not have more."""
_SPREAD = 4
"""A padded copy may be this many times larger than what goes in and comes out; beyond, windows are copied piecewise."""

COLUMNS, PADDED, MATRIX, RESULT, PART = range(5)
"""Scratch slots."""


class Tile(NamedTuple):
    """Samples [first, last), outputs [start, end) of the first spatial axis, and the axes for those outputs."""

    first: int
    last: int
    start: int
    end: int
    axes: tuple[Axis, ...]

    def of(self, array: Array, axis: int) -> Array:
        """Returns the tile's part of an array whose axis 0 is the batch and whose `axis` is the first output axis."""
        index: list[slice] = [slice(None)] * array.ndim
        index[0], index[axis] = slice(self.first, self.last), slice(self.start, self.end)
        return array[tuple(index)]


class Shape(NamedTuple):
    """Extents of a convolution as the columns see them."""

    batch: int
    groups: int
    channels: int
    axes: tuple[Axis, ...]

    @property
    def taps(self) -> tuple[int, ...]:
        """Extents of the kernel."""
        return tuple(axis.kernel for axis in self.axes)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Extents of the output."""
        return tuple(axis.output for axis in self.axes)

    @property
    def depth(self) -> int:
        """Elements of a window within one group."""
        return self.channels * product(self.taps)

    def tiles(self) -> Iterator[Tile]:
        """Yields tiles that cover every sample and output."""
        first_axis, *others = self.axes
        row = max(1, self.groups * self.depth * product([axis.output for axis in others]))
        sample = row * first_axis.output
        samples = max(1, TILE // sample)
        rows = first_axis.output if sample <= TILE else max(1, TILE // row)
        for first in range(0, self.batch, samples):
            for start in range(0, first_axis.output, rows):
                end = min(start + rows, first_axis.output)
                axes = (first_axis.part(start, end), *others)
                yield Tile(first, min(first + samples, self.batch), start, end, axes)


_LONG_RUN, _SHORT_RUN = 12, 8
"""Elements: rows of outputs from which on channels are not put last, windows from which on they are (both measured)."""


def channels_last(shape: Shape) -> bool:
    """Returns whether the product with a kernel is faster with channels last.

    Columns are copied in runs along a window's last axis and its channels, or along a row of outputs. With channels
    last the result has to be transposed, so long rows of outputs are always better.
    """
    last = shape.axes[-1]
    by_output = last.output if last.stride == 1 else last.output // 4
    return by_output < _LONG_RUN and _window_run(shape) > by_output


def channels_last_for_sum(shape: Shape) -> bool:
    """Returns whether the kernel's gradient, which needs no transposition, is faster with channels last."""
    return _window_run(shape) > _SHORT_RUN


def _window_run(shape: Shape) -> int:
    last = shape.axes[-1]
    return shape.channels * (last.kernel if last.dilation == 1 else 1)


@functools.lru_cache(maxsize=64)
def order(spatial: int, *, last: bool, summed: bool = False) -> tuple[int, ...]:
    """Returns the memory order of the logical axes (batch, groups, channels, taps…, outputs…).

    With channels last it is groups, batch, outputs, taps, channels; otherwise batch, groups, channels, taps, outputs,
    or, where products are `summed` over the batch, groups, channels, taps, batch, outputs.
    """
    taps, outputs = tuple(range(3, 3 + spatial)), tuple(range(3 + spatial, 3 + 2 * spatial))
    if last:
        return (1, 0, *outputs, *taps, 2)
    return (1, 2, *taps, 0, *outputs) if summed else (0, 1, 2, *taps, *outputs)


def allocate(scratch: Scratch, slot: int, shape: Sequence[int], axes: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns a scratch array with the logical `shape` whose memory order is `axes`."""
    return scratch.take(slot, [shape[axis] for axis in axes], dtype).transpose(_inverse(axes))


@functools.lru_cache(maxsize=256)
def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def fill_columns(columns: Array, x: Array, axes: Sequence[Axis], scratch: Scratch, *, last: bool) -> None:
    """Fills columns from x, (batch, groups, channels, input…); positions outside the input are 0."""
    spans = [axis.high - axis.low for axis in axes]
    inside = all(axis.inside for axis in axes)
    if inside and not last and x.dtype == columns.dtype:
        np.copyto(columns, _windows(x, axes, [-axis.pad for axis in axes]))
    elif product(spans) * product(x.shape[:3]) <= _SPREAD * (x.size + columns.size):
        np.copyto(columns, _windows(_padded(x, axes, spans, columns.dtype, scratch, last=last), axes, [0] * len(axes)))
    else:
        _fill_piecewise(columns, x, axes)


def _padded(
    x: Array, axes: Sequence[Axis], spans: Sequence[int], dtype: np.dtype[Any], scratch: Scratch, *, last: bool
) -> Array:
    """Returns x over exactly the positions that windows cover, 0 outside the input."""
    memory = (0, 1, *range(3, x.ndim), 2) if last else tuple(range(x.ndim))
    padded = allocate(scratch, PADDED, (*x.shape[:3], *spans), memory, dtype)
    source, target = [], []
    for axis in axes:
        low, high = max(axis.low, 0), min(axis.high, axis.input)
        source.append(slice(low, max(low, high)))
        target.append(slice(low - axis.low, max(low, high) - axis.low))
    if not all(axis.inside for axis in axes):
        padded.fill(0)
    if all(s.stop > s.start for s in source):
        np.copyto(_part(padded, target), _part(x, source), casting="unsafe")
    return padded


def _part(array: Array, index: Sequence[Any]) -> Array:
    """Returns the part of an array that the index picks from its last axes."""
    where: tuple[Any, ...] = (..., *index)
    part: Array = array[where]
    return part


def _windows(x: Array, axes: Sequence[Axis], starts: Sequence[int]) -> Array:
    """Returns a view (batch, groups, channels, taps…, outputs…) of x, whose windows start at `starts`."""
    begun = _part(x, [slice(start, None) for start in starts])
    steps = begun.strides[3:]
    shape = (*x.shape[:3], *(a.kernel for a in axes), *(a.output for a in axes))
    # The step along an extent of 1 is never taken, and may be too large for an address.
    by_tap = [a.dilation * step if a.kernel > 1 else 0 for a, step in zip(axes, steps, strict=True)]
    by_output = [a.stride * step if a.output > 1 else 0 for a, step in zip(axes, steps, strict=True)]
    strides = (*begun.strides[:3], *by_tap, *by_output)
    return np.lib.stride_tricks.as_strided(begun, shape, strides, writeable=False)


def _fill_piecewise(columns: Array, x: Array, axes: Sequence[Axis]) -> None:
    columns.fill(0)
    pairs = columns.transpose(interleaved(len(axes), 3))
    for index, inputs, _ in all_meetings(axes):
        np.copyto(_part(pairs, index), _part(x, inputs), casting="unsafe")


def add_columns(x: Array, columns: Array, axes: Sequence[Axis]) -> None:
    """Adds every element of the columns to the input position that it stands for."""
    pairs = columns.transpose(interleaved(len(axes), 3))
    for index, inputs, single in all_meetings(axes):
        piece = _part(pairs, index)
        together = tuple(3 + axis for axis, one in enumerate(single) if one)
        if together:
            piece = np.add.reduce(piece, axis=together, keepdims=True)
        target = _part(x, inputs)
        np.add(target, piece, out=target)
