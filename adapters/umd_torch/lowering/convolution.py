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


def _transposed_window(
    spatial: int, stride: Ints, padding: Ints, dilation: Ints, output_padding: Ints
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Returns the window of the plain convolution that a transposed one turns round, and the zeros behind its result.

    Output padding takes padding away at the end; what there is more of it lies beyond every window.
    """
    over = window(spatial, stride, padding, dilation)
    pads, more = over["pads"][:spatial], per_axis(output_padding, spatial)
    over["pads"] = (*pads, *(max(p - m, 0) for p, m in zip(pads, more, strict=True)))
    return over, tuple(max(m - p, 0) for p, m in zip(pads, more, strict=True))


def _transposed(
    b: Builder, x: Value, w: Value, stride: Ints, padding: Ints, dilation: Ints, output_padding: Ints, groups: int
) -> Value:
    spatial = x.rank - 2
    over, beyond = _transposed_window(spatial, stride, padding, dilation, output_padding)
    shape = (*b.shape[:2], *(e - z for e, z in zip(b.shape[2:], beyond, strict=True)))
    y = b.op("umd.ConvInputGrad", x, w, shape=shape, group=groups, **over)
    return b.op("Pad", y, b.ints([0] * (spatial + 4) + list(beyond))) if any(beyond) else y


def _convolution(
    b: Builder, x: Value, w: Value, bias: Value | None, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int,
) -> Value:  # fmt: skip
    if transposed:
        return _add_bias(b, _transposed(b, x, w, stride, padding, dilation, output_padding, groups), bias)
    return b.op("Conv", x, w, bias, group=groups, **window(x.rank - 2, stride, padding, dilation))


def _convolution_backward(
    b: Builder, dy: Value, x: Value, w: Value, bias_sizes: Ints | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int, mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    spatial, kernel = x.rank - 2, w.shape[2:]
    over = window(spatial, stride, padding, dilation)
    db = reduce(b, "ReduceSum", dy, [0, *range(2, dy.rank)]) if mask[2] else None
    if not transposed:
        dx = b.op("umd.ConvInputGrad", dy, w, shape=x.shape, group=groups, **over) if mask[0] else None
        dw = b.op("umd.ConvWeightGrad", dy, x, kernel_shape=kernel, group=groups, **over) if mask[1] else None
        return dx, dw, db
    # A transposed convolution is the gradient of a plain one from y to x, so its gradients change places.
    over, beyond = _transposed_window(spatial, stride, padding, dilation, output_padding)
    for axis, zeros in enumerate(beyond, 2):
        dy = b.slice(dy, axis, 0, dy.shape[axis] - zeros)
    dx = b.op("Conv", dy, w, group=groups, **over) if mask[0] else None
    dw = b.op("umd.ConvWeightGrad", x, dy, kernel_shape=kernel, group=groups, **over) if mask[1] else None
    return dx, dw, db


TABLE: Table = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
