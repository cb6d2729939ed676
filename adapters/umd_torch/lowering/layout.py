"""Views, copies and rearrangements. A value has no layout, so a view is the same elements under another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from umd_torch.builder import Builder, Value, axis_of, from_torch
from umd_torch.lowering.common import Emitter, Table

aten = torch.ops.aten
_LAST = 2**63 - 1
MAX_INDEXED = 1 << 16
"""Elements that `as_strided` may pick by a constant index."""


def _same(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    return x


def _to_result_shape(b: Builder, x: Value, *_: Any) -> Value:
    return b.reshape(x, b.shape)


def _expand(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    return b.expand(x, b.shape)


def _to_copy(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    return b.cast(x, b.dtype)


def _copy(b: Builder, target: Value, source: Value, non_blocking: bool = False) -> Value:
    return b.expand(b.cast(source, target.dtype), target.shape)


def _view_dtype(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    if from_torch(dtype) is x.dtype:
        return x
    raise b.unsupported("reinterpreting the bytes as another element type is not there")


def _permute(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    return b.transpose(x, [axis_of(a, x.rank) for a in axes])


def _transpose(b: Builder, x: Value, first: int, second: int) -> Value:
    axes = list(range(x.rank))
    if axes:
        i, j = axis_of(first, x.rank), axis_of(second, x.rank)
        axes[i], axes[j] = axes[j], axes[i]
    return b.transpose(x, axes)


def _t(b: Builder, x: Value) -> Value:
    return b.transpose(x, list(range(x.rank))[::-1])


def clamp_slice(start: int | None, stop: int | None, extent: int) -> tuple[int, int]:
    """Returns start and stop within [0, extent], as torch.slice reads them."""
    low = 0 if start is None else start + extent if start < 0 else start
    low = min(max(low, 0), extent)
    high = extent if stop is None or stop == _LAST else stop + extent if stop < 0 else stop
    return low, min(max(high, low), extent)


def _slice(
    b: Builder, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    axis = axis_of(dim, x.rank)
    low, high = clamp_slice(start, end, x.shape[axis])
    return b.slice(x, axis, low, high, step)


def _select(b: Builder, x: Value, dim: int, index: int) -> Value:
    axis = axis_of(dim, x.rank)
    at = index + x.shape[axis] if index < 0 else index
    return b.reshape(b.slice(x, axis, at, at + 1), b.shape)


def _pieces(b: Builder, x: Value, sizes: Sequence[int], axis: int) -> tuple[Value, ...]:
    starts = np.cumsum([0, *sizes])
    return tuple(b.slice(x, axis, int(s), int(s) + int(n)) for s, n in zip(starts, sizes, strict=False))


def _split_with_sizes(b: Builder, x: Value, sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    return _pieces(b, x, sizes, axis_of(dim, x.rank))


def _split(b: Builder, x: Value, size: int, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(dim, x.rank)
    return _pieces(b, x, [p.shape[axis] for p in b.promises], axis)


def _unbind(b: Builder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(dim, x.rank)
    return tuple(b.squeeze(p, axis) for p in _pieces(b, x, [1] * x.shape[axis], axis))


def _cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [b.cast(t, b.dtype) for t in tensors if t.shape != (0,) or len(b.shape) == 1]
    if len(parts) == 1:
        return parts[0]
    return b.op("Concat", *parts, axis=axis_of(dim, len(b.shape)))


def _stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = axis_of(dim, len(b.shape))
    return b.op("Concat", *(b.unsqueeze(b.cast(t, b.dtype), axis) for t in tensors), axis=axis)


def _pad(b: Builder, x: Value, pad: Sequence[int], value: float = 0) -> Value:
    """Emits slices for negative pads, then one Pad; torch lists pads from the last axis on."""
    before, after = [0] * x.rank, [0] * x.rank
    for i in range(len(pad) // 2):
        before[-1 - i], after[-1 - i] = int(pad[2 * i]), int(pad[2 * i + 1])
    for axis in range(x.rank):
        x = b.slice(x, axis, max(-before[axis], 0), x.shape[axis] - max(-after[axis], 0))
    pads = [max(p, 0) for p in (*before, *after)]
    return b.op("Pad", x, b.ints(pads), b.scalar(value, x.dtype)) if any(pads) else x


def _flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    axes = [axis_of(d, x.rank) for d in dims]
    if not axes or 0 in x.shape or not x.rank:
        return x
    count = len(axes)
    starts, stops, steps = [-1] * count, [-_LAST] * count, [-1] * count
    return b.op("Slice", x, b.ints(starts), b.ints(stops), b.ints(axes), b.ints(steps))


def _repeat(b: Builder, x: Value, repeats: Sequence[int]) -> Value:
    """Emits (1, e) per axis, expanded to (r, e), reshaped to r · e."""
    own = (1,) * (len(repeats) - x.rank) + x.shape
    apart = [extent for e in own for extent in (1, e)]
    wide = [extent for r, e in zip(repeats, own, strict=True) for extent in (int(r), e)]
    return b.reshape(b.expand(b.reshape(x, apart), wide), b.shape)


def _slice_scatter(
    b: Builder, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    axis = axis_of(dim, x.rank)
    low, high = clamp_slice(start, end, x.shape[axis])
    places = np.arange(low, high, step)
    source = b.cast(source, x.dtype)
    if source.shape[axis] != len(places):
        source = b.expand(source, (*x.shape[:axis], len(places), *x.shape[axis + 1 :]))
    if step == 1:
        parts = (b.slice(x, axis, 0, low), source, b.slice(x, axis, high, x.shape[axis]))
        kept = [p for p in parts if p.shape[axis]]
        return b.op("Concat", *kept, axis=axis) if len(kept) > 1 else (kept or [x])[0]
    column = b.constant(places.reshape(-1, *(1,) * (x.rank - axis - 1)))
    return b.op("ScatterElements", x, b.expand(column, source.shape), source, axis=axis)


def _select_scatter(b: Builder, x: Value, source: Value, dim: int, index: int) -> Value:
    axis = axis_of(dim, x.rank)
    at = index + x.shape[axis] if index < 0 else index
    return _slice_scatter(b, x, b.unsqueeze(source, axis), axis, at, at + 1)


def _strided_places(b: Builder, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Value:
    """Returns the positions that as_strided picks, of a base whose elements lie row-major from offset 0 on."""
    if not b.row_major:
        raise b.unsupported("as_strided of a view needs the storage behind it")
    places = np.asarray(offset or 0, np.int64)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        column = np.arange(int(extent), dtype=np.int64) * int(step)
        places = places + column.reshape(-1, *(1,) * (len(size) - axis - 1))
    if places.size > MAX_INDEXED:
        raise b.unsupported(f"as_strided of more than {MAX_INDEXED} elements is not there")
    if places.size and (places.min() < 0 or places.max() >= math.prod(x.shape)):
        raise b.unsupported("as_strided reaches outside its base")
    return b.constant(places)


def _as_strided(
    b: Builder, x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    places = _strided_places(b, x, size, stride, storage_offset)
    return b.op("Gather", b.reshape(x, (math.prod(x.shape),)), places, axis=0)


def _as_strided_scatter(
    b: Builder, x: Value, source: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    places = _strided_places(b, x, size, stride, storage_offset)
    count = math.prod(places.shape)
    if not count:
        return x
    flat, updates = b.reshape(x, (math.prod(x.shape),)), b.reshape(b.cast(source, x.dtype), (count,))
    return b.reshape(b.op("ScatterElements", flat, b.reshape(places, (count,)), updates, axis=0), x.shape)


def _unfold(b: Builder, x: Value, dim: int, size: int, step: int) -> Value:
    """Emits a gather of windows along an axis, their elements on a new last axis."""
    axis = axis_of(dim, x.rank)
    if not x.rank:
        return b.reshape(x, b.shape)
    starts = np.arange(b.shape[axis], dtype=np.int64)[:, None] * step
    windows = b.op("Gather", x, b.constant(starts + np.arange(size, dtype=np.int64)), axis=axis)
    return b.transpose(windows, [a for a in range(windows.rank) if a != axis + 1] + [axis + 1])


class _Diagonal(NamedTuple):
    """A tensor with the two axes of a diagonal last and flattened, and where the diagonal lies in them."""

    flat: Value
    order: list[int]
    places: Value


def _on_diagonal(b: Builder, x: Value, count: int, offset: int, dim1: int, dim2: int) -> _Diagonal:
    first, second = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    order = [*(a for a in range(x.rank) if a not in (first, second)), first, second]
    moved = b.transpose(x, order)
    columns = x.shape[second]
    start = offset if offset >= 0 else -offset * columns
    places = b.constant(start + np.arange(count, dtype=np.int64) * (columns + 1))
    return _Diagonal(b.reshape(moved, (*moved.shape[:-2], x.shape[first] * columns)), order, places)


def _diagonal(b: Builder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    on = _on_diagonal(b, x, b.shape[-1], offset, dim1, dim2)
    return b.op("Gather", on.flat, on.places, axis=on.flat.rank - 1)


def _diagonal_scatter(b: Builder, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    on = _on_diagonal(b, x, source.shape[-1], offset, dim1, dim2)
    if 0 in source.shape:
        return x
    index, updates = b.expand(on.places, source.shape), b.cast(source, x.dtype)
    flat = b.op("ScatterElements", on.flat, index, updates, axis=on.flat.rank - 1)
    moved = b.reshape(flat, [x.shape[a] for a in on.order])
    return b.transpose(moved, [on.order.index(a) for a in range(x.rank)])


def _each(emitter: Emitter, *targets: Any) -> Table:
    return dict.fromkeys(targets, emitter)


VIEWS = (
    aten.alias.default, aten.detach.default, aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default, aten.permute.default,
    aten.transpose.int, aten.t.default, aten.slice.Tensor, aten.select.int,
)  # fmt: skip
"""Ops of one result that move no data."""

TABLE: Table = {
    **_each(
        _same, aten.alias.default, aten.detach.default, aten.clone.default, aten.lift_fresh_copy.default,
        aten.lift_fresh.default, aten.contiguous.default, aten.alias_copy.default, aten._conj.default,
    ),
    **_each(
        _to_result_shape, aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.view_copy.default,
        aten._reshape_alias.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim,
        aten.squeeze.dims, aten.flatten.using_ints,
    ),
    **_each(_expand, aten.expand.default, aten.expand_copy.default),
    **_each(_to_copy, aten._to_copy.default, torch.ops.prims.convert_element_type.default),
    aten.copy.default: _copy,
    aten.view.dtype: _view_dtype,
    **_each(_permute, aten.permute.default, aten.permute_copy.default),
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.split.Tensor: _split,
    aten.unbind.int: _unbind,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.constant_pad_nd.default: _pad,
    aten.flip.default: _flip,
    aten.repeat.default: _repeat,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    **_each(_as_strided, aten.as_strided.default, aten.as_strided_copy.default),
    aten.as_strided_scatter.default: _as_strided_scatter,
    **_each(_diagonal, aten.diagonal.default, aten.diagonal_copy.default),
    aten.diagonal_scatter.default: _diagonal_scatter,
    **_each(_unfold, aten.unfold.default, aten.unfold_copy.default),
}  # fmt: skip
