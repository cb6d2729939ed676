"""Squeeze and Unsqueeze: axes of extent 1 taken away or put in."""

from __future__ import annotations

from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axes
from umd_core.views import View


def _squeezed(call: Call) -> tuple[Shape]:
    shape, given = call.desc(0).shape, call.ints(1)
    if given is None:
        return (tuple(extent for extent in shape if extent != 1),)
    axes = normal_axes(call, given, len(shape)) if shape or given else ()
    for axis in axes:
        if not shape or shape[axis] != 1:
            raise call.error(f"{list(given)} names axis {axis} of {list(shape)}, which is not 1", input="axes")
    return (tuple(extent for axis, extent in enumerate(shape) if axis not in axes),)


def _unsqueezed(call: Call) -> tuple[Shape]:
    shape, given = list(call.desc(0).shape), call.ints(1) or ()
    for axis in sorted(normal_axes(call, given, len(shape) + len(given))):
        shape.insert(axis, 1)
    return (tuple(shape),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return recorder.reshape(views[0], call.outputs[0].shape)


TEMPLATES = (
    OpTemplate(
        "Squeeze",
        (Input("data"), Input("axes", "int64", optional=True, static=True)),
        (Result("squeezed"),),
        _squeezed,
        _emit,
        {"T": ALL},
        flops=no_flops,
        doc="data without axes, which have extent 1; without all such axes when none are named. No data moves.",
    ),
    OpTemplate(
        "Unsqueeze",
        (Input("data"), Input("axes", "int64", static=True)),
        (Result("expanded"),),
        _unsqueezed,
        _emit,
        {"T": ALL},
        flops=no_flops,
        doc="data with axes of extent 1 put in, counted in the result. No data moves.",
    ),
)
