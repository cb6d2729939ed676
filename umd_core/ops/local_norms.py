"""LRN and MeanVarianceNormalization."""

from __future__ import annotations

import math

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.errors import LimitError
from umd_core.recorder import Recorder
from umd_core.shaping import widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axes
from umd_core.views import View

_MVN_EPSILON = 1e-9
LARGEST = 1 << 31
"""Channels of a window, at most."""


def _lrn_shape(call: Call) -> tuple[Shape]:
    shape = call.desc(0).shape
    if len(shape) < 2:
        raise call.error(f"has shape {list(shape)}; (N, C, …) would be right", input="X")
    if call.attr("size") < 1:
        raise call.bad_attribute("size", f"{call.attr('size')} channels are no window", "1 or more")
    if call.attr("size") > LARGEST:
        raise LimitError("channels of a window", call.attr("size"), LARGEST)
    return (shape,)


def _emit_lrn(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """The mean of squares over windows of channels is an average pool of planes (channels, positions)."""
    x, out, size = widen(recorder, views[0]), recorder.out(call), call.attr("size")
    batch, channels, rest = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    plane = (batch, channels, rest)
    square = recorder.expression("mul", (x, x), recorder.like(x))
    mean = recorder.like(x)
    extents: dict[str, int | Shape] = {"batch": batch, "output": plane[1:], "input": plane[1:], "kernel": (size, 1)}
    fields = {
        "window_strides": (1, 1), "dilations": (1, 1), "pads": ((size - 1) // 2, 0), "pads_end": (size // 2, 0),
        "count_pad": 1,
    }  # fmt: skip
    operands = {"x": recorder.reshape(square, plane), "y": recorder.reshape(mean, plane)}
    recorder.launch("average_pool_kernel", extents, operands, fields)
    alpha, bias = (recorder.scalar(call.attr(name), x.dtype) for name in ("alpha", "bias"))
    recorder.expression("multiply_add", (mean, alpha, bias), mean)
    recorder.expression("pow", (mean, recorder.scalar(-call.attr("beta"), x.dtype)), mean)
    return recorder.copy(recorder.expression("mul", (x, mean), mean), out)


def _mvn_shape(call: Call) -> tuple[Shape]:
    shape = call.desc(0).shape
    normal_axes(call, call.attr("axes"), len(shape))
    return (shape,)


def _emit_mvn(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x = widen(recorder, views[0])
    axes = normal_axes(call, call.attr("axes"), x.rank)
    centred = recorder.expression("sub", (x, _mean(recorder, x, axes)), recorder.like(x))
    square = recorder.expression("mul", (centred, centred), recorder.like(x))
    deviation = _mean(recorder, square, axes)
    recorder.expression("sqrt", (deviation,), deviation)
    recorder.expression("add", (deviation, recorder.scalar(_MVN_EPSILON, x.dtype)), deviation)
    return recorder.copy(recorder.expression("div", (centred, deviation), centred), recorder.out(call))


def _mean(recorder: Recorder, x: View, axes: tuple[int, ...]) -> View:
    """Returns the mean over axes, which stay with extent 1."""
    mean = recorder.new(x.dtype, tuple(1 if a in axes else extent for a, extent in enumerate(x.shape)))
    target = mean
    for axis in sorted(axes, reverse=True):
        target = target.squeeze(axis)
    recorder.reduce("mean", x, axes, target)
    return mean


TEMPLATES = (
    OpTemplate(
        "LRN",
        (Input("X"),),
        (Result("Y"),),
        _lrn_shape,
        _emit_lrn,
        {"T": FLOATS},
        (
            Attribute("alpha", "float", 1e-4),
            Attribute("beta", "float", 0.75),
            Attribute("bias", "float", 1.0),
            Attribute("size", "int", required=True),
        ),
        flops=lambda call: (call.attr("size") + 4) * call.desc(0).element_count,
        doc="X / (bias + alpha / size · sum of squares over size channels around)^beta.",
        source="Krizhevsky et al., ImageNet classification, 2012",
    ),
    OpTemplate(
        "MeanVarianceNormalization",
        (Input("X"),),
        (Result("Y"),),
        _mvn_shape,
        _emit_mvn,
        {"T": FLOATS},
        (Attribute("axes", "ints", (0, 2, 3)),),
        flops=lambda call: 5 * call.desc(0).element_count,
        doc="(X - mean) / (standard deviation + 1e-9), both over axes.",
    ),
)
