"""ScatterElements: a copy of a tensor with elements replaced, or added to, where an index says."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import check_indexable, no_flops
from umd_core.dtypes import ALL, BOOL, INDEX
from umd_core.errors import UnsupportedError
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View

_DONE = ("none", "add")


def _axis(call: Call) -> int:
    shape = call.desc(0).shape
    if not shape:
        raise call.error("is 0-d; one axis or more would be right", input="data")
    return normal_axis(call, call.attr("axis"), len(shape))


def _shape(call: Call) -> tuple[Shape]:
    data, index, updates = (call.desc(i).shape for i in range(3))
    axis, reduction = _axis(call), call.attr("reduction")
    if reduction not in _DONE:
        raise UnsupportedError(f"reduction {reduction!r} is not there yet, only {' and '.join(_DONE)}", op=call.op)
    if reduction == "add" and call.types["T"] in BOOL:
        raise UnsupportedError("reduction 'add' of bool is not defined", op=call.op)
    inside = [a == axis or i <= d for a, (i, d) in enumerate(zip(index, data, strict=False))]
    if len(index) != len(data) or not all(inside):
        detail = f"has shape {list(index)}; one within data's, {list(data)}, but for axis {axis}, would be right"
        raise call.error(detail, input="indices")
    if updates != index:
        raise call.error(f"has shape {list(updates)}; that of indices, {list(index)}, would be right", input="updates")
    check_indexable(call, data[axis])
    return (data,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    data, index, updates = views
    axis, out = _axis(call), recorder.mutable(data)
    strides = (*out.strides[:axis], 0, *out.strides[axis + 1 :], out.strides[axis])
    target = View(out.buffer, out.dtype, (*updates.shape, out.shape[axis]), strides, out.offset)
    recorder.scatter(updates, index, target, out.shape[axis], add=call.attr("reduction") == "add")
    return out


def _flops(call: Call) -> int:
    return call.desc(2).element_count if call.attr("reduction") == "add" else no_flops(call)


TEMPLATES = (
    OpTemplate(
        "ScatterElements",
        (Input("data"), Input("indices", "Tind"), Input("updates")),
        (Result("output"),),
        _shape,
        _emit,
        {"T": ALL, "Tind": INDEX},
        (Attribute("axis", "int", 0), Attribute("reduction", "string", "none", choices=(*_DONE, "mul", "max", "min"))),
        flops=_flops,
        doc="data with output[.., indices[.., i, ..], ..] = updates[.., i, ..], or += with reduction add. Negative "
        "indices count from the end; others outside the axis are an error when the program runs.",
    ),
)
