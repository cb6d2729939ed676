"""Pooling, one spatial axis after the other, as strided maxima and sums over kernel positions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core.kernels import KernelRecord
from umd_sim.lowerings.layout import NOTHING, Array, Executable, Launch, compute_type, product, running
from umd_sim.lowerings.maxima import max_index
from umd_sim.lowerings.windows import Axis, arrivals, at, axes_of, counts, meetings, uncovered
from umd_sim.scratch import Scratch

_BAKED = 4096
"""Divisors of planes of at most this many outputs are kept."""


class Plan(NamedTuple):
    """What a pooling lowering knows of a launch: axes, the type that is computed in, and the average's divisors."""

    axes: tuple[Axis, ...]
    compute: np.dtype[Any]
    counts: Counts | None = None


class Counts(NamedTuple):
    """How many elements each window of an average counts.

    Attributes:
        bounds: along each axis, the positions [low, high) that count.
    """

    axes: tuple[Axis, ...]
    bounds: tuple[tuple[int, int], ...]

    def along(self, number: int) -> Array:
        """Returns the taps that count of every output along one axis, (output,) int64."""
        return counts(self.axes[number], *self.bounds[number])

    def divisor(self, dtype: np.dtype[Any]) -> Array:
        """Returns what sums are divided by, broadcastable to (batch, output…)."""
        result = np.ones((), dtype)
        for number in range(len(self.axes)):
            result = result[..., np.newaxis] * self.along(number).astype(dtype)
        return result


