"""GroupNormalization and InstanceNormalization."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.norms import EPSILON, affine, check_channels, normalized
from umd_core.recorder import Recorder
from umd_core.shaping import split_axis, trailing
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    x = call.desc(0).shape
    if len(x) < 3:
        detail = f"has shape {list(x)}; (N, C, …) with one spatial axis or more would be right"
        raise call.error(detail, input=call.template.inputs[0].name)
    check_channels(call, 1, x[1])
    groups = call.attributes.get("num_groups", 1)
    if groups < 1 or x[1] % groups:
        raise call.bad_attribute("num_groups", f"{groups} does not divide {x[1]} channels", "a divisor of C")
    return (x,)


def _emit_group(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    y, groups = recorder.out(call), call.attr("num_groups")
    x, grouped = split_axis(views[0], 1, groups), split_axis(y, 1, groups)
    normalized(recorder, x, range(2, x.rank), call.attr("epsilon"), grouped)
    return affine(recorder, y, trailing(views[1], y.rank - 2), trailing(views[2], y.rank - 2), y)


def _emit_instance(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    y = recorder.out(call)
    normalized(recorder, views[0], range(2, y.rank), call.attr("epsilon"), y)
    return affine(recorder, y, trailing(views[1], y.rank - 2), trailing(views[2], y.rank - 2), y)


TEMPLATES = (
    OpTemplate(
        "GroupNormalization",
        (Input("X"), Input("scale"), Input("bias")),
        (Result("Y"),),
        _shape,
        _emit_group,
        {"T": FLOATS},
        (EPSILON, Attribute("num_groups", "int", required=True), Attribute("stash_type", "dtype", "float32")),
        flops=lambda call: 8 * call.desc(0).element_count,
        doc="Each group of channels of X (N, C, …) brought to mean 0 and variance 1, then · scale + bias per channel.",
    ),
    OpTemplate(
        "InstanceNormalization",
        (Input("input"), Input("scale"), Input("B")),
        (Result("output"),),
        _shape,
        _emit_instance,
        {"T": FLOATS},
        (EPSILON,),
        flops=lambda call: 8 * call.desc(0).element_count,
        doc="Each plane of the input (N, C, …) brought to mean 0 and variance 1, then · scale + B per channel.",
    ),
)
