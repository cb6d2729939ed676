"""Convolutions, transposed ones, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from umd_torch.builder import Builder, Value
from umd_torch.lowering.common import Table
from umd_torch.lowering.reductions import reduce

aten = torch.ops.aten
Ints = Sequence[int]


def per_axis(values: Ints | int, count: int) -> tuple[int, ...]:
    """Returns one number per spatial axis; torch lets one number stand for all."""
    numbers = (values,) if isinstance(values, int) else tuple(values)
    return numbers * count if len(numbers) == 1 else numbers


def window(spatial: int, stride: Ints, padding: Ints, dilation: Ints) -> dict[str, Any]:
    """Returns ONNX's attributes of a window."""
    pads = per_axis(padding, spatial)
    return {
        "strides": per_axis(stride, spatial),
        "pads": (*pads, *pads),
        "dilations": per_axis(dilation, spatial),
    }


def _add_bias(b: Builder, y: Value, bias: Value | None) -> Value:
    if bias is None:
        return y
    return b.op("Add", y, b.reshape(bias, (bias.shape[0], *(1,) * (y.rank - 2))))


def _convolution(
    b: Builder, x: Value, w: Value, bias: Value | None, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int,
) -> Value:  # fmt: skip
    over = window(x.rank - 2, stride, padding, dilation)
    if transposed:
        return _add_bias(b, b.op("umd.ConvInputGrad", x, w, shape=b.shape, group=groups, **over), bias)
    return b.op("Conv", x, w, bias, group=groups, **over)


def _convolution_backward(
    b: Builder, dy: Value, x: Value, w: Value, bias_sizes: Ints | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int, mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """A transposed convolution is the gradient of a plain one from y to x, so its gradients change places."""
    over = window(x.rank - 2, stride, padding, dilation)
    dx = dw = db = None
    if mask[0]:
        if transposed:
            dx = b.op("Conv", dy, w, group=groups, **over)
        else:
            dx = b.op("umd.ConvInputGrad", dy, w, shape=x.shape, group=groups, **over)
    if mask[1]:
        given, taken = (x, dy) if transposed else (dy, x)
        dw = b.op("umd.ConvWeightGrad", given, taken, kernel_shape=w.shape[2:], group=groups, **over)
    if mask[2]:
        db = reduce(b, "ReduceSum", dy, [0, *range(2, dy.rank)])
    return dx, dw, db


TABLE: Table = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
