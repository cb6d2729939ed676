"""What single calls need beside the lowering table: filling, ranges written in place, random integers."""

from __future__ import annotations

from typing import Any

import torch

from umd_core import dtypes
from umd_torch.builder import Builder, Value
from umd_torch.lowering import LOWERINGS, Emitter, lowering_of
from umd_torch.lowering.common import Number, Table

aten = torch.ops.aten
_MANTISSA = {dtypes.float64: 53, dtypes.float32: 24, dtypes.float16: 11, dtypes.bfloat16: 8}


def _fill(b: Builder, _: Value, value: Value | Number) -> Value:
    return b.expand(b.cast(value, b.dtype), b.shape) if isinstance(value, Value) else b.full(value, b.dtype, b.shape)


def _zero(b: Builder, _: Value) -> Value:
    return b.full(0, b.dtype, b.shape)


def _random_to(b: Builder, x: Value, high: int, *, generator: Any = None) -> Value:
    return _random_from(b, x, 0, high, generator=generator)


def _random_from(b: Builder, x: Value, low: int, high: int | None, *, generator: Any = None) -> Value:
    if generator is not None:
        raise b.unsupported("a generator of its own is not there, only the one that torch.manual_seed seeds")
    dtype = b.dtype if b.dtype.is_integer else dtypes.int64
    limits = {"low": low, "high": _top(b.dtype) + 1 if high is None else high}
    return b.cast(b.op("umd.RandomInteger", *b.keys(), shape=b.shape, dtype=dtype, **limits), b.dtype)


def _random(b: Builder, x: Value, *, generator: Any = None) -> Value:
    """Returns integers from 0 to the largest that the element type holds exactly."""
    return _random_from(b, x, 0, None, generator=generator)


def _top(dtype: dtypes.DType) -> int:
    if dtype in _MANTISSA:
        return int(2 ** _MANTISSA[dtype])
    bits = 1 if dtype is dtypes.bool_ else 8 * dtype.size - (dtype.kind == "i")
    return int(min(2**bits - 1, 2**63 - 2))


TABLE: Table = {
    aten.randperm.generator: LOWERINGS[aten.randperm.default],
    aten.fill.Scalar: _fill,
    aten.fill.Tensor: _fill,
    aten.zero.default: _zero,
    aten.random.default: _random,
    aten.random.to: _random_to,
    getattr(aten.random, "from"): _random_from,
}


def emitter_of(op: Any) -> Emitter | None:
    """Returns the emitter of an overload, those of this file included."""
    return TABLE.get(op) or lowering_of(op)
