"""RMSNormalization: a tensor divided by its root mean square over the last axes, times a scale."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS, DType, float32
from umd_core.norms import EPSILON
from umd_core.recorder import Recorder
from umd_core.shaping import widen, without_trailing
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast, normal_axis
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    x, scale = call.desc(0).shape, call.desc(1).shape
    if not x:
        raise call.error("is 0-d; one axis or more would be right", input="X")
    axis = normal_axis(call, call.attr("axis"), len(x))
    if broadcast(scale, x[axis:]) != x[axis:] and broadcast(scale, x) != x:
        detail = f"has shape {list(scale)}; one that broadcasts to {list(x[axis:])} would be right"
        raise call.error(detail, input="scale")
    return (x,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Computes the statistics in stash_type."""
    stash: DType = call.attr("stash_type")
    x, out = widen(recorder, views[0], stash), recorder.out(call)
    inner = range(normal_axis(call, call.attr("axis"), x.rank), x.rank)
    square = recorder.expression("mul", (x, x), recorder.like(x))
    rms = recorder.new(stash, (*x.shape[: inner.start], *(1,) * len(inner)))
    recorder.reduce("mean", square, inner, without_trailing(rms, len(inner)))
    recorder.expression("add", (rms, recorder.scalar(call.attr("epsilon"), stash)), rms)
    recorder.expression("rsqrt", (rms,), rms)
    recorder.expression("mul", (x, rms), square)
    if square.dtype is out.dtype:
        return recorder.expression("mul", (square, widen(recorder, views[1], out.dtype)), out)
    if out.dtype.size > stash.size:
        wide = recorder.copy(square, recorder.new(out.dtype, out.shape))
        return recorder.expression("mul", (wide, views[1]), out)
    recorder.expression("mul", (square, widen(recorder, views[1], stash)), square)
    return recorder.copy(square, out)


TEMPLATES = (
    OpTemplate(
        "RMSNormalization",
        (Input("X"), Input("scale", "V")),
        (Result("Y", "V"),),
        _shape,
        _emit,
        {"T": FLOATS, "V": FLOATS},
        (Attribute("axis", "int", -1), EPSILON, Attribute("stash_type", "dtype", float32)),
        flops=lambda call: 4 * call.desc(0).element_count,
        doc="X / sqrt(mean of X² over the axes from `axis` on, plus epsilon) · scale.",
        source="Zhang and Sennrich, Root mean square layer normalization, arXiv:1910.07467",
    ),
)
