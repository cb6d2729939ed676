"""Clip: a tensor kept between two bounds, each optional."""

from __future__ import annotations

from umd_core.dtypes import NUMERIC
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import ABSENT, View


def _shape(call: Call) -> tuple[Shape]:
    for index, name in ((1, "min"), (2, "max")):
        if call.has(index) and call.desc(index).element_count != 1:
            raise call.error(f"has shape {list(call.desc(index).shape)}; a 0-d tensor would be right", input=name)
    return (call.desc(0).shape,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, low, high = (*views, ABSENT, ABSENT)[:3]
    low, high = (recorder.reshape(bound, ()) if bound else bound for bound in (low, high))
    if low and high:
        return recorder.expression("clip", (x, low, high), recorder.out(call))
    if low:
        return recorder.expression("max", (x, low), recorder.out(call))
    return recorder.expression("min", (x, high), recorder.out(call)) if high else x


TEMPLATES = (
    OpTemplate(
        "Clip",
        (Input("input"), Input("min", optional=True), Input("max", optional=True)),
        (Result("output"),),
        _shape,
        _emit,
        {"T": NUMERIC},
        doc="output = Min(max, Max(input, min)); a bound that is left out does not bind. NaN stays NaN.",
    ),
)
