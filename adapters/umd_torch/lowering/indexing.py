"""Elements picked, replaced or added to where index tensors say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from umd_core import dtypes
from umd_core.template import broadcast
from umd_torch.builder import Builder, Value, axis_of
from umd_torch.lowering.common import Number, Table, operand
from umd_torch.lowering.places import from_start

aten = torch.ops.aten


def _with_axis(b: Builder, x: Value) -> Value:
    return x if x.rank else b.reshape(x, (1,))


def _lifted(b: Builder, data: Value, index: Value) -> tuple[Value, Value]:
    """Returns data and index with an axis at least, the index in a type that the ops take."""
    if index.dtype not in dtypes.INDEX:
        index = b.cast(index, dtypes.int64)
    return _with_axis(b, data), _with_axis(b, index)


# one index tensor along one axis


def _gather(b: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    data, places = _lifted(b, x, from_start(b, index))
    return b.reshape(b.op("GatherElements", data, places, axis=axis_of(dim, x.rank)), index.shape)


def _index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    data, places = _lifted(b, x, from_start(b, index))
    return b.reshape(b.op("Gather", data, places, axis=axis_of(dim, x.rank)), b.shape)


def _embedding(
    b: Builder,
    weight: Value,
    index: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    return b.op("Gather", weight, from_start(b, index), axis=0)


def _embedding_backward(
    b: Builder, dy: Value, index: Value, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    if scale_grad_by_freq:
        dy = _over_frequency(b, dy, index, num_weights)
    return b.op("umd.EmbeddingGrad", dy, index, num_weights=num_weights, padding_idx=padding_idx)


def _over_frequency(b: Builder, dy: Value, index: Value, count: int) -> Value:
    """Returns the gradient of each row divided by how often its index comes."""
    places = b.cast(_flat(b, index), dtypes.int64)
    ones = b.full(1, dtypes.int64, places.shape)
    zeros = b.full(0, dtypes.int64, (count,))
    counts = b.op("ScatterElements", zeros, places, ones, axis=0, reduction="add")
    often = b.op("Gather", b.cast(counts, dy.dtype), index, axis=0)
    return b.op("Div", dy, b.unsqueeze(often, index.rank))


def _scatter(b: Builder, x: Value, dim: int, index: Value, source: Value | Number, reduction: str | None) -> Value:
    if 0 in index.shape:
        return x
    data, places = _lifted(b, x, index)
    if isinstance(source, Value):
        updates = _with_axis(b, source)
        for axis, extent in enumerate(places.shape):
            updates = b.slice(updates, axis, 0, extent)
    else:
        updates = b.full(source, x.dtype, places.shape)
    updates = b.cast(updates, x.dtype)
    result = b.op("ScatterElements", data, places, updates, axis=axis_of(dim, x.rank), reduction=reduction)
    return b.reshape(result, x.shape)


def _scatter_set(b: Builder, x: Value, dim: int, index: Value, source: Value | Number) -> Value:
    return _scatter(b, x, dim, from_start(b, index), source, None)


def _scatter_add(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scatter(b, x, dim, from_start(b, index), source, "add")


_REDUCTIONS = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}


def _scatter_reduce(b: Builder, x: Value, dim: int, index: Value, source: Value | Number, *, reduce: str) -> Value:
    return _scatter(b, x, dim, from_start(b, index), source, _REDUCTIONS[reduce])


def _scatter_reduce_two(
    b: Builder, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    index = from_start(b, index)
    if reduce == "mean":
        return _scatter_mean(b, x, dim, index, source, include_self)
    if not include_self:
        x = _scatter(b, x, dim, index, _neutral(reduce, x.dtype), None)
    return _scatter(b, x, dim, index, source, _REDUCTIONS[reduce])


def _neutral(reduce: str, dtype: dtypes.DType) -> Number:
    """Returns the number that changes nothing that it is combined with."""
    if reduce in ("sum", "prod"):
        return int(reduce == "prod")
    if dtype.is_float:
        return -math.inf if reduce == "amax" else math.inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if reduce == "amax" else limits.max)


def _scatter_mean(b: Builder, x: Value, dim: int, index: Value, source: Value, include_self: bool) -> Value:
    """Returns sums divided by how many numbers they are of; where none came, x stays."""
    sums = _scatter_reduce_two(b, x, dim, index, source, "sum", include_self=include_self)
    start, one = b.full(1, x.dtype, x.shape), b.full(1, x.dtype, index.shape)
    counts = _scatter_reduce_two(b, start, dim, index, one, "sum", include_self=include_self)
    if x.dtype.is_float:
        return b.op("Div", sums, counts)
    rest = b.op("Mod", sums, counts)  # torch divides integers downwards
    return b.op("Div", b.op("Sub", sums, rest), counts)


def _index_reduce(
    b: Builder, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    """Emits the reduction of scatter, with the one index of each slice for all of its elements."""
    axis = axis_of(dim, x.rank)
    column = b.reshape(index, (*(1,) * axis, math.prod(index.shape), *(1,) * (source.rank - axis - 1)))
    places = b.expand(column, source.shape) if source.rank else b.reshape(index, ())
    return _scatter_reduce_two(b, x, dim, places, source, reduce, include_self=include_self)


def _flat(b: Builder, x: Value) -> Value:
    return b.reshape(x, (math.prod(x.shape),))


def _put(b: Builder, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    done = _scatter(b, _flat(b, x), 0, _flat(b, index), _flat(b, source), "add" if accumulate else None)
    return b.reshape(done, x.shape)


# a mask that picks as many elements as there are places for


def _ranks(b: Builder, mask: Value) -> Value:
    """Returns, flat, how many elements the mask has picked before each."""
    counted = b.cast(_flat(b, mask), dtypes.int64)
    return b.op("CumSum", counted, b.scalar(0, dtypes.int64), exclusive=1)


def _masked_scatter(b: Builder, x: Value, mask: Value, source: Value) -> Value:
    """Returns x with the elements that the mask picks taken from the source, one after another."""
    if 0 in source.shape:
        return b.expand(x, b.shape)
    mask = b.expand(b.cast(mask, dtypes.bool_), b.shape)
    place = b.op("Where", _flat(b, mask), _ranks(b, mask), b.scalar(0, dtypes.int64))
    picked = b.reshape(b.op("Gather", _flat(b, source), place, axis=0), b.shape)
    return b.op("Where", mask, b.cast(picked, x.dtype), b.expand(x, b.shape))


def _masked_scatter_backward(b: Builder, dy: Value, mask: Value, sizes: Sequence[int]) -> Value:
    """Returns the gradient in the source: what the mask picks in order, then zeros."""
    count = math.prod(sizes)
    mask = b.expand(b.cast(mask, dtypes.bool_), dy.shape)
    place = b.op("Where", _flat(b, mask), _ranks(b, mask), b.scalar(count, dtypes.int64))
    done = b.op("ScatterElements", b.full(0, dy.dtype, (count + 1,)), place, _flat(b, dy), axis=0)
    return b.reshape(b.slice(done, 0, 0, count), sizes)


# several index tensors


class _Places(NamedTuple):
    """Which slices of a tensor several index tensors name.

    Attributes:
        axes: the indexed axes.
        place: row-major position within those axes, of the index tensors' common shape.
        front: whether the index axes come first in the result rather than where the indexed axes were.
    """

    axes: tuple[int, ...]
    place: Value
    front: bool


def _places(b: Builder, x: Value, indices: Sequence[Value | None]) -> _Places:
    """Returns what the index tensors name.

    The position is outside the axes where any index is, so that the device reports it.
    """
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    if any(index.dtype in (dtypes.bool_, dtypes.uint8) for index in given.values()):
        raise b.unsupported("a mask as an index makes a shape that depends on data")
    axes = tuple(given)
    adjacent = axes == tuple(range(axes[0], axes[0] + len(axes)))
    if len(axes) == 1:
        return _Places(axes, given[axes[0]], False)
    shape = broadcast(*(index.shape for index in given.values())) or ()
    zero = b.scalar(0, dtypes.int64)
    place, valid = zero, b.scalar(True, dtypes.bool_)
    for axis, index in given.items():
        index, extent = b.cast(index, dtypes.int64), b.scalar(x.shape[axis], dtypes.int64)
        index = b.op("Where", b.op("Less", index, zero), b.op("Add", index, extent), index)
        inside = b.op("And", b.op("GreaterOrEqual", index, zero), b.op("Less", index, extent))
        valid = inside if axis == axes[0] else b.op("And", valid, inside)
        place = index if axis == axes[0] else b.op("Add", b.op("Mul", place, extent), index)
    outside = b.scalar(math.prod(x.shape[a] for a in axes), dtypes.int64)
    return _Places(axes, b.expand(b.op("Where", valid, place, outside), shape), not adjacent)


def _flattened(b: Builder, x: Value, places: _Places) -> tuple[Value, list[int]]:
    """Returns x with the indexed axes first, as one, and the order of axes that does this."""
    order = [*places.axes, *(a for a in range(x.rank) if a not in places.axes)]
    count = len(places.axes)
    moved = b.transpose(x, order)
    return b.reshape(moved, (math.prod(moved.shape[:count]), *moved.shape[count:])), order


def _index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    places = _places(b, x, indices)
    if len(places.axes) == 1:
        return b.op("Gather", x, places.place, axis=places.axes[0])
    flat, _ = _flattened(b, x, places)
    picked = b.op("Gather", flat, places.place, axis=0)
    lead = 0 if places.front else places.axes[0]
    rank, wide = places.place.rank, picked.rank
    return b.transpose(picked, [*range(rank, rank + lead), *range(rank), *range(rank + lead, wide)])


def _index_put(b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    values = b.cast(values, x.dtype)
    first = indices[0] if indices else None
    if len(indices) == 1 and first is not None and first.dtype is dtypes.bool_:
        return _masked_put(b, x, first, values, accumulate)
    places = _places(b, x, indices)
    flat, order = _flattened(b, x, places)
    lead = 0 if places.front else places.axes[0]
    rank, rest = places.place.rank, flat.shape[1:]
    wanted = (*rest[:lead], *places.place.shape, *rest[lead:])
    wide = b.expand(values, wanted)
    updates = b.transpose(wide, [*range(lead, lead + rank), *range(lead), *range(lead + rank, len(wanted))])
    count = math.prod(places.place.shape)
    column = b.reshape(places.place, (count, *(1,) * len(rest)))
    reduction = "add" if accumulate else None
    updates = b.reshape(updates, (count, *rest))
    done = b.op("ScatterElements", flat, b.expand(column, updates.shape), updates, axis=0, reduction=reduction)
    moved = b.reshape(done, [x.shape[a] for a in order])
    return b.transpose(moved, [order.index(a) for a in range(x.rank)])


def _masked_put(b: Builder, x: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    """Puts values where a mask is set: one value, or as many slices as the mask picks, in their order."""
    rest = x.shape[mask.rank :]
    wide = b.reshape(mask, (*mask.shape, *(1,) * len(rest)))
    if values.rank <= len(rest) or values.shape[: values.rank - len(rest)] == (1,):
        new = values if values.rank <= len(rest) else b.squeeze(values, 0)
    else:
        place = b.op("Where", _flat(b, mask), _ranks(b, mask), b.scalar(0, dtypes.int64))
        new = b.op("Gather", values, b.reshape(place, mask.shape), axis=0)
    return b.op("Where", wide, b.op("Add", x, new) if accumulate else new, x)


def _masked_fill(b: Builder, x: Value, mask: Value, value: Value | Number) -> Value:
    return b.op("Where", b.cast(mask, dtypes.bool_), operand(b, value, x.dtype), x)


TABLE: Table = {
    aten.gather.default: _gather,
    aten.index_select.default: _index_select,
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.scatter.src: _scatter_set,
    aten.scatter.value: _scatter_set,
    aten.scatter.reduce: _scatter_reduce,
    aten.scatter.value_reduce: _scatter_reduce,
    aten.scatter_add.default: _scatter_add,
    aten.scatter_reduce.two: _scatter_reduce_two,
    aten.index_reduce.default: _index_reduce,
    aten.put.default: _put,
    aten.masked_scatter.default: _masked_scatter,
    aten.masked_scatter_backward.default: _masked_scatter_backward,
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
}
