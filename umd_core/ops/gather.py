"""Gather and GatherElements: elements picked by an index along one axis."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import check_indexable, no_flops
from umd_core.dtypes import ALL, INDEX
from umd_core.recorder import Recorder
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape, ShapeRule, normal_axis
from umd_core.views import View


def _axis(call: Call) -> int:
    shape = call.desc(0).shape
    if not shape:
        raise call.error("is 0-d; one axis or more would be right", input="data")
    return normal_axis(call, call.attr("axis"), len(shape))


def _gathered(call: Call) -> tuple[Shape]:
    shape, axis = call.desc(0).shape, _axis(call)
    check_indexable(call, shape[axis])
    return (shape[:axis] + call.desc(1).shape + shape[axis + 1 :],)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Every element of the output reads data at its own place, but for the gathered axis."""
    data, index = views
    axis, out = _axis(call), recorder.out(call)
    after = out.rank - axis - index.rank
    strides = data.strides[:axis] + (0,) * index.rank + data.strides[axis + 1 :] + data.strides[axis : axis + 1]
    source = View(data.buffer, data.dtype, (*out.shape, data.shape[axis]), strides, data.offset)
    places = View(index.buffer, index.dtype, out.shape, (0,) * axis + index.strides + (0,) * after, index.offset)
    return recorder.gather(source, places, out, data.shape[axis])


def _elements(call: Call) -> tuple[Shape]:
    data, index, axis = call.desc(0).shape, call.desc(1).shape, _axis(call)
    inside = [a == axis or i <= d for a, (i, d) in enumerate(zip(index, data, strict=False))]
    if len(index) != len(data) or not all(inside):
        detail = f"has shape {list(index)}; one within data's, {list(data)}, but for axis {axis}, would be right"
        raise call.error(detail, input="indices")
    check_indexable(call, data[axis])
    return (index,)


def _emit_elements(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    data, index = views
    axis, out = _axis(call), recorder.out(call)
    strides = (*data.strides[:axis], 0, *data.strides[axis + 1 :], data.strides[axis])
    source = View(data.buffer, data.dtype, (*out.shape, data.shape[axis]), strides, data.offset)
    return recorder.gather(source, index, out, data.shape[axis])


def _template(name: str, shape: ShapeRule, emit: Emit, doc: str) -> OpTemplate:
    return OpTemplate(
        name,
        (Input("data"), Input("indices", "Tind")),
        (Result("output"),),
        shape,
        emit,
        {"T": ALL, "Tind": INDEX},
        (Attribute("axis", "int", 0),),
        flops=no_flops,
        doc=doc + " Negative indices count from the end; others outside the axis are an error when the program runs.",
    )


TEMPLATES = (
    _template("Gather", _gathered, _emit, "Slices of data along axis, in the order and shape of indices."),
    _template("GatherElements", _elements, _emit_elements, "output[.., i, ..] = data[.., indices[.., i, ..], ..]."),
)
