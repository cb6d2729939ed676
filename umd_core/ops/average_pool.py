"""AveragePool and its gradient."""

from __future__ import annotations

import math

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.shaping import settle, target
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View
from umd_core.windows import AUTO_PAD, CEIL_MODE, KERNEL_SHAPE, WINDOW, Windows, pool_windows, windows

_COUNT_INCLUDE_PAD = Attribute("count_include_pad", "bool", False)


def _shape(call: Call) -> tuple[Shape]:
    lead, over = pool_windows(call)
    return (lead + over.output,)


def _launch(recorder: Recorder, call: Call, kernel: str, over: Windows, operands: dict[str, View]) -> None:
    batch = next(iter(operands.values())).shape[0]
    fields = {**over.fields, "count_pad": int(call.attr("count_include_pad")), "pads_end": over.pads_end}
    recorder.launch(kernel, {"batch": batch, **over.extents}, operands, fields)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    lead, over = pool_windows(call)
    planes, y = math.prod(lead), recorder.out(call)
    x = recorder.reshape(views[0], (planes, *over.input))
    out = target(recorder, y, (planes, *over.output))
    _launch(recorder, call, "average_pool_kernel", over, {"x": x, "y": out})
    return settle(recorder, out, y)


def _grad_windows(call: Call) -> tuple[Shape, Windows]:
    """Returns the axes that are not pooled, and the windows over the planes of X."""
    dy, plane, kernel = call.desc(0).shape, call.attr("plane_shape"), call.attr("kernel_shape")
    if len(plane) != len(kernel) or len(plane) >= len(dy):
        raise call.bad_attribute("plane_shape", f"{list(plane)} is no plane of dY", f"{len(kernel)} extents of X")
    over = windows(call, plane, kernel)
    lead = dy[: len(dy) - len(plane)]
    if dy != lead + over.output:
        raise call.error(f"is {list(dy)}, the pool gives {[*lead, *over.output]}", input="dY")
    return lead, over


def _grad_shape(call: Call) -> tuple[Shape]:
    lead, over = _grad_windows(call)
    return (lead + over.input,)


def _emit_grad(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    lead, over = _grad_windows(call)
    planes, dx = math.prod(lead), recorder.out(call)
    dy = recorder.reshape(views[0], (planes, *over.output))
    out = target(recorder, dx, (planes, *over.input))
    _launch(recorder, call, "average_pool_grad_kernel", over, {"dy": dy, "dx": out})
    return settle(recorder, out, dx)


_TYPES = {"T": FLOATS}
_ATTRIBUTES = (CEIL_MODE, _COUNT_INCLUDE_PAD, KERNEL_SHAPE, *WINDOW)
TEMPLATES = (
    OpTemplate(
        "AveragePool",
        (Input("X"),),
        (Result("Y"),),
        _shape,
        _emit,
        _TYPES,
        (AUTO_PAD, *_ATTRIBUTES),
        flops=lambda call: call.outputs[0].element_count * pool_windows(call)[1].kernel_size,
        doc="Mean of each window of X (N, C, …), of its elements inside X or, with count_include_pad, inside X padded.",
    ),
    OpTemplate(
        "umd.AveragePoolGrad",
        (Input("dY"),),
        (Result("dX"),),
        _grad_shape,
        _emit_grad,
        _TYPES,
        (*_ATTRIBUTES, Attribute("plane_shape", "ints", required=True)),
        flops=lambda call: call.desc(0).element_count * _grad_windows(call)[1].kernel_size,
        doc="Gradient of AveragePool; plane_shape holds the extents of X that were pooled, the rest is AveragePool's.",
    ),
)
