"""ArgMax, ArgMin: position of the largest or smallest element along an axis."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import input_flops
from umd_core.dtypes import NUMERIC
from umd_core.recorder import Recorder
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    shape = call.desc(0).shape
    axis = normal_axis(call, call.attr("axis"), len(shape))
    if shape and shape[axis] == 0:
        raise call.error(f"axis {axis} of {list(shape)} is empty, there is nothing to choose from", input="data")
    kept = (1,) if call.attr("keepdims") and shape else ()
    return (shape[:axis] + kept + shape[axis + 1 :],)


def _arg(kernel: str) -> Emit:
    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        x, out = views[0], recorder.out(call)
        axes = (normal_axis(call, call.attr("axis"), x.rank),) if x.rank else ()
        target = out.squeeze(axes[0]) if axes and call.attr("keepdims") else out
        recorder.arg_reduce(kernel, x, axes, target, select_last=call.attr("select_last_index"))
        return out

    return emit


def _template(name: str, kernel: str, which: str) -> OpTemplate:
    return OpTemplate(
        name,
        (Input("data"),),
        (Result("reduced", "int64"),),
        _shape,
        _arg(kernel),
        {"T": NUMERIC},
        (
            Attribute("axis", "int", 0),
            Attribute("keepdims", "bool", True),
            Attribute("select_last_index", "bool", False),
        ),
        flops=input_flops,
        doc=f"Position of the {which} element along axis, the first one unless select_last_index; NaN wins.",
    )


TEMPLATES = (_template("ArgMax", "max", "largest"), _template("ArgMin", "min", "smallest"))
