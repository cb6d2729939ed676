"""Tensors made from numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from umd_core import dtypes
from umd_torch.builder import Builder, Value
from umd_torch.lowering.common import Emitter, Number, Table

aten = torch.ops.aten
MAX_CONSTANT = 1 << 12
"""Elements up to which a range is a constant of the program."""


def _scalar_tensor(b: Builder, value: Number, **_: Any) -> Value:
    return b.scalar(value, b.dtype)


def _full(b: Builder, _: Any, value: Number | Value, **__: Any) -> Value:
    if isinstance(value, Value):
        return b.expand(b.cast(value, b.dtype), b.shape)
    return b.full(value, b.dtype, b.shape)


def _always(value: Number) -> Emitter:
    """Returns an emitter of a tensor of one number. What torch leaves uninitialised is zero here."""

    def emit(b: Builder, *_: Any, **__: Any) -> Value:
        return b.full(value, b.dtype, b.shape)

    return emit


def _range(b: Builder, start: Number, step: Number) -> Value:
    count = b.shape[0]
    if count <= MAX_CONSTANT and not b.open_sizes:
        steps = np.arange(count, dtype=np.int64)
        exact = start + steps * step if b.dtype.is_integer else float(start) + steps * float(step)
        return b.constant(np.asarray(exact).astype(b.dtype.numpy))
    if not b.dtype.is_integer:
        ramp = b.cast(_range_op(b, 0, 1, count, dtypes.int64), b.dtype)
        return b.op("Add", b.op("Mul", ramp, b.scalar(step, b.dtype)), b.scalar(start, b.dtype))
    return _range_op(b, int(start), int(step), count, b.dtype)


def _range_op(b: Builder, start: int, step: int, count: int, dtype: dtypes.DType) -> Value:
    limit = start + step * count
    return b.op("Range", *(b.scalar(v, dtype) for v in (start, limit, step)))


def _arange(b: Builder, end: Number, **_: Any) -> Value:
    return _range(b, 0, 1)


def _arange_from(b: Builder, start: Number, end: Number, step: Number = 1, **_: Any) -> Value:
    return _range(b, start, step)


def _iota(b: Builder, length: int, *, start: int, step: int, **_: Any) -> Value:
    return _range(b, start, step)


TABLE: Table = {
    aten.scalar_tensor.default: _scalar_tensor,
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.new_full.default: lambda b, x, size, value, **_: _full(b, size, value),
    **dict.fromkeys(
        (
            aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.empty.memory_format,
            aten.empty_like.default, aten.new_empty.default, aten.empty_permuted.default, aten.empty_strided.default,
            aten.new_empty_strided.default, aten._efficientzerotensor.default,
        ),
        _always(0),
    ),
    **dict.fromkeys((aten.ones.default, aten.ones_like.default, aten.new_ones.default), _always(1)),
    aten.arange.default: _arange,
    aten.arange.start: _arange_from,
    aten.arange.start_step: _arange_from,
    torch.ops.prims.iota.default: _iota,
}  # fmt: skip
