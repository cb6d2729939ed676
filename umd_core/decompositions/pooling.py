"""Pools as reductions over windows of the padded input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from umd_core.decompositions.sliding import Axis, axes_of, padded, reversed_axes, spread, windows
from umd_core.dtypes import DType, int64
from umd_core.ir import Array
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, compute, widen
from umd_core.views import View


def max_pool(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records y = largest of each window, the padding being least."""
    axes = axes_of(extents, fields)
    x, y = operands["x"], operands["y"]
    over = windows(padded(recorder, x, axes, -math.inf), axes)
    recorder.reduce("max", over, _taps(axes), y)


def max_pool_index(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records `max_pool`; the position in the input plane follows from the position in the window.

    Padding wins only where all of a window is -inf, and then as its first tap: so the position along each axis is at
    least that of the window's first tap inside the input.
    """
    axes = axes_of(extents, fields)
    x, y, index = operands["x"], operands["y"], operands["index"]
    over = windows(padded(recorder, x, axes, -math.inf), axes)
    recorder.reduce("max", over, _taps(axes), y)
    tap = recorder.arg_reduce("max", over, _taps(axes), recorder.new(int64, index.shape))
    position = _position(recorder, axes, 0, tap)
    for number, axis in enumerate(axes[1:], 1):
        width = recorder.scalar(axis.input, int64)
        recorder.expression("multiply_add", (position, width, _position(recorder, axes, number, tap)), position)
    for number, axis in enumerate(axes):
        holds = _count(axis, None) > 0
        if not holds.all():  # windows that lie beside the input: position 0
            mask = _along(recorder, holds.astype(np.int64), len(axes) - 1 - number)
            recorder.expression("mul", (position, mask), position)
    recorder.copy(position, index)


def _position(recorder: Recorder, axes: Sequence[Axis], number: int, tap: View) -> View:
    """Returns the input position along one axis of each window's tap."""
    axis, rest = axes[number], len(axes) - 1 - number
    after = math.prod(a.kernel for a in axes[number + 1 :])
    along = recorder.expression("div", (tap, recorder.scalar(after, int64)), recorder.new(int64, tap.shape))
    recorder.expression("mod", (along, recorder.scalar(axis.kernel, int64)), along)
    starts = np.arange(axis.output, dtype=np.int64) * axis.stride - axis.pad
    least = starts + np.maximum(-(starts // axis.dilation), 0) * axis.dilation
    dilation = recorder.scalar(axis.dilation, int64)
    recorder.expression("multiply_add", (along, dilation, _along(recorder, starts, rest)), along)
    return recorder.expression("max", (along, _along(recorder, least, rest)), along)


def average_pool(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records y = sum of each window of the padded input, divided by its count."""
    axes = axes_of(extents, fields)
    x, y = operands["x"], operands["y"]
    wide = accumulator(x.dtype)
    over = windows(padded(recorder, x, axes, 0, wide), axes)
    total = y if y.dtype is wide else recorder.new(wide, y.shape)
    recorder.reduce("sum", over, _taps(axes), total)
    compute(recorder, "div", (total, _counts(recorder, axes, fields, wide)), y)


def average_pool_grad(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records dx = sums of dy / count, spread out by the stride, over the windows that hold each input position."""
    axes = axes_of(extents, fields)
    dy, dx = operands["dy"], operands["dx"]
    wide = accumulator(dy.dtype)
    shares = recorder.new(wide, dy.shape)
    recorder.expression("div", (widen(recorder, dy), _counts(recorder, axes, fields, wide)), shares)
    over = windows(spread(recorder, shares, axes), reversed_axes(axes))
    total = dx if dx.dtype is wide else recorder.new(wide, dx.shape)
    recorder.reduce("sum", over, _taps(axes), total)
    if total is not dx:
        recorder.copy(total, dx)


def _taps(axes: Sequence[Axis]) -> range:
    """Returns the kernel axes of windows over (batch, spatial…)."""
    return range(1 + len(axes), 1 + 2 * len(axes))


def _along(recorder: Recorder, values: Array, rest: int) -> View:
    """Returns a constant along one axis, to broadcast over the `rest` axes behind it."""
    return recorder.constant(values.reshape((-1,) + (1,) * rest))


def _counts(recorder: Recorder, axes: Sequence[Axis], fields: Mapping[str, Any], dtype: DType) -> View:
    """Returns what each window's sum is divided by, to broadcast over (batch, output…); 1 where nothing counts."""
    ends = fields["pads_end"] if fields["count_pad"] else [None] * len(axes)
    counts = [np.maximum(_count(axis, end), 1) for axis, end in zip(axes, ends, strict=True)]
    if all((c == c[:1]).all() for c in counts):
        return recorder.scalar(math.prod(int(c[0]) for c in counts), dtype)
    result = _along(recorder, counts[0].astype(dtype.numpy), len(axes) - 1)
    for number, count in enumerate(counts[1:], 1):
        rest = len(axes) - 1 - number
        shape = (*(a.output for a in axes[: number + 1]), *(1,) * rest)
        factor = _along(recorder, count.astype(dtype.numpy), rest)
        result = recorder.expression("mul", (result, factor), recorder.new(dtype, shape))
    return result


def _count(axis: Axis, pad_end: int | None) -> Array:
    """Returns the elements of each window along one axis that count: inside the input, or also in its padding."""
    low, high = (0, axis.input) if pad_end is None else (-axis.pad, axis.input + pad_end)
    starts = np.arange(axis.output, dtype=np.int64) * axis.stride - axis.pad
    first = np.maximum(-((starts - low) // axis.dilation), 0)
    end = np.minimum(-((starts - high) // axis.dilation), axis.kernel)
    result: Array = np.maximum(end - first, 0)
    return result
