"""Concat: tensors one after the other along an axis."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    first = call.desc(0).shape
    if not first:
        raise call.error("is 0-d; one axis or more would be right", input="inputs")
    axis = normal_axis(call, call.attr("axis"), len(first))
    total = 0
    for index in range(len(call.inputs)):
        shape = call.desc(index).shape
        if len(shape) != len(first) or shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
            detail = f"number {index} has shape {list(shape)}, number 0 {list(first)}; they may differ in axis {axis}"
            raise call.error(detail, input="inputs")
        total += shape[axis]
    return ((*first[:axis], total, *first[axis + 1 :]),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    if len(views) == 1:
        return views[0]
    out = recorder.out(call)
    axis, at = normal_axis(call, call.attr("axis"), out.rank), 0
    for view in views:
        recorder.copy(view, out.slice(axis, at, view.shape[axis]))
        at += view.shape[axis]
    return out


TEMPLATES = (
    OpTemplate(
        "Concat",
        (Input("inputs", variadic=True),),
        (Result("concat_result"),),
        _shape,
        _emit,
        {"T": ALL},
        (Attribute("axis", "int", required=True),),
        flops=no_flops,
        doc="The inputs one after the other along axis: one copy each.",
    ),
)
