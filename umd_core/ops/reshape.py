"""Reshape and Flatten: another shape for the same elements in the same order."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, element_count
from umd_core.views import View


def _reshaped(call: Call) -> tuple[Shape]:
    old, wanted = call.desc(0).shape, list(call.ints(1) or ())
    for axis, extent in enumerate(wanted):
        if extent < -1:
            raise call.error(f"{wanted} has the negative extent {extent}", input="shape")
        if extent == 0 and not call.attr("allowzero"):
            if axis >= len(old):
                raise call.error(f"{wanted} copies axis {axis}, but data has shape {list(old)}", input="shape")
            wanted[axis] = old[axis]
    if wanted.count(-1) > 1 or (wanted.count(-1) == 1 and 0 in wanted):
        raise call.error(f"{wanted}: what -1 stands for is not determined", input="shape")
    if -1 in wanted:
        known = -element_count(wanted)
        wanted[wanted.index(-1)] = element_count(old) // known
    if element_count(wanted) != element_count(old):
        raise call.error(
            f"{list(call.ints(1) or ())} does not hold the {element_count(old)} elements of {list(old)}", input="shape"
        )
    return (tuple(wanted),)


def _flattened(call: Call) -> tuple[Shape]:
    shape, axis = call.desc(0).shape, call.attr("axis")
    if not -len(shape) <= axis <= len(shape):
        raise call.bad_attribute("axis", f"{axis} is outside rank {len(shape)}", f"-{len(shape)} to {len(shape)}")
    if axis < 0:
        axis += len(shape)
    return ((element_count(shape[:axis]), element_count(shape[axis:])),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return recorder.reshape(views[0], call.outputs[0].shape)


TEMPLATES = (
    OpTemplate(
        "Reshape",
        (Input("data"), Input("shape", "int64", static=True)),
        (Result("reshaped"),),
        _reshaped,
        _emit,
        {"T": ALL},
        (Attribute("allowzero", "bool", False),),
        flops=no_flops,
        doc="The same elements in another shape; -1 is inferred, 0 copies the extent unless allowzero. No data moves "
        "where strides allow.",
    ),
    OpTemplate(
        "Flatten",
        (Input("input"),),
        (Result("output"),),
        _flattened,
        _emit,
        {"T": ALL},
        (Attribute("axis", "int", 1),),
        flops=no_flops,
        doc="A matrix: the axes before axis become its rows, the others its columns.",
    ),
)
