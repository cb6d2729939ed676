"""Max pooling with the position of the first largest element, one axis after the other, the last one first.

The first largest element of a window in row-major order is the first row that holds the maximum, and in it the first
column: so each axis picks its tap, and what the later axes picked is carried along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from umd_sim.lowerings.layout import Array
from umd_sim.lowerings.windows import Axis, arrivals, at, meetings, uncovered
from umd_sim.scratch import Scratch

if TYPE_CHECKING:
    from umd_sim.lowerings.pooling import Plan

_FIRST_SLOT = 4
_SLOTS = 5
"""Slots that one axis uses: its maxima, its taps, and at most two arrays that it carries; the axes alternate."""


def max_index(plan: Plan, x: Array, y: Array, index: Array, scratch: Scratch) -> None:
    """Writes the windows' maxima and their row-major positions within the input plane."""
    if x.dtype != plan.compute:
        wide = scratch.take(2, x.shape, plan.compute)
        np.copyto(wide, x)
        x = wide
    picked: list[Array] = []
    for number in reversed(range(len(plan.axes))):
        slot = _FIRST_SLOT + number % 2 * _SLOTS
        x, picked = _along(x, picked, plan.axes[number], 1 + number, scratch, slot)
    np.copyto(y, x, casting="unsafe")
    _write_positions(plan.axes, picked, index)


def _along(
    x: Array, picked: Sequence[Array], axis: Axis, dimension: int, scratch: Scratch, slot: int
) -> tuple[Array, list[Array]]:
    """Returns the maxima along one axis, and the taps of this axis and of those that were picked before."""
    shape = list(x.shape)
    shape[dimension] = axis.output
    largest = scratch.take(slot, shape, x.dtype)
    taps = scratch.take(slot + 1, shape, np.min_scalar_type(max(axis.kernel - 1, 0)))
    carried = [scratch.take(slot + 2 + i, shape, array.dtype) for i, array in enumerate(picked)]
    if uncovered(axis):
        largest.fill(-np.inf)
        for array in (taps, *carried):
            array.fill(0)
    if axis.output < axis.kernel:
        _search_outputs(x, picked, axis, dimension, largest, taps, carried)
    else:
        _search_taps(x, picked, axis, dimension, largest, taps, carried)
    return largest, [taps, *carried]


def _search_taps(
    x: Array,
    picked: Sequence[Array],
    axis: Axis,
    dimension: int,
    largest: Array,
    taps: Array,
    carried: Sequence[Array],
) -> None:
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
            wins = _wins(candidate, best)
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
    np.multiply(change, where, out=change)
    np.bitwise_xor(array, change, out=array)


def _search_outputs(
    x: Array,
    picked: Sequence[Array],
    axis: Axis,
    dimension: int,
    largest: Array,
    taps: Array,
    carried: Sequence[Array],
) -> None:
    for meeting in meetings(axis):
        inputs, where = at(dimension, meeting.inputs), at(dimension, meeting.one)
        window = x[inputs]
        first = np.expand_dims(np.argmax(window, axis=dimension), dimension)
        for array, source in ((largest, x), *zip(carried, picked, strict=True)):
            chosen = np.take_along_axis(source[inputs], first, axis=dimension)
            np.copyto(array[where], np.squeeze(chosen, dimension))
        first += meeting.many.start
        np.copyto(taps[where], np.squeeze(first, dimension), casting="unsafe")


def _write_positions(axes: Sequence[Axis], picked: Sequence[Array], index: Array) -> None:
    index.fill(0)
    plane = 1
    for number in reversed(range(len(axes))):
        axis = axes[number]
        starts = np.arange(axis.output, dtype=np.int64) * axis.stride - axis.pad
        steps = np.multiply(picked[number], axis.dilation, dtype=np.int64)
        steps += starts.reshape(along(number, len(axes)))
        steps *= plane
        np.add(index, steps, out=index)
        plane *= axis.input
    for number, axis in enumerate(axes):
        if uncovered(axis):
            outside = np.ones(axis.output, np.bool_)
            for _, (start, end), _ in arrivals(axis):
                outside[start : max(start, end)] = False
            index[at(1 + number, outside)] = 0


def along(number: int, rank: int) -> tuple[Any, ...]:
    """Returns the shape of a vector that broadcasts along spatial axis `number` of (batch, spatial…)."""
    return tuple(-1 if axis == number else 1 for axis in range(rank))
