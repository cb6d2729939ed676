"""Split: parts of a tensor along an axis."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View


def _parts(call: Call) -> tuple[int, ...]:
    """Returns the extent of each part; without `split` or `num_outputs` there is one part per output."""
    shape = call.desc(0).shape
    extent = shape[normal_axis(call, call.attr("axis"), len(shape))]
    given, count = call.ints(1), call.attr("num_outputs")
    if given is not None:
        if count is not None:
            raise call.bad_attribute("num_outputs", "is given beside input split", "one of the two")
        if min(given, default=0) < 0 or sum(given) != extent:
            raise call.error(f"{list(given)} does not add up to the axis, {extent}", input="split")
        return given
    parts = len(call.wanted) if count is None else count
    if parts < 1:
        raise call.bad_attribute("num_outputs", f"{parts} is not positive", "1 or more")
    each = -(-extent // parts)
    last = extent - each * (parts - 1)
    if last < 0:
        raise call.bad_attribute("num_outputs", f"{parts} parts of {each} exceed the axis, {extent}", "input split")
    return (each,) * (parts - 1) + (last,)


def _shape(call: Call) -> list[Shape]:
    shape = call.desc(0).shape
    if not shape:
        raise call.error("is 0-d; one axis or more would be right", input="input")
    axis = normal_axis(call, call.attr("axis"), len(shape))
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in _parts(call)]


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> list[View]:
    axis, at, result = normal_axis(call, call.attr("axis"), views[0].rank), 0, []
    for part in _parts(call):
        result.append(views[0].slice(axis, at, part))
        at += part
    return result


TEMPLATES = (
    OpTemplate(
        "Split",
        (Input("input"), Input("split", "int64", optional=True, static=True)),
        (Result("outputs", variadic=True),),
        _shape,
        _emit,
        {"T": ALL},
        (Attribute("axis", "int", 0), Attribute("num_outputs", "int")),
        flops=no_flops,
        doc="Parts along axis: as long as split says, or num_outputs equal ones, the last perhaps shorter.",
    ),
)
