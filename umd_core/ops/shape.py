"""Shape and Size: what is known of a tensor without reading it."""

from __future__ import annotations

import numpy as np

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _part(call: Call) -> Shape:
    """Returns the part of the shape that is asked for; axes out of range are clamped."""
    return call.desc(0).shape[slice(call.attr("start"), call.attr("end"))]


def _shape(call: Call) -> tuple[Shape]:
    return ((len(_part(call)),),)


def _emit_shape(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return recorder.constant(np.array(_part(call), np.int64))


def _scalar(call: Call) -> tuple[Shape]:
    return ((),)


def _emit_size(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return recorder.constant(np.array(call.desc(0).element_count, np.int64))


TEMPLATES = (
    OpTemplate(
        "Shape",
        (Input("data"),),
        (Result("shape", "int64"),),
        _shape,
        _emit_shape,
        {"T": ALL},
        (Attribute("start", "int", 0), Attribute("end", "int")),
        flops=no_flops,
        doc="The extents of data from axis start up to end, as a constant.",
    ),
    OpTemplate(
        "Size",
        (Input("data"),),
        (Result("size", "int64"),),
        _scalar,
        _emit_size,
        {"T": ALL},
        flops=no_flops,
        doc="The number of elements of data, as a constant.",
    ),
)
