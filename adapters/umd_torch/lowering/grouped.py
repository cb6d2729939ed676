"""Products of matrices in groups, as mixtures of experts use them, and histograms, by which they count."""

from __future__ import annotations

import math

import torch

from umd_core import dtypes
from umd_torch.builder import Builder, Value
from umd_torch.lowering.common import Emitter, Number, Table

aten = torch.ops.aten


def _positions(b: Builder, count: int) -> Value:
    zero, one = b.scalar(0, dtypes.int64), b.scalar(1, dtypes.int64)
    return b.op("Range", zero, b.scalar(count, dtypes.int64), one)


def _members(b: Builder, ends: Value, count: int) -> Value:
    """Returns (groups, count) bool: whether a position belongs to a group. Groups follow one another up to `ends`."""
    ends = b.cast(ends, dtypes.int64)
    (groups,) = ends.shape
    starts = b.op("Concat", b.ints([0]), b.slice(ends, 0, 0, groups - 1), axis=0)
    places = _positions(b, count)
    after = b.op("GreaterOrEqual", places, b.unsqueeze(starts, 1))
    return b.op("And", after, b.op("Less", places, b.unsqueeze(ends, 1)))


def _masked(b: Builder, members: Value, x: Value) -> Value:
    return b.op("Where", members, x, b.scalar(0, x.dtype))


def _grouped_product(
    b: Builder, x: Value, y: Value, offs: Value | None = None, bias: Value | None = None, out_dtype: object = None
) -> Value:
    """Returns the products of groups of rows, of columns or along the depth; `offs` says where each group ends.

    Each group is computed over the whole extent and the rest masked, so the work grows with the number of groups.
    """
    if offs is None:
        result = b.op("MatMul", x, y)
    elif x.rank == 2 and y.rank == 3:
        members = b.unsqueeze(_members(b, offs, x.shape[0]), 2)
        result = _sum_groups(b, members, b.op("MatMul", b.unsqueeze(x, 0), y))
    elif x.rank == 3 and y.rank == 2:
        members = b.unsqueeze(_members(b, offs, y.shape[1]), 1)
        result = _sum_groups(b, members, b.op("MatMul", x, b.unsqueeze(y, 0)))
    else:
        members = _members(b, offs, x.shape[1])
        left = _masked(b, b.unsqueeze(members, 1), b.unsqueeze(x, 0))
        result = b.op("MatMul", left, _masked(b, b.unsqueeze(members, 2), b.unsqueeze(y, 0)))
    if bias is not None:
        raise b.unsupported("grouped products with a bias are not there")
    return b.cast(result, b.dtype)


def _sum_groups(b: Builder, members: Value, products: Value) -> Value:
    return b.op("ReduceSum", _masked(b, members, products), b.ints([0]), keepdims=0)


def _histogram(b: Builder, x: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    """Returns how many elements fall into each of `bins` equal parts of [min, max]; the rest is left out.

    Equal limits, whatever they are, stand for the least and the largest element.
    """
    flat = b.reshape(x, (math.prod(x.shape),))
    low, high = b.scalar(min, x.dtype), b.scalar(max, x.dtype)
    if min == max:
        low, high = (low, high) if 0 in flat.shape else _limits(b, flat)
        equal = b.op("Equal", low, high)
        one = b.scalar(1, x.dtype)
        low, high = (b.op("Where", equal, b.op(op, edge, one), edge) for op, edge in (("Sub", low), ("Add", high)))
    inside = b.op("And", b.op("GreaterOrEqual", flat, low), b.op("LessOrEqual", flat, high))
    safe = b.op("Where", inside, flat, low)
    scaled = b.op("Mul", b.op("Sub", safe, low), b.scalar(bins, x.dtype))
    place = b.cast(b.op("Div", scaled, b.op("Sub", high, low)), dtypes.int64)
    place = b.op("Where", inside, b.op("Min", place, b.scalar(bins - 1, dtypes.int64)), b.scalar(bins, dtypes.int64))
    counts = b.op(
        "ScatterElements", b.full(0, x.dtype, (bins + 1,)), place, b.full(1, x.dtype, flat.shape),
        axis=0, reduction="add",
    )  # fmt: skip
    return b.slice(counts, 0, 0, bins)


def _limits(b: Builder, x: Value) -> tuple[Value, Value]:
    """Returns the least and the largest element."""
    return b.op("ReduceMin", x, keepdims=0), b.op("ReduceMax", x, keepdims=0)


def _grouped_gradients(b: Builder, x: Value, weight: Value, offs: Value, dy: Value) -> tuple[Value, Value]:
    """Returns the gradients of `_grouped_product` over groups of rows."""
    members = _members(b, offs, x.shape[0])
    dx = _sum_groups(
        b, b.unsqueeze(members, 2), b.op("MatMul", b.unsqueeze(dy, 0), b.transpose(weight, (0, 2, 1)))
    )  # fmt: skip
    left = _masked(b, b.unsqueeze(members, 1), b.unsqueeze(b.transpose(x, (1, 0)), 0))
    return dx, b.op("MatMul", left, _masked(b, b.unsqueeze(members, 2), b.unsqueeze(dy, 0)))


TABLE: Table = {
    aten._grouped_mm.default: _grouped_product,
    aten.histc.default: _histogram,
}

BY_NAME: dict[str, Emitter] = {
    "transformers.grouped_mm_fallback.default": _grouped_product,
    "transformers.grouped_mm_fallback_backward.default": _grouped_gradients,
}
"""Ops of libraries that are not imported here, by the name of their overload."""
