"""Running sums, products and extremes, sorting, and places in the sorted order."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from umd_core import dtypes
from umd_torch.builder import Builder, Value, axis_of
from umd_torch.lowering.checks import require_within
from umd_torch.lowering.common import Emitter, Number, Table, accumulating, operand, promoted
from umd_torch.lowering.places import from_start

aten = torch.ops.aten


def _running(op: str) -> Emitter:
    def emit(b: Builder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
        x = b.cast(x, b.dtype)
        return b.op(op, x, b.scalar(axis_of(dim, x.rank), dtypes.int64)) if x.rank else x

    return emit


def _first(b: Builder, x: Value, count: int, dim: int, largest: bool) -> tuple[Value, Value]:
    """Returns the first elements of the order along an axis, and their positions; a 0-d tensor is its own first."""
    if not x.rank:
        return x, b.full(0, dtypes.int64, ())
    attributes = {"axis": axis_of(dim, x.rank), "largest": int(largest)}
    values, index = b.ops("TopK", (x, b.ints([count])), (True, True), attributes)
    return values, index


def _sort(b: Builder, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    return _first(b, x, x.shape[axis_of(dim, x.rank)] if x.rank else 1, dim, descending)


def _sort_stable(
    b: Builder, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    return _sort(b, x, dim, descending)


def _top(b: Builder, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    return _first(b, x, k, dim, largest)


# running extremes: every element combined with the one 1, 2, 4, … places before it

_Combine = Callable[[tuple[Value, ...], tuple[Value, ...]], tuple[Value, ...]]


def _scan(b: Builder, state: tuple[Value, ...], axis: int, combine: _Combine) -> tuple[Value, ...]:
    """Returns an associative combination of all elements up to each along an axis.

    Source: Hillis and Steele, "Data parallel algorithms", 1986.
    """
    extent, step = state[0].shape[axis], 1
    while step < extent:
        before = tuple(b.slice(v, axis, 0, extent - step) for v in state)
        own = tuple(b.slice(v, axis, step, extent) for v in state)
        rest = combine(before, own)
        state = tuple(b.op("Concat", b.slice(v, axis, 0, step), r, axis=axis) for v, r in zip(state, rest, strict=True))
        step *= 2
    return state


def _positions(b: Builder, x: Value, axis: int) -> Value:
    """Returns the position of every element along an axis."""
    places = b.constant(np.arange(x.shape[axis], dtype=np.int64).reshape(-1, *(1,) * (x.rank - axis - 1)))
    return b.expand(places, x.shape)


def _isnan(b: Builder, x: Value) -> Value:
    return b.op("IsNaN", x) if x.dtype.is_float else b.full(False, dtypes.bool_, x.shape)


def _running_extreme(op: str) -> Emitter:
    """Returns an emitter of the extreme so far and where it is: the last of equal ones; NaN once there was one."""

    def emit(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
        if not x.rank:
            return x, b.full(0, dtypes.int64, ())
        axis = axis_of(dim, x.rank)
        held = b.cast(x, dtypes.uint8) if x.dtype is dtypes.bool_ else x

        def later(before: tuple[Value, ...], own: tuple[Value, ...]) -> tuple[Value, ...]:
            beyond = b.op("And", b.op("Not", _isnan(b, before[0])), b.op(op, own[0], before[0]))
            take = b.op("Or", _isnan(b, own[0]), beyond)
            return tuple(b.op("Where", take, o, v) for o, v in zip(own, before, strict=True))

        values, index = _scan(b, (held, _positions(b, x, axis)), axis, later)
        return b.cast(values, x.dtype), index

    return emit


def _log_sums(b: Builder, x: Value, dim: int) -> Value:
    """Returns the logarithm of the running sum of exponentials."""

    def add(before: tuple[Value, ...], own: tuple[Value, ...]) -> tuple[Value, ...]:
        x, y = before[0], own[0]
        apart = b.op("Neg", b.op("Abs", b.op("Sub", x, y)))
        more = b.op("umd.Log1p", b.op("Exp", apart))
        more = b.op("Where", b.op("Equal", x, y), b.scalar(math.log(2), x.dtype), more)  # infinities too
        return (b.op("Add", b.op("Max", x, y), more),)

    if not x.rank:
        return x
    wide = b.cast(x, accumulating(x.dtype))
    return b.cast(_scan(b, (wide,), axis_of(dim, x.rank), add)[0], x.dtype)


# one place of the sorted order


def _flattened(b: Builder, x: Value) -> Value:
    return b.reshape(x, (math.prod(x.shape),))


def _picked(b: Builder, pair: tuple[Value, Value], axis: int, keepdim: bool) -> tuple[Value, Value]:
    """Returns values and positions of extent 1 along an axis, without it unless it is kept."""
    return pair if keepdim else (b.squeeze(pair[0], axis), b.squeeze(pair[1], axis))


def _kth_value(b: Builder, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    if not x.rank:
        return x, b.full(0, dtypes.int64, ())
    axis = axis_of(dim, x.rank)
    values, index = _first(b, x, k, axis, False)
    return _picked(b, (b.slice(values, axis, k - 1, k), b.slice(index, axis, k - 1, k)), axis, keepdim)


def _median(b: Builder, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """Returns the lower median, or NaN where there is one, and where it is."""
    if not x.rank:
        return x, b.full(0, dtypes.int64, ())
    axis = axis_of(dim, x.rank)
    extent = x.shape[axis]
    values, index = _sort(b, x, axis)
    middle = (extent - 1) // 2
    value, place = (b.slice(v, axis, middle, middle + 1) for v in (values, index))
    if x.dtype.is_float:
        last = b.slice(values, axis, extent - 1, extent)  # NaN is sorted last
        found = b.op("IsNaN", last)
        value = b.op("Where", found, last, value)
        place = b.op("Where", found, b.op("ArgMax", x, axis=axis, keepdims=1), place)
    return _picked(b, (value, place), axis, keepdim)


def _median_of_numbers(b: Builder, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """Returns the lower median of what is not NaN, and where it is."""
    if not x.rank or not x.dtype.is_float:
        return _median(b, x, dim, keepdim)
    axis = axis_of(dim, x.rank)
    values, index = _sort(b, x, axis)
    numbers = b.cast(b.op("Not", b.op("IsNaN", x)), dtypes.int64)
    count = b.op("ReduceSum", numbers, b.ints([axis]), keepdims=1)
    zero, one, two = (b.scalar(n, dtypes.int64) for n in range(3))
    middle = b.op("Max", b.op("Div", b.op("Sub", count, one), two), zero)
    picked = (b.op("GatherElements", values, middle, axis=axis), b.op("GatherElements", index, middle, axis=axis))
    return _picked(b, picked, axis, keepdim)


def _of_all(emitter: Callable[[Builder, Value, int], tuple[Value, Value]]) -> Emitter:
    return lambda b, x: emitter(b, _flattened(b, x), 0)[0]


def _mode(b: Builder, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """Returns the smallest of the most frequent elements, and where it is last; each is compared with each."""
    if not x.rank:
        return x, b.full(0, dtypes.int64, ())
    axis = axis_of(dim, x.rank)
    values, index = _sort(b, x, axis)
    same = b.op("Equal", b.unsqueeze(values, axis + 1), b.unsqueeze(values, axis))
    counts = b.op("ReduceSum", b.cast(same, dtypes.int64), b.ints([axis + 1]), keepdims=0)
    first = b.op("ArgMax", counts, axis=axis, keepdims=1)
    often = b.op("ReduceMax", counts, b.ints([axis]), keepdims=1)
    last = b.op("Add", first, b.op("Max", b.op("Sub", often, b.scalar(1, dtypes.int64)), b.scalar(0, dtypes.int64)))
    picked = (b.op("GatherElements", values, first, axis=axis), b.op("GatherElements", index, last, axis=axis))
    return _picked(b, picked, axis, keepdim)


def _search(
    b: Builder, row: Value, x: Value | Number, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Value:  # fmt: skip
    """Returns how many elements of a sorted row come before x; it is compared with each."""
    if sorter is not None:
        row = b.op("GatherElements", row, from_start(b, sorter), axis=row.rank - 1)
    dtype = promoted(row, x)
    sought = b.unsqueeze(operand(b, x, dtype), len(b.shape))
    wide = b.cast(row, dtype)
    if row.rank > 1:
        wide = b.unsqueeze(wide, row.rank - 1)
    after = b.op("Greater" if right or side == "right" else "GreaterOrEqual", wide, sought)
    before = b.cast(b.op("Not", after), b.dtype)
    return b.op("ReduceSum", before, b.ints([before.rank - 1]), keepdims=0)


def _bucket(b: Builder, x: Value | Number, row: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return _search(b, row, x, out_int32=out_int32, right=right)


def _repeated(b: Builder, repeats: Value, *, output_size: int | None = None) -> Value:
    """Returns each position as often as `repeats` says: how many runs end before a place."""
    require_within(b, repeats, 0, None, "repeats can not be negative")
    ends = b.op("CumSum", b.cast(repeats, dtypes.int64), b.scalar(0, dtypes.int64))
    place = b.constant(np.arange(b.shape[0], dtype=np.int64)[:, None])
    return b.op("ReduceSum", b.cast(b.op("LessOrEqual", ends, place), b.dtype), b.ints([1]), keepdims=0)


TABLE: Table = {
    aten.cumsum.default: _running("CumSum"),
    aten.cumprod.default: _running("CumProd"),
    aten.sort.default: _sort,
    aten.sort.stable: _sort_stable,
    aten.topk.default: _top,
    aten.repeat_interleave.Tensor: _repeated,
    aten.cummax.default: _running_extreme("GreaterOrEqual"),
    aten.cummin.default: _running_extreme("LessOrEqual"),
    aten.logcumsumexp.default: _log_sums,
    aten.kthvalue.default: _kth_value,
    aten.median.dim: _median,
    aten.median.default: _of_all(_median),
    aten.nanmedian.dim: _median_of_numbers,
    aten.nanmedian.default: _of_all(_median_of_numbers),
    aten.mode.default: _mode,
    **dict.fromkeys((aten.searchsorted.Tensor, aten.searchsorted.Scalar), _search),
    **dict.fromkeys((aten.bucketize.Tensor, aten.bucketize.Scalar), _bucket),
}
