"""DeformConv: a convolution whose windows' elements are moved by offsets, and scaled by a mask; over planes."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.errors import UnsupportedError
from umd_core.ir import Array
from umd_core.recorder import Recorder
from umd_core.sampling import linear_taps, read
from umd_core.shaping import settle, target, trailing, widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View
from umd_core.windows import WINDOW, Windows, conv_windows


class _Plan(NamedTuple):
    """The windows over the undisturbed input, and how many groups the channels of the input and the offsets make."""

    over: Windows
    group: int
    offset_group: int

    @property
    def places(self) -> int:
        """Elements read: one a tap and place of the output."""
        return self.over.kernel_size * math.prod(self.over.output)


def _plan(call: Call) -> _Plan:
    x, w = call.desc(0).shape, call.desc(1).shape
    if len(x) != 4:
        raise UnsupportedError(f"X of shape {list(x)}; (N, C, H, W) would be right", op=call.op)
    plan = _Plan(conv_windows(call, x, w), call.attr("group"), call.attr("offset_group"))
    if plan.offset_group < 1 or x[1] % plan.offset_group:
        raise call.bad_attribute("offset_group", f"{plan.offset_group} does not divide {x[1]} channels", "a divisor")
    taps = plan.offset_group * plan.over.kernel_size
    wanted = {2: (x[0], 2 * taps, *plan.over.output), 3: (w[0],), 4: (x[0], taps, *plan.over.output)}
    for index, shape in wanted.items():
        if call.has(index) and call.desc(index).shape != shape:
            name = call.template.inputs[index].name
            raise call.error(f"has shape {list(call.desc(index).shape)}; {list(shape)} would be right", input=name)
    return plan


def _shape(call: Call) -> tuple[Shape]:
    plan = _plan(call)
    return ((call.desc(0).shape[0], call.desc(1).shape[0], *plan.over.output),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Reads every element that any window takes into columns, then multiplies them by the weights."""
    plan, y = _plan(call), recorder.out(call)
    x, w = widen(recorder, views[0]), widen(recorder, views[1])
    batch, taps, positions = x.shape[0], plan.over.kernel_size, math.prod(plan.over.output)
    columns = _columns(recorder, call, views, x, plan)
    depth = w.shape[1] * taps
    right = recorder.reshape(columns, (batch, plan.group, depth, positions))
    left = recorder.reshape(w, (plan.group, w.shape[0] // plan.group, depth))
    total = recorder.new(x.dtype, y.shape)
    shape = (batch, plan.group, w.shape[0] // plan.group, positions)
    written = target(recorder, total, shape)
    recorder.gemm(left, right, written)
    settle(recorder, written, total)
    if call.has(3):
        recorder.expression("add", (total, trailing(widen(recorder, views[3]), 2)), total)
    return recorder.copy(total, y)


def _columns(recorder: Recorder, call: Call, views: tuple[View, ...], x: View, plan: _Plan) -> View:
    """Returns (batch · offset groups, channels of one, taps · positions): what the windows hold."""
    rows = x.shape[0] * plan.offset_group
    each = (x.shape[0], plan.offset_group, plan.over.kernel_size, 2, *plan.over.output)
    offsets = recorder.reshape(widen(recorder, views[2]), each)
    chosen = []
    for axis, extent in enumerate(plan.over.input):
        moved = offsets.slice(3, axis, 1).squeeze(3)
        at = recorder.new(x.dtype, moved.shape)
        recorder.expression("add", (moved, recorder.constant(_still(plan.over, axis).astype(x.dtype.numpy))), at)
        chosen.append(linear_taps(recorder, recorder.reshape(at, (rows, plan.places)), extent))
    planes = recorder.reshape(x, (rows, x.shape[1] // plan.offset_group, math.prod(plan.over.input)))
    total: View | None = None
    for corner in itertools.product(*chosen):
        part = read(recorder, planes, corner, plan.over.input)
        total = part if total is None else recorder.expression("add", (total, part), total)
    if total is None or not call.has(4):
        return total or planes
    mask = recorder.reshape(widen(recorder, views[4]), (rows, 1, plan.places))
    return recorder.expression("mul", (total, mask), total)


def _still(over: Windows, axis: int) -> Array:
    """Returns (taps, output…): where each tap of each window lies along an axis without an offset."""
    tap = np.indices(over.kernel)[axis].reshape(-1, *(1,) * len(over.output))
    place = np.indices(over.output)[axis]
    return np.asarray(place * over.strides[axis] - over.pads[axis] + tap * over.dilations[axis], np.float64)


def _flops(call: Call) -> int:
    return 2 * call.outputs[0].element_count * math.prod(call.desc(1).shape[1:])


TEMPLATES = (
    OpTemplate(
        "DeformConv",
        (Input("X"), Input("W"), Input("offset"), Input("B", optional=True), Input("mask", optional=True)),
        (Result("Y"),),
        _shape,
        _emit,
        {"T": FLOATS},
        (
            Attribute("group", "int", 1),
            Attribute("kernel_shape", "ints"),
            Attribute("offset_group", "int", 1),
            *WINDOW,
        ),
        flops=_flops,
        doc="Conv over planes, each element of a window read where `offset` (rows, then columns) moves it, between "
        "places by linear interpolation, times mask.",
        source="Dai et al., Deformable convolutional networks, arXiv:1703.06211; Zhu et al., arXiv:1811.11168",
    ),
)
