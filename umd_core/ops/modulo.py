"""Mod: remainder of a division, with the divisor's or (fmod) the dividend's sign."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import NUMERIC
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, broadcast_shape
from umd_core.views import View


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return recorder.expression("fmod" if call.attr("fmod") else "mod", views, recorder.out(call))


TEMPLATES = (
    OpTemplate(
        "Mod",
        (Input("A"), Input("B")),
        (Result("C"),),
        broadcast_shape,
        _emit,
        {"T": NUMERIC},
        (Attribute("fmod", "bool", False),),
        doc="C = A - floor(A / B) · B, or with fmod A - trunc(A / B) · B; integers modulo 0 give 0.",
    ),
)
