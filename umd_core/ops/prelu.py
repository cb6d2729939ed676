"""PRelu and Shrink: piecewise linear functions."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS, NUMERIC, bool_, int32, int64, uint32, uint64
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast, same_shape
from umd_core.views import View


def _prelu_shape(call: Call) -> tuple[Shape]:
    x, slope = call.desc(0).shape, call.desc(1).shape
    if broadcast(x, slope) != x:
        raise call.error(f"has shape {list(slope)}, which does not broadcast to {list(x)}", input="slope")
    return (x,)


def _emit_prelu(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    if views[0].dtype.kind == "u":
        return views[0]
    return recorder.expression("leaky_relu", views, recorder.out(call))


def _emit_shrink(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Computes with integers in float64, as the attributes are floats."""
    x, out = views[0], recorder.out(call)
    wide = x if x.dtype.is_float else recorder.copy(x, recorder.new(dtypes.float64, x.shape))
    bias, edge = call.attr("bias"), call.attr("lambd")
    result = recorder.scalar(0, wide.dtype)
    for kernel, limit, shift in (("gt", edge, -bias), ("lt", -edge, bias)):
        beyond = recorder.expression(kernel, (wide, recorder.scalar(limit, wide.dtype)), recorder.new(bool_, x.shape))
        moved = recorder.expression("add", (wide, recorder.scalar(shift, wide.dtype)), recorder.like(wide))
        result = recorder.expression("select", (beyond, moved, result), moved)
    return recorder.copy(result, out)


TEMPLATES = (
    OpTemplate(
        "PRelu",
        (Input("X"), Input("slope")),
        (Result("Y"),),
        _prelu_shape,
        _emit_prelu,
        {"T": (*FLOATS, uint32, uint64, int32, int64)},
        doc="Y = X, but slope · X where X < 0; slope broadcasts to X.",
    ),
    OpTemplate(
        "Shrink",
        (Input("input"),),
        (Result("output"),),
        same_shape,
        _emit_shrink,
        {"T": NUMERIC},
        (Attribute("bias", "float", 0.0), Attribute("lambd", "float", 0.5)),
        doc="input + bias where input < -lambd, input - bias where input > lambd, else 0.",
    ),
)
