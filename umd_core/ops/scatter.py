"""ScatterElements and ScatterND: a copy of a tensor with elements replaced by, or combined with, others by index."""

from __future__ import annotations

import math

from umd_core.attributes import Attribute
from umd_core.builders import check_indexable, no_flops
from umd_core.dtypes import ALL, BOOL, INDEX
from umd_core.errors import UnsupportedError
from umd_core.recorder import Recorder
from umd_core.shaping import flat_index
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View

_REDUCTIONS = ("add", "mul", "max", "min")


def _axis(call: Call) -> int:
    shape = call.desc(0).shape
    if not shape:
        raise call.error("is 0-d; one axis or more would be right", input="data")
    return normal_axis(call, call.attr("axis"), len(shape))


def _check_reduction(call: Call) -> None:
    if call.attr("reduction") != "none" and call.types["T"] in BOOL:
        raise UnsupportedError(f"reduction {call.attr('reduction')!r} of bool is not defined", op=call.op)


def _shape(call: Call) -> tuple[Shape]:
    data, index, updates = (call.desc(i).shape for i in range(3))
    axis = _axis(call)
    _check_reduction(call)
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
    recorder.scatter(updates, index, target, out.shape[axis], combine=_combine(call))
    return out


def _combine(call: Call) -> str:
    return "" if call.attr("reduction") == "none" else str(call.attr("reduction"))


# ScatterND


def _shape_nd(call: Call) -> tuple[Shape]:
    data, index, updates = (call.desc(i).shape for i in range(3))
    _check_reduction(call)
    if not data or not index or index[-1] > len(data):
        detail = f"has shape {list(index)}, data {list(data)}; a last extent of at most data's rank would be right"
        raise call.error(detail, input="indices")
    wanted = (*index[:-1], *data[index[-1] :])
    if updates != wanted:
        raise call.error(f"has shape {list(updates)}; {list(wanted)} would be right", input="updates")
    if 0 in data[: index[-1]]:
        check_indexable(call, 0, 2)
    return (data,)


def _emit_nd(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Scatters along the indexed axes as one; `out` has no gaps, so they are one."""
    data, index, updates = views
    out, count = recorder.mutable(data), index.shape[-1]
    lead, rest = index.rank - 1, out.shape[count:]
    place = flat_index(recorder, index, out.shape[:count])
    places = View(place.buffer, place.dtype, updates.shape, place.strides + (0,) * len(rest), place.offset)
    strides = (*(0,) * lead, *out.strides[count:], math.prod(rest))
    extent = math.prod(out.shape[:count])
    target = View(out.buffer, out.dtype, (*updates.shape, extent), strides, out.offset)
    recorder.scatter(updates, places, target, extent, combine=_combine(call))
    return out


def _flops(call: Call) -> int:
    return no_flops(call) if call.attr("reduction") == "none" else call.desc(2).element_count


TEMPLATES = (
    OpTemplate(
        "ScatterElements",
        (Input("data"), Input("indices", "Tind"), Input("updates")),
        (Result("output"),),
        _shape,
        _emit,
        {"T": ALL, "Tind": INDEX},
        (Attribute("axis", "int", 0), Attribute("reduction", "string", "none", choices=("none", *_REDUCTIONS))),
        flops=_flops,
        doc="data with output[.., indices[.., i, ..], ..] = updates[.., i, ..], or what the reduction (add, mul, max, "
        "min) makes of both, in row-major order. Negative indices count from the end; others outside the axis are an "
        "error when the program runs.",
    ),
    OpTemplate(
        "ScatterND",
        (Input("data"), Input("indices", "Tind"), Input("updates")),
        (Result("output"),),
        _shape_nd,
        _emit_nd,
        {"T": ALL, "Tind": INDEX},
        (Attribute("reduction", "string", "none", choices=("none", *_REDUCTIONS)),),
        flops=_flops,
        doc="data with output[indices[i]] = updates[i], each index a tuple along the last axis, or what the reduction "
        "(add, mul, max, min) makes of both, in row-major order. Negative indices count from the end; others outside "
        "their axis are an error when the program runs.",
    ),
)
