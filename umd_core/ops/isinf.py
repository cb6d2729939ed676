"""IsInf: which elements are infinite, of either sign or one."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, same_shape
from umd_core.views import View


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, out = views[0], recorder.out(call)
    negative, positive = call.attr("detect_negative"), call.attr("detect_positive")
    if negative and positive:
        return recorder.expression("isinf", (x,), out)
    if not negative and not positive:
        return recorder.fill(out, False)
    infinity = recorder.scalar(float("-inf" if negative else "inf"), x.dtype)
    return recorder.expression("eq", (x, infinity), out)


TEMPLATES = (
    OpTemplate(
        "IsInf",
        (Input("X"),),
        (Result("Y", "bool"),),
        same_shape,
        _emit,
        {"T": FLOATS},
        (Attribute("detect_negative", "bool", True), Attribute("detect_positive", "bool", True)),
        doc="Y = whether X is infinite, with a sign that is asked for.",
    ),
)
