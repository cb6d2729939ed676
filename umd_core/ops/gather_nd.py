"""GatherND: slices picked by tuples of indices along the first axes."""

from __future__ import annotations

import math

from umd_core.attributes import Attribute
from umd_core.builders import check_indexable, no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.shaping import flat_index
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    data, index, batch = call.desc(0).shape, call.desc(1).shape, call.attr("batch_dims")
    if not 0 <= batch < min(len(data), len(index)):
        detail = f"{batch} leaves no axis of data {list(data)} or indices {list(index)}"
        raise call.bad_attribute("batch_dims", detail, "less than both ranks")
    if index[:batch] != data[:batch]:
        raise call.error(f"starts with {list(index[:batch])}, data with {list(data[:batch])}", input="indices")
    count = index[-1]
    if not 1 <= count <= len(data) - batch:
        detail = f"has tuples of {count}; 1 to {len(data) - batch}, the other axes of data, would be right"
        raise call.error(detail, input="indices")
    check_indexable(call, math.prod(data[batch : batch + count]))
    return (index[:-1] + data[batch + count :],)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Gathers along the indexed axes made one."""
    data, index = views
    out, batch, count = recorder.out(call), call.attr("batch_dims"), index.shape[-1]
    indexed, rest = data.shape[batch : batch + count], data.shape[batch + count :]
    extent = math.prod(indexed)
    if count > 1:
        data = recorder.reshape(data, (*data.shape[:batch], extent, *rest))
    place = flat_index(recorder, index, indexed)
    between = out.rank - batch - len(rest)
    strides = (*data.strides[:batch], *(0,) * between, *data.strides[batch + 1 :], data.strides[batch])
    source = View(data.buffer, data.dtype, (*out.shape, extent), strides, data.offset)
    places = View(place.buffer, place.dtype, out.shape, place.strides + (0,) * len(rest), place.offset)
    return recorder.gather(source, places, out, extent)


TEMPLATES = (
    OpTemplate(
        "GatherND",
        (Input("data"), Input("indices", "int64")),
        (Result("output"),),
        _shape,
        _emit,
        {"T": ALL},
        (Attribute("batch_dims", "int", 0),),
        flops=no_flops,
        doc="output[i] = data[indices[i]], each index a tuple along the last axis, in equal places of the first "
        "batch_dims axes. Negative indices count from the end; others outside their axis are an error when the program "
        "runs.",
    ),
)
