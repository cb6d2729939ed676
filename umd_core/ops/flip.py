"""umd.Flip: axes in reverse."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axes
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    normal_axes(call, call.attr("axes"), call.desc(0).rank)
    return (call.desc(0).shape,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    view = views[0]
    for axis in normal_axes(call, call.attr("axes"), view.rank) if view.rank else ():
        view = view.slice(axis, view.shape[axis] - 1, view.shape[axis], -1)
    return view


TEMPLATES = (
    OpTemplate(
        "umd.Flip",
        (Input("X"),),
        (Result("Y"),),
        _shape,
        _emit,
        {"T": ALL},
        (Attribute("axes", "ints", required=True),),
        flops=no_flops,
        doc="The elements in reverse order along each of axes; no data moves.",
    ),
)
