"""Pools and their gradients. torch counts max-pool indices per plane, as umd.MaxPoolWithIndices does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from umd_core.dtypes import DType
from umd_core.ir import Array
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


class _Divided(NamedTuple):
    """An average pool with a divisor of its own, as one over whole windows: what to pad and to multiply.

    Attributes:
        before: zeros in front of each spatial axis.
        after: zeros behind it.
        factor: what turns the mean of a window into its sum over the divisor.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    factor: float


def _divided(kernel: Ints, stride: Ints, padding: Ints, extents: Ints, outputs: Ints, divisor: int) -> _Divided:
    spatial = len(extents)
    sizes = per_axis(kernel, spatial)
    steps, pads = per_axis(stride or sizes, spatial), per_axis(padding, spatial)
    axes = zip(extents, outputs, sizes, steps, pads, strict=True)
    after = tuple(max((o - 1) * s + k - e - p, 0) for e, o, k, s, p in axes)
    return _Divided(pads, after, math.prod(sizes) / divisor)


def _average_pool(spatial: int) -> Emitter:
    def emit(
        b: Builder, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,), ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        given = _attributes(spatial, kernel, stride, padding, (1,), ceil_mode)
        given["count_include_pad"] = int(count_include_pad)
        if divisor_override is None:
            return _as_batch(b, x, spatial, lambda v: b.op("AveragePool", v, **given))
        over = _divided(kernel, stride, padding, x.shape[-spatial:], b.shape[-spatial:], divisor_override)
        lead = (0,) * (x.rank - spatial)
        x = b.op("Pad", x, b.ints([*lead, *over.before, *lead, *over.after]))
        given |= {"pads": (0,) * (2 * spatial), "ceil_mode": 0}
        means = _as_batch(b, x, spatial, lambda v: b.op("AveragePool", v, **given))
        for axis, extent in enumerate(b.shape):  # what was padded for one axis may let another window fit
            means = b.slice(means, axis, 0, extent)
        return b.op("Mul", means, b.scalar(over.factor, means.dtype))

    return emit


