"""im2col and back: the window contents of a tile as the matrix that a convolution multiplies.

A tile is a range of samples, of groups and of outputs along the first spatial axis, chosen so that its columns stay
near the processor's cache. Columns have the logical axes (batch, groups, channels, taps…, outputs…); in memory either
channels or outputs come last, whichever makes the longer contiguous runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_sim.lowerings.layout import Array, Call, product
from umd_sim.lowerings.windows import Axis, all_meetings, interleaved
from umd_sim.scratch import Scratch

TILE = 1 << 21
"""Elements of columns in a tile of a convolution without groups: a product with many columns is fast."""
GROUPED_TILE = 1 << 18
"""Elements of columns in a tile of one with groups, whose products are small: cache is all that matters."""
_SPREAD = 4
"""A padded copy may be this many times larger than what goes in and comes out; beyond, windows are copied piecewise."""

COLUMNS, PADDED, MATRIX, RESULT, PART = range(5)
"""Scratch slots."""


class Tile(NamedTuple):
    """Parts of a convolution: samples, groups, outputs of the first spatial axis, and the axes for those outputs."""

    samples: slice
    groups: slice
    outputs: slice
    axes: tuple[Axis, ...]

    @property
    def counts(self) -> tuple[int, int]:
        """How many samples and groups there are."""
        return self.samples.stop - self.samples.start, self.groups.stop - self.groups.start

    @property
    def positions(self) -> int:
        """Outputs of all its samples and groups."""
        return product(self.counts) * product([axis.output for axis in self.axes])

    def inputs(self, array: Array) -> Array:
        """Returns the tile's part of an array (batch, groups, channels, input…)."""
        part: Array = array[self.samples, self.groups]
        return part

    def of(self, array: Array) -> Array:
        """Returns the tile's part of an array (batch, groups, rows, outputs…)."""
        part: Array = array[self.samples, self.groups, :, self.outputs]
        return part


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
        """Yields tiles that cover every group, sample and output, those of one group after each other."""
        first_axis, *others = self.axes
        limit = TILE if self.groups == 1 else GROUPED_TILE
        row = max(1, self.depth * product([axis.output for axis in others]))
        group = row * first_axis.output
        groups = max(1, min(limit // group, self.groups))
        samples = max(1, limit // (group * groups)) if groups == self.groups else 1
        rows = first_axis.output if group <= limit else max(1, limit // row)
        for own in _ranges(self.groups, groups):
            for some in _ranges(self.batch, samples):
                for part in _ranges(first_axis.output, rows):
                    yield Tile(some, own, part, (first_axis.part(part.start, part.stop), *others))


def _ranges(extent: int, step: int) -> Iterator[slice]:
    for start in range(0, extent, step):
        yield slice(start, min(start + step, extent))


_LONG_RUN, _SHORT_RUN = 12, 8
"""Elements: rows of outputs from which on channels are not put last, windows from which on they are (both measured)."""
_ROWS = 4
"""Rows of a kernel for each output up to which putting its channels last pays (measured)."""


def channels_last(shape: Shape, rows: int) -> bool:
    """Returns whether the product with a kernel of so many rows is faster with channels last.

    Columns are copied in runs along a window's last axis and its channels, or along a row of outputs. With channels
    last the result has to be transposed, so long rows of outputs are always better; and so has the kernel, at every
    run, which few outputs do not repay. A window of one position is nothing but its channels.
    """
    last = shape.axes[-1]
    if product(shape.taps) == 1 or _ROWS * shape.batch * product(shape.outputs) < rows:
        return False
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


def fills(columns: Array, x: Array, axes: Sequence[Axis], scratch: Scratch, *, last: bool) -> Iterator[Call]:
    """Yields the calls that fill columns from x, (batch, groups, channels, input…); positions outside it are 0."""
    spans = [axis.high - axis.low for axis in axes]
    inside = all(axis.inside for axis in axes)
    if inside and not last and x.dtype == columns.dtype:
        yield functools.partial(np.copyto, columns, _windows(x, axes, [-axis.pad for axis in axes]))
    elif product(spans) * product(x.shape[:3]) <= _SPREAD * (x.size + columns.size):
        memory = (0, 1, *range(3, x.ndim), 2) if last else tuple(range(x.ndim))
        padded = allocate(scratch, PADDED, (*x.shape[:3], *spans), memory, columns.dtype)
        yield from _pads(padded, x, axes)
        yield functools.partial(np.copyto, columns, _windows(padded, axes, [0] * len(axes)))
    else:
        yield functools.partial(_fill_piecewise, columns, x, axes)


def _pads(padded: Array, x: Array, axes: Sequence[Axis]) -> Iterator[Call]:
    """Yields the calls that make `padded` x over exactly the positions that windows cover, 0 outside the input."""
    source, target = [], []
    for axis in axes:
        low, high = max(axis.low, 0), min(axis.high, axis.input)
        source.append(slice(low, max(low, high)))
        target.append(slice(low - axis.low, max(low, high) - axis.low))
    if not all(axis.inside for axis in axes):
        yield functools.partial(padded.fill, 0)
    if all(s.stop > s.start for s in source):
        yield functools.partial(np.copyto, _part(padded, target), _part(x, source), casting="unsafe")


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
