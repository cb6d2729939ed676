"""Pools and their gradients. torch counts max-pool indices per plane, as umd.MaxPoolWithIndices does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from umd_torch.builder import Builder, Value
from umd_torch.lowering.common import Emitter, Table
from umd_torch.lowering.convolution import Ints, per_axis, window

aten = torch.ops.aten


def _attributes(spatial: int, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool) -> dict[str, Any]:
    size = per_axis(kernel, spatial)
    return {
        "kernel_shape": size,
        "ceil_mode": int(ceil),
        **window(spatial, stride or size, padding, dilation),
    }


def _max_pool(spatial: int) -> Emitter:
    def emit(
        b: Builder, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,), dilation: Ints = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Value, ...]:  # fmt: skip
        given = _attributes(spatial, kernel, stride, padding, dilation, ceil_mode)
        return b.ops("umd.MaxPoolWithIndices", (x,), (True, True), given)

    return emit


def _max_pool_backward(spatial: int) -> Emitter:
    def emit(b: Builder, dy: Value, x: Value, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool,
             index: Value) -> Value:  # fmt: skip
        return b.op("umd.MaxPoolGrad", dy, index, plane_shape=x.shape[-spatial:])

    return emit


def _as_batch(b: Builder, x: Value, spatial: int, pool: Callable[[Value], Value]) -> Value:
    """Returns the pool of x, given the batch axis that ONNX's pools want where x has none."""
    if x.rank == spatial + 2:
        return pool(x)
    return b.squeeze(pool(b.unsqueeze(x, 0)), 0)


def _average_pool(spatial: int) -> Emitter:
    def emit(
        b: Builder, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,), ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        if divisor_override is not None:
            raise b.unsupported("divisor_override is not there")
        given = _attributes(spatial, kernel, stride, padding, (1,), ceil_mode)
        given["count_include_pad"] = int(count_include_pad)
        return _as_batch(b, x, spatial, lambda v: b.op("AveragePool", v, **given))

    return emit


def _average_pool_backward(spatial: int) -> Emitter:
    def emit(
        b: Builder, dy: Value, x: Value, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool,
        count_include_pad: bool, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        if divisor_override is not None:
            raise b.unsupported("divisor_override is not there")
        given = _attributes(spatial, kernel, stride, padding, (1,), ceil_mode)
        given |= {"count_include_pad": int(count_include_pad), "plane_shape": x.shape[-spatial:]}
        return b.op("umd.AveragePoolGrad", dy, **given)

    return emit


def _adaptive_windows(b: Builder, extents: Sequence[int], outputs: Sequence[int]) -> tuple[int, ...]:
    """Returns the window per axis; windows of unequal size (7 to 3) are not there."""
    if any(o == 0 or e % o for e, o in zip(extents, outputs, strict=True)):
        raise b.unsupported(f"adaptive pool of {list(extents)} to {list(outputs)}: windows of unequal size")
    return tuple(e // o for e, o in zip(extents, outputs, strict=True))


def _adaptive_average(b: Builder, x: Value, size: Ints) -> Value:
    spatial = len(size)
    kernel = _adaptive_windows(b, x.shape[-spatial:], b.shape[-spatial:])
    return _as_batch(b, x, spatial, lambda v: b.op("AveragePool", v, kernel_shape=kernel, strides=kernel))


def _adaptive_average_backward(b: Builder, dy: Value, x: Value) -> Value:
    plane = x.shape[-2:]
    kernel = _adaptive_windows(b, plane, dy.shape[-2:])
    return b.op("umd.AveragePoolGrad", dy, kernel_shape=kernel, strides=kernel, plane_shape=plane)


TABLE: Table = {
    aten.max_pool2d_with_indices.default: _max_pool(2),
    aten.max_pool3d_with_indices.default: _max_pool(3),
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward(2),
    aten.max_pool3d_with_indices_backward.default: _max_pool_backward(3),
    aten.avg_pool1d.default: _average_pool(1),
    aten.avg_pool2d.default: _average_pool(2),
    aten.avg_pool3d.default: _average_pool(3),
    aten.avg_pool2d_backward.default: _average_pool_backward(2),
    aten.avg_pool3d_backward.default: _average_pool_backward(3),
    aten._adaptive_avg_pool2d.default: _adaptive_average,
    aten._adaptive_avg_pool2d_backward.default: _adaptive_average_backward,
}