def _average_pool_backward(spatial: int) -> Emitter:
    def emit(
        b: Builder, dy: Value, x: Value, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool,
        count_include_pad: bool, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        plane = x.shape[-spatial:]
        given = _attributes(spatial, kernel, stride, padding, (1,), ceil_mode)
        given |= {"count_include_pad": int(count_include_pad), "plane_shape": plane}
        if divisor_override is None:
            return b.op("umd.AveragePoolGrad", dy, **given)
        outputs = dy.shape[-spatial:]
        over = _divided(kernel, stride, padding, plane, outputs, divisor_override)
        # Exactly the padded plane that the windows cover; what lies behind them gets no gradient.
        steps = zip(outputs, given["strides"], given["kernel_shape"], strict=True)
        covered = tuple((o - 1) * s + k for o, s, k in steps)
        given |= {"pads": (0,) * (2 * spatial), "ceil_mode": 0, "plane_shape": covered}
        dx = b.op("umd.AveragePoolGrad", b.op("Mul", dy, b.scalar(over.factor, dy.dtype)), **given)
        lead = (0,) * (x.rank - spatial)
        behind = [b_ + e - c for b_, e, c in zip(over.before, plane, covered, strict=True)]
        return b.op("Pad", dx, b.ints([*lead, *(-p for p in over.before), *lead, *behind]))

    return emit


# windows that divide an axis evenly, of unequal size where they must


def _edges(extent: int, count: int) -> list[tuple[int, int]]:
    """Returns where each of `count` adaptive windows starts and stops."""
    return [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]


def _averages(b: Builder, extent: int, count: int, dtype: DType) -> Value:
    """Returns (extent, count) whose product with an axis gives the mean of each window."""
    weights = np.zeros((extent, count))
    for i, (start, stop) in enumerate(_edges(extent, count)):
        weights[start:stop, i] = 1 / (stop - start)
    return b.cast(b.constant(weights.astype(dtype.numpy)), dtype)


def _along_axis(b: Builder, x: Value, axis: int, matrix: Value) -> Value:
    """Returns x with an axis multiplied by a matrix."""
    order = [*(a for a in range(x.rank) if a != axis), axis]
    return b.transpose(b.op("MatMul", b.transpose(x, order), matrix), [order.index(a) for a in range(x.rank)])


def _even(extents: Sequence[int], outputs: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the window where all are of one size, else None."""
    if any(e % o for e, o in zip(extents, outputs, strict=True)):
        return None
    return tuple(e // o for e, o in zip(extents, outputs, strict=True))


def _adaptive_average(b: Builder, x: Value, size: Ints) -> Value:
    spatial = len(size)
    kernel = _even(x.shape[-spatial:], b.shape[-spatial:])
    if kernel:
        return _as_batch(b, x, spatial, lambda v: b.op("AveragePool", v, kernel_shape=kernel, strides=kernel))
    for axis in range(x.rank - spatial, x.rank):
        x = _along_axis(b, x, axis, _averages(b, x.shape[axis], b.shape[axis], x.dtype))
    return x


def _adaptive_average_backward(spatial: int) -> Emitter:
    def emit(b: Builder, dy: Value, x: Value) -> Value:
        plane = x.shape[-spatial:]
        kernel = _even(plane, dy.shape[-spatial:])
        if kernel:
            return b.op("umd.AveragePoolGrad", dy, kernel_shape=kernel, strides=kernel, plane_shape=plane)
        for axis in range(x.rank - spatial, x.rank):
            means = _averages(b, x.shape[axis], dy.shape[axis], dy.dtype)
            dy = _along_axis(b, dy, axis, b.transpose(means, (1, 0)))
        return dy

    return emit


def _window_places(extent: int, count: int) -> Array:
    """Returns (count, widest window): the positions of each window, its last one again where it is narrower."""
    edges = _edges(extent, count)
    widest = max(stop - start for start, stop in edges)
    return np.array([[min(start + i, stop - 1) for i in range(widest)] for start, stop in edges], np.int64)


def _adaptive_max(b: Builder, x: Value, size: Ints) -> tuple[Value, Value]:
    """Gathers every window and takes its first maximum; positions count within the plane, as a pool's do."""
    spatial = len(size)
    lead, plane, outputs = x.shape[: x.rank - spatial], x.shape[-spatial:], b.shape[-spatial:]
    flat = b.reshape(x, (*lead, math.prod(plane)))
    places = np.zeros((1,) * (2 * spatial), np.int64)
    for i, (extent, count) in enumerate(zip(plane, outputs, strict=True)):
        own = _window_places(extent, count)
        shape = [1] * (2 * spatial)
        shape[i], shape[spatial + i] = own.shape
        places = places * extent + own.reshape(shape)
    table = b.constant(places.reshape(math.prod(outputs), -1))
    windows = b.op("Gather", flat, table, axis=len(lead))
    values = b.op("ReduceMax", windows, b.ints([windows.rank - 1]), keepdims=0)
    which = b.op("ArgMax", windows, axis=windows.rank - 1, keepdims=1)
    index = b.op("GatherElements", b.expand(table, windows.shape), which, axis=windows.rank - 1)
    return b.reshape(values, b.shape), b.reshape(index, b.shape)


def _adaptive_max_backward(spatial: int) -> Emitter:
    def emit(b: Builder, dy: Value, x: Value, index: Value) -> Value:
        return b.op("umd.MaxPoolGrad", dy, index, plane_shape=x.shape[-spatial:])

    return emit


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
    aten._adaptive_avg_pool3d.default: _adaptive_average,
    aten._adaptive_avg_pool2d_backward.default: _adaptive_average_backward(2),
    aten._adaptive_avg_pool3d_backward.default: _adaptive_average_backward(3),
    aten.adaptive_max_pool2d.default: _adaptive_max,
    aten.adaptive_max_pool3d.default: _adaptive_max,
    aten.adaptive_max_pool2d_backward.default: _adaptive_max_backward(2),
    aten.adaptive_max_pool3d_backward.default: _adaptive_max_backward(3),
}
