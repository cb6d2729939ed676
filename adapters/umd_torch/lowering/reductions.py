"""Sums, means, extremes and their positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from umd_core import dtypes
from umd_torch.builder import Builder, Value, axis_of
from umd_torch.lowering.common import Emitter, Number, Table, accumulating

aten = torch.ops.aten
Dims = int | Sequence[int] | None


def axes_of(dims: Dims, rank: int) -> tuple[int, ...]:
    """Returns the reduced axes in order; torch reads none, and an empty list, as all of them."""
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted({axis_of(d, rank) for d in dims})) if dims and rank else tuple(range(rank))


def reduce(b: Builder, op: str, x: Value, axes: Sequence[int], keepdim: bool = False) -> Value:
    """Emits a reduction over axes, none of which leaves the value as it is."""
    if not axes:
        return x
    return b.op(op, x, b.ints(axes), keepdims=int(keepdim))


def _sum(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduce(b, "ReduceSum", b.cast(x, b.dtype), axes_of(dim, x.rank), keepdim)


def _mean(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduce(b, "ReduceMean", b.cast(x, b.dtype), axes_of(dim, x.rank), keepdim)


def _counted(b: Builder, x: Value) -> Value:
    """Returns truth values as 0 and 1, which have an order; anything else as it is."""
    return b.cast(x, dtypes.uint8) if x.dtype is dtypes.bool_ else x


def _extreme(op: str) -> Emitter:
    def emit(b: Builder, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
        return b.cast(reduce(b, op, _counted(b, x), axes_of(dim, x.rank), keepdim), b.dtype)

    return emit


def _product(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduce(b, "ReduceProd", b.cast(x, b.dtype), axes_of(dim, x.rank), keepdim)


def _product_of_all(b: Builder, x: Value, *, dtype: Any = None) -> Value:
    return _product(b, x)


def _truth(op: str) -> Emitter:
    """Returns an emitter of any (the largest of 0 and 1) or all (the smallest)."""

    def emit(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        if x.dtype is not dtypes.bool_:
            x = b.cast(x, dtypes.bool_)
        axes = axes_of(dim, x.rank) if dim != () else ()
        return b.cast(reduce(b, op, b.cast(x, dtypes.uint8), axes, keepdim), dtypes.bool_)

    return emit


def _place(b: Builder, op: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    """Returns the position of an extreme along an axis, or in the whole tensor."""
    x = _counted(b, x)
    if dim is None:
        flat = b.op(op, b.reshape(x, (math.prod(x.shape),)), axis=0, keepdims=0)
        return b.reshape(flat, (1,) * x.rank if keepdim else ())
    if not x.rank:
        return b.full(0, dtypes.int64, ())
    return b.op(op, x, axis=axis_of(dim, x.rank), keepdims=int(keepdim))


def _position(op: str) -> Emitter:
    def emit(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        return _place(b, op, x, dim, keepdim)

    return emit


def _extreme_with_position(reduction: str, position: str) -> Emitter:
    def emit(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        extreme = reduce(b, reduction, _counted(b, x), axes_of(dim, x.rank), keepdim)
        return b.cast(extreme, x.dtype), _place(b, position, x, dim, keepdim)

    return emit


def _moments(b: Builder, x: Value, dim: Dims, correction: Number | None, keepdim: bool) -> tuple[Value, Value]:
    """Returns (variance, mean) in two passes, in the element type that torch accumulates in."""
    axes = axes_of(dim, x.rank)
    wide = b.cast(x, accumulating(x.dtype))
    mean = reduce(b, "ReduceMean", wide, axes, keepdim=True)
    centred = b.op("Sub", wide, mean)
    total = reduce(b, "ReduceSum", b.op("Mul", centred, centred), axes, keepdim)
    count = math.prod(x.shape[a] for a in axes) - (1 if correction is None else correction)
    variance = b.op("Div", total, b.scalar(max(count, 0), wide.dtype))
    return b.cast(variance, b.dtype), b.cast(b.reshape(mean, total.shape), b.dtype)


def _variance(
    b: Builder, x: Value, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> Value:
    return _moments(b, x, dim, correction, keepdim)[0]


def _variance_and_mean(
    b: Builder, x: Value, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return _moments(b, x, dim, correction, keepdim)


TABLE: Table = {
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.amax.default: _extreme("ReduceMax"),
    aten.amin.default: _extreme("ReduceMin"),
    aten.max.default: _extreme("ReduceMax"),
    aten.min.default: _extreme("ReduceMin"),
    aten.prod.default: _product_of_all,
    aten.prod.dim_int: _product,
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _truth("ReduceMax")),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _truth("ReduceMin")),
    aten.argmax.default: _position("ArgMax"),
    aten.argmin.default: _position("ArgMin"),
    aten.max.dim: _extreme_with_position("ReduceMax", "ArgMax"),
    aten.min.dim: _extreme_with_position("ReduceMin", "ArgMin"),
    aten.var.correction: _variance,
    aten.var_mean.correction: _variance_and_mean,
}
