"""CenterCropPad: the middle of a tensor, or the tensor in the middle of zeros."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL, INDEX
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axes
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    shape, wanted, given = list(call.desc(0).shape), call.ints(1) or (), call.attr("axes")
    axes = tuple(range(len(shape))) if given is None else normal_axes(call, given, len(shape))
    if len(wanted) != len(axes) or min(wanted, default=0) < 0:
        raise call.error(f"{list(wanted)} does not fit; {len(axes)} extents would be right", input="shape")
    for axis, extent in zip(axes, wanted, strict=True):
        shape[axis] = extent
    return (tuple(shape),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, shape = views[0], call.outputs[0].shape
    for axis, extent in enumerate(shape):
        if extent < x.shape[axis]:
            x = x.slice(axis, (x.shape[axis] - extent) // 2, extent)
    if x.shape == shape:
        return x
    out = inside = recorder.fill(recorder.out(call), 0)
    for axis, extent in enumerate(x.shape):
        inside = inside.slice(axis, (shape[axis] - extent) // 2, extent)
    recorder.copy(x, inside)
    return out


TEMPLATES = (
    OpTemplate(
        "CenterCropPad",
        (Input("input_data"), Input("shape", "Tind", static=True)),
        (Result("output_data"),),
        _shape,
        _emit,
        {"T": ALL, "Tind": INDEX},
        (Attribute("axes", "ints"),),
        flops=no_flops,
        doc="input_data cropped, or padded with zeros, at both ends of axes to shape; an odd element goes to the end.",
    ),
)
