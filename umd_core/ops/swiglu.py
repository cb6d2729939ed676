"""SwiGLU: one tensor gated by the swish of another."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    a, b = call.desc(0).shape, call.desc(1).shape
    if a != b:
        raise call.error(f"has shape {list(b)}; that of A, {list(a)}, would be right", input="B")
    return (a,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    a, b = views
    gate = recorder.expression("swish", (a, recorder.scalar(call.attr("alpha"), a.dtype)), recorder.like(a))
    return recorder.expression("mul", (gate, b), recorder.out(call))


TEMPLATES = (
    OpTemplate(
        "SwiGLU",
        (Input("A"), Input("B")),
        (Result("Y"),),
        _shape,
        _emit,
        {"T": FLOATS},
        (Attribute("alpha", "float", 1.0),),
        flops=lambda call: 5 * call.desc(0).element_count,
        doc="Y = A · sigmoid(alpha · A) · B.",
        source="Shazeer, GLU variants improve transformer, arXiv:2002.05202",
    ),
)
