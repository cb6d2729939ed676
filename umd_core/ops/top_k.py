"""TopK: the largest or smallest elements along an axis in order, and where they are; with K the extent, a sort."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import input_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View


def _axis(call: Call) -> int:
    shape = call.desc(0).shape
    if not shape:
        raise call.error("is 0-d; one axis or more would be right", input="X")
    return normal_axis(call, call.attr("axis"), len(shape))


def _shape(call: Call) -> tuple[Shape, Shape]:
    shape, axis, count = call.desc(0).shape, _axis(call), call.ints(1) or ()
    if len(count) != 1:
        raise call.error(f"has shape {list(call.desc(1).shape)}; [1] would be right", input="K")
    if not 0 <= count[0] <= shape[axis]:
        raise call.error(f"is {count[0]}; 0 to {shape[axis]}, the extent of axis {axis}, would be right", input="K")
    result = (*shape[:axis], count[0], *shape[axis + 1 :])
    return result, result


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, View]:
    x, values, index, axis = views[0], recorder.out(call), recorder.out(call, 1), _axis(call)
    order = [*(a for a in range(x.rank) if a != axis), axis]
    recorder.launch(
        "sort_kernel",
        {"outer": tuple(x.shape[a] for a in order[:-1]), "length": x.shape[axis], "count": values.shape[axis]},
        {"x": x.permute(order), "values": values.permute(order), "index": index.permute(order)},
        {"descending": int(call.attr("largest"))},
    )
    return values, index


TEMPLATES = (
    OpTemplate(
        "TopK",
        (Input("X"), Input("K", "int64", static=True)),
        (Result("Values"), Result("Indices", "int64")),
        _shape,
        _emit,
        {"T": ALL},
        (Attribute("axis", "int", -1), Attribute("largest", "bool", True), Attribute("sorted", "bool", True)),
        flops=input_flops,
        doc="The K largest elements along axis, or smallest unless largest, in order whatever sorted says, and their "
        "positions. NaN is greater than every number; the first of equal elements comes first.",
    ),
)
