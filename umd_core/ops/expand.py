"""Expand: a tensor repeated by the broadcasting rule."""

from __future__ import annotations

from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    wanted = call.ints(1) or ()
    if min(wanted, default=0) < 0:
        raise call.error(f"{list(wanted)} has a negative extent", input="shape")
    shape = call.desc(0).shape
    result = broadcast(shape, wanted)
    if result is None:
        raise call.error(f"has shape {list(shape)}, which does not broadcast to {list(wanted)}", input="input")
    return (result,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return views[0].expand(call.outputs[0].shape)


TEMPLATES = (
    OpTemplate(
        "Expand",
        (Input("input"), Input("shape", "int64", static=True)),
        (Result("output"),),
        _shape,
        _emit,
        {"T": ALL},
        flops=no_flops,
        doc="input broadcast with shape, both ways; no data moves.",
    ),
)
