"""Softmax, and normalisation over layers, groups and batches, with gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from umd_core import dtypes
from umd_torch.builder import Builder, Value, axis_of
from umd_torch.lowering.common import Emitter, Table

aten = torch.ops.aten
Optional = Value | None
Several = tuple[Optional, ...]


def _promised(b: Builder, values: Sequence[Optional]) -> Several:
    """Returns the values in the element types that torch states; statistics of half inputs may differ."""
    pairs = zip(values, b.promises, strict=False)
    return tuple(None if value is None else b.cast(value, promise.dtype) for value, promise in pairs)


# softmax


def _softmax(op: str) -> Emitter:
    def emit(b: Builder, x: Value, dim: int, half_to_float: bool = False) -> Value:
        return b.op(op, b.cast(x, b.dtype), axis=axis_of(dim, x.rank))

    return emit


def _softmax_backward(op: str) -> Emitter:
    def emit(b: Builder, dy: Value, y: Value, dim: int, input_dtype: Any = None) -> Value:
        return b.cast(b.op(op, dy, y, axis=axis_of(dim, y.rank)), b.dtype)

    return emit


# layers and groups


def _layer_norm(b: Builder, x: Value, shape: Sequence[int], weight: Optional, bias: Optional, eps: float) -> Several:
    axis = x.rank - len(shape)
    return _promised(b, b.ops("umd.LayerNorm", (x, weight, bias), (True,) * 3, {"axis": axis, "epsilon": eps}))


def _layer_norm_backward(
    b: Builder, dy: Value, x: Value, shape: Sequence[int], mean: Value, rstd: Value, weight: Optional, bias: Optional,
    mask: Sequence[bool],
) -> Several:  # fmt: skip
    given = {"axis": x.rank - len(shape)}
    grads = b.ops("umd.LayerNormGrad", (dy, x, mean, rstd, weight), tuple(mask), given)
    return tuple(g if m else None for g, m in zip(_promised(b, grads), mask, strict=True))


def _group_norm(
    b: Builder, x: Value, weight: Optional, bias: Optional, batch: int, channels: int, _: int, groups: int, eps: float
) -> Several:
    """Emits a layer norm over each group, then scale and bias per channel."""
    grouped = b.reshape(x, (batch, groups, math.prod(x.shape) // max(batch * groups, 1)))
    y, mean, rstd = b.ops("umd.LayerNorm", (grouped, None, None), (True,) * 3, {"axis": 2, "epsilon": eps})
    y = b.reshape(y, x.shape)
    for op, parameter in (("Mul", weight), ("Add", bias)):
        if parameter is not None:
            y = b.op(op, y, b.reshape(parameter, (channels, *(1,) * (x.rank - 2))))
    statistics = (b.reshape(mean, (batch, groups)), b.reshape(rstd, (batch, groups)))
    return _promised(b, (y, *statistics))


# batches


def _batch_norm_train(
    b: Builder, x: Value, weight: Optional, bias: Optional, mean: Optional, var: Optional, momentum: float, eps: float
) -> tuple[Value, ...]:
    count = 3 if mean is None else 5
    given = {"momentum": momentum, "epsilon": eps}
    return b.ops("umd.BatchNormTrain", (x, weight, bias, mean, var)[:count], (True,) * count, given)


def _batch_norm_infer(
    b: Builder, x: Value, weight: Optional, bias: Optional, mean: Value, var: Value, eps: float
) -> Value:
    channels = (x.shape[1],)
    scale = weight or b.full(1, x.dtype, channels)
    shift = bias or b.full(0, x.dtype, channels)
    return b.op("BatchNormalization", x, scale, shift, mean, var, epsilon=eps)


def _nothing(b: Builder) -> Value:
    """Returns the empty statistics that torch gives where none are kept."""
    return b.full(0, b.promises[1].dtype, (0,))


def _batch_norm_functional(
    b: Builder, x: Value, weight: Optional, bias: Optional, mean: Value, var: Value, training: bool, momentum: float,
    eps: float,
) -> Several:  # fmt: skip
    if training:
        return _promised(b, _batch_norm_train(b, x, weight, bias, mean, var, momentum, eps))
    y = _batch_norm_infer(b, x, weight, bias, mean, var, eps)
    return _promised(b, (y, _nothing(b), _nothing(b), mean, var))


def _batch_norm_no_training(
    b: Builder, x: Value, weight: Optional, bias: Optional, mean: Value, var: Value, momentum: float, eps: float
) -> Several:
    return _batch_norm_infer(b, x, weight, bias, mean, var, eps), _nothing(b), _nothing(b)


def _batch_norm_no_stats(
    b: Builder, x: Value, weight: Optional, bias: Optional, training: bool, momentum: float, eps: float
) -> Several:
    return _promised(b, _batch_norm_train(b, x, weight, bias, None, None, momentum, eps))


def _batch_norm_backward(
    b: Builder, dy: Value, x: Value, weight: Optional, mean: Optional, var: Optional, save_mean: Optional,
    save_invstd: Optional, train: bool, eps: float, mask: Sequence[bool],
) -> Several:  # fmt: skip
    centre, scale = save_mean, save_invstd
    if not train:
        if mean is None or var is None:
            raise b.unsupported("batch norm without running statistics outside training")
        wide = dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32
        centre = b.cast(mean, wide)
        scale = b.op("umd.Rsqrt", b.op("Add", b.cast(var, wide), b.scalar(eps, wide)))
    given = {"training_mode": int(train)}
    grads = b.ops("umd.BatchNormGrad", (dy, x, centre, scale, weight), tuple(mask), given)
    return tuple(g if m else None for g, m in zip(_promised(b, grads), mask, strict=True))


def _batch_norm_backward_with_reserve(
    b: Builder, dy: Value, x: Value, weight: Value, mean: Optional, var: Optional, save_mean: Optional,
    save_invstd: Optional, update: bool, eps: float, mask: Sequence[bool], reserve: Value,
) -> Several:  # fmt: skip
    return _batch_norm_backward(b, dy, x, weight, mean, var, save_mean, save_invstd, update, eps, mask)


TABLE: Table = {
    aten._softmax.default: _softmax("Softmax"),
    aten._log_softmax.default: _softmax("LogSoftmax"),
    aten._softmax_backward_data.default: _softmax_backward("umd.SoftmaxGrad"),
    aten._log_softmax_backward_data.default: _softmax_backward("umd.LogSoftmaxGrad"),
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_no_training,
    aten._native_batch_norm_legit.no_stats: _batch_norm_no_stats,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.batch_norm_backward.default: _batch_norm_backward_with_reserve,
}
