"""Max pooling with the position of the first largest element, one axis after the other, the last one first.

The first largest element of a window in row-major order is in the first row that holds the maximum, and there in the
first column: so each axis picks its tap, and what the later axes picked is carried along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from umd_sim.lowerings.layout import Array
from umd_sim.lowerings.windows import Axis, arrivals, at, counts, meetings, uncovered
from umd_sim.scratch import Scratch

if TYPE_CHECKING:
    from umd_sim.lowerings.pooling import Plan

_WIDE, _FIRST = 2, 4
"""Scratch slots: the input in another type; what the axes find."""
_SLOTS = 5
"""Slots of one axis: its maxima, its taps, and at most two arrays that it carries. The axes alternate."""
_LARGEST = ((np.int16, 2**15 - 1), (np.int32, 2**31 - 1), (np.int64, 2**63 - 1))
"""Integer types and the largest number of each."""


class _Found(NamedTuple):
    """What is known after some axes: the maxima, and the taps that each of these axes picked, outermost first."""

    largest: Array
    taps: list[Array]


def max_index(plan: Plan, x: Array, y: Array, index: Array, scratch: Scratch) -> None:
    """Writes the windows' maxima and their row-major positions within the input plane."""
    if x.dtype != plan.compute:
        wide = scratch.take(_WIDE, x.shape, plan.compute)
        np.copyto(wide, x)
        x = wide
    # A sum is NaN when an element is; when it is for another reason, the careful way is right as well.
    careful = bool(np.isnan(np.add.reduce(x, axis=None)))
    found = _Found(x, [])
    for number in reversed(range(len(plan.axes))):
        found = _along(found, plan.axes[number], 1 + number, careful, scratch, _FIRST + number % 2 * _SLOTS)
    np.copyto(y, found.largest, casting="unsafe")
    _write_positions(plan.axes, found.taps, index)


def _along(found: _Found, axis: Axis, dimension: int, careful: bool, scratch: Scratch, slot: int) -> _Found:
    """Returns the maxima along one more axis, and the taps of this axis and of those before."""
    shape = list(found.largest.shape)
    shape[dimension] = axis.output
    largest = scratch.take(slot, shape, found.largest.dtype)
    taps = scratch.take(slot + 1, shape, np.min_scalar_type(axis.kernel - 1))
    carried = [scratch.take(slot + 2 + i, shape, array.dtype) for i, array in enumerate(found.taps)]
    result = _Found(largest, [taps, *carried])
    if uncovered(axis):
        largest.fill(-np.inf)
        for array in result.taps:
            array.fill(0)
    if axis.output < axis.kernel:
        _search_outputs(found, axis, dimension, result)
    else:
        _search_taps(found, axis, dimension, careful, result)
    return result


def _search_taps(found: _Found, axis: Axis, dimension: int, careful: bool, result: _Found) -> None:
    """Lets every tap in turn replace what is smaller; an output's first tap is taken as it is."""
    x, picked = found
    largest, (taps, *carried) = result
    for tap, (start, end), (low, high) in arrivals(axis):
        if start < end:
            where, inputs = at(dimension, slice(start, end)), at(dimension, axis.inputs(tap, start, end))
            np.copyto(largest[where], x[inputs])
            taps[where] = tap
            for array, source in zip(carried, picked, strict=True):
                np.copyto(array[where], source[inputs])
        if low < high:
            where, inputs = at(dimension, slice(low, high)), at(dimension, axis.inputs(tap, low, high))
            best, candidate = largest[where], x[inputs]
            wins = _wins(candidate, best) if careful else np.greater(candidate, best)
            np.maximum(best, candidate, out=best)
            _replace(taps[where], np.asarray(tap, taps.dtype), wins)
            for array, source in zip(carried, picked, strict=True):
                _replace(array[where], source[inputs], wins)


def _wins(candidate: Array, best: Array) -> Array:
    """Returns whether the candidate is larger, or the first NaN."""
    wins = np.less_equal(candidate, best)
    np.logical_not(wins, out=wins)
    return np.logical_and(wins, np.equal(best, best), out=wins)


def _replace(array: Array, values: Array, where: Array) -> None:
    """Writes values where the mask is true; without a branch, since the mask is irregular."""
    change = np.bitwise_xor(array, values)
    np.multiply(change, where.view(np.uint8), out=change)
    np.bitwise_xor(array, change, out=array)


def _search_outputs(found: _Found, axis: Axis, dimension: int, result: _Found) -> None:
    """Searches the whole window of every output: there are few of them, with many taps each."""
    taps, *carried = result.taps
    for meeting in meetings(axis):
        inputs, where = at(dimension, meeting.inputs), at(dimension, meeting.one)
        first = np.expand_dims(np.argmax(found.largest[inputs], axis=dimension), dimension)
        targets = zip((result.largest, *carried), (found.largest, *found.taps), strict=True)
        for array, source in targets:
            chosen = np.take_along_axis(source[inputs], first, axis=dimension)
            np.copyto(array[where], np.squeeze(chosen, dimension))
        first += meeting.many.start
        np.copyto(taps[where], np.squeeze(first, dimension), casting="unsafe")


def _write_positions(axes: Sequence[Axis], taps: Sequence[Array], index: Array) -> None:
    """Writes input · plane summed over the axes, in the narrowest integers that hold every step on the way."""
    planes: list[int] = []
    plane, bound = 1, 0
    for axis in reversed(axes):
        planes.insert(0, plane)
        bound += plane * (axis.output * axis.stride + axis.kernel * axis.dilation + abs(axis.pad) + axis.input)
        plane *= axis.input
    dtype: Any = next((t for t, largest in _LARGEST if bound <= largest), np.int64)
    total: Any = 0
    for number, axis in enumerate(axes):
        starts = (np.arange(axis.output, dtype=np.int64) * axis.stride - axis.pad).astype(dtype)
        steps = np.multiply(taps[number], axis.dilation if axis.kernel > 1 else 0, dtype=dtype)
        steps += starts.reshape([-1 if a == number else 1 for a in range(len(axes))])
        steps *= planes[number]
        total = np.add(steps, total, out=steps)
    np.copyto(index, total)
    for number, axis in enumerate(axes):
        if uncovered(axis):
            index[at(1 + number, counts(axis, 0, axis.input) == 0)] = 0