def _plan(launch: Launch) -> Plan:
    axes = axes_of(launch)
    counted = None
    if "count_pad" in launch.values:
        ends = launch["pads_end"] if launch["count_pad"] else (0,) * len(axes)
        low = [-axis.pad if launch["count_pad"] else 0 for axis in axes]
        bounds = tuple((a, axis.input + end) for a, axis, end in zip(low, axes, ends, strict=True))
        counted = Counts(axes, bounds)
    return Plan(axes, compute_type(launch.record.types[0]), counted)


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a pooling kernel."""
    launch = Launch(record, parameters)
    views = tuple(launch.view(operand.name) for operand in record.row.operands)
    run, empty = _RUNS[record.row.name]
    if 0 in views[1].shape:
        return NOTHING
    if 0 in views[0].shape or 0 in launch["kernel"]:
        return Executable(views[1:], running(empty, _plan(launch)))
    return Executable(views, running(run, _plan(launch)))


def combine(ufunc: np.ufunc, identity: float, x: Array, axis: Axis, dimension: int, out: Array) -> None:
    """Writes the ufunc over every window along one axis of x."""
    if axis.output < axis.kernel:
        out.fill(identity)
        for meeting in meetings(axis):
            target = out[at(dimension, meeting.one)]
            ufunc.reduce(x[at(dimension, meeting.inputs)], axis=dimension, out=target)
            if meeting.single and ufunc is np.add:
                np.multiply(target, meeting.number, out=target)
        return
    if uncovered(axis):
        out.fill(identity)
    held = None  # the first tap's elements, while it is not known whether the second one meets all of them
    for tap, (start, end), (low, high) in arrivals(axis):
        piece = x[at(dimension, axis.inputs(tap, low, high))] if low < high else None
        if held is not None:
            if high - low == axis.output:
                ufunc(held, piece, out=out)
                piece = None
            else:
                np.copyto(out, held)
            held = None
        if end - start == axis.output:
            held = x[at(dimension, axis.inputs(tap, start, end))]
        elif start < end:
            np.copyto(out[at(dimension, slice(start, end))], x[at(dimension, axis.inputs(tap, start, end))])
        if piece is not None:
            target = out[at(dimension, slice(low, high))]
            ufunc(target, piece, out=target)
    if held is not None:
        np.copyto(out, held)


def _shrinking(axes: Sequence[Axis]) -> list[int]:
    """Returns the axes in an order that keeps what lies between small: those that shrink most come first."""
    return sorted(range(len(axes)), key=lambda a: axes[a].output / axes[a].input)


def _pool(plan: Plan, ufunc: np.ufunc, identity: float, x: Array, out: Array, scratch: Scratch) -> None:
    """Writes the ufunc over every window, in the type that is computed in."""
    if x.dtype != plan.compute:
        wide = scratch.take(2, x.shape, plan.compute)
        np.copyto(wide, x)
        x = wide
    order = _shrinking(plan.axes)
    for number, a in enumerate(order):
        shape = list(x.shape)
        shape[1 + a] = plan.axes[a].output
        final = number == len(order) - 1
        target = out if final and out.dtype == plan.compute else scratch.take(number % 2, shape, plan.compute)
        combine(ufunc, identity, x, plan.axes[a], 1 + a, target)
        x = target
    if x is not out:
        np.copyto(out, x, casting="unsafe")


def _empty_max(plan: Plan, y: Array, scratch: Scratch) -> None:
    y.fill(-np.inf)


def _empty_max_index(plan: Plan, y: Array, index: Array, scratch: Scratch) -> None:
    y.fill(-np.inf)
    index.fill(0)


def _empty_average(plan: Plan, y: Array, scratch: Scratch) -> None:
    np.copyto(y, np.divide(0, _divisor(plan)), casting="unsafe")


def _empty_grad(plan: Plan, dx: Array, scratch: Scratch) -> None:
    dx.fill(0)


def _max(plan: Plan, x: Array, y: Array, scratch: Scratch) -> None:
    _pool(plan, np.maximum, -np.inf, x, y, scratch)


def _average(plan: Plan, x: Array, y: Array, scratch: Scratch) -> None:
    total = y if y.dtype == plan.compute else scratch.take(3, y.shape, plan.compute)
    _pool(plan, np.add, 0.0, x, total, scratch)
    np.divide(total, _divisor(plan), out=total)
    if total is not y:
        np.copyto(y, total, casting="unsafe")


def _divisor(plan: Plan) -> Array:
    if plan.counts is None:
        return np.ones((), plan.compute)
    small = product([axis.output for axis in plan.axes]) <= _BAKED
    return _small_divisor(plan.counts, plan.compute) if small else plan.counts.divisor(plan.compute)


@functools.lru_cache(maxsize=64)
def _small_divisor(counts: Counts, compute: np.dtype[Any]) -> Array:
    """Returns the divisor; a 0-d array when it is the same everywhere."""
    whole = counts.divisor(compute)
    return whole[(0,) * whole.ndim].reshape(()) if (whole == whole.flat[0]).all() else whole


def spread(x: Array, axis: Axis, dimension: int, out: Array) -> None:
    """Writes to each input position along one axis the sum of the outputs whose windows hold it."""
    out.fill(0)
    for meeting in meetings(axis):
        target = out[at(dimension, meeting.inputs)]
        if meeting.by_output:
            piece = x[at(dimension, slice(meeting.one, meeting.one + 1))]
            piece = np.multiply(piece, meeting.number) if meeting.single else piece
        else:
            piece = x[at(dimension, meeting.many)]
            piece = np.add.reduce(piece, axis=dimension, keepdims=True) if meeting.single else piece
        np.add(target, piece, out=target)


def _average_grad(plan: Plan, dy: Array, dx: Array, scratch: Scratch) -> None:
    x = scratch.take(2, dy.shape, plan.compute)
    np.copyto(x, dy)
    np.divide(x, _divisor(plan), out=x)
    order = _shrinking([axis._replace(output=axis.input, input=axis.output) for axis in plan.axes])
    for number, a in enumerate(order):
        shape = list(x.shape)
        shape[1 + a] = plan.axes[a].input
        final = number == len(order) - 1
        target = dx if final and dx.dtype == plan.compute else scratch.take(number % 2, shape, plan.compute)
        spread(x, plan.axes[a], 1 + a, target)
        x = target
    if x is not dx:
        np.copyto(dx, x, casting="unsafe")


_RUNS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "max_pool_kernel": (_max, _empty_max),
    "max_pool_index_kernel": (max_index, _empty_max_index),
    "average_pool_kernel": (_average, _empty_average),
    "average_pool_grad_kernel": (_average_grad, _empty_grad),
}
"""What runs a kernel, and what writes its results when every window is empty."""
