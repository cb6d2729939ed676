"""Running sums and products, sorting, and the first of the sorted order."""

from __future__ import annotations

import torch

from umd_core import dtypes
from umd_torch.builder import Builder, Value, axis_of
from umd_torch.lowering.common import Emitter, Table

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


TABLE: Table = {
    aten.cumsum.default: _running("CumSum"),
    aten.cumprod.default: _running("CumProd"),
    aten.sort.default: _sort,
    aten.sort.stable: _sort_stable,
    aten.topk.default: _top,
}
