"""Conv and its gradients, over 1 to 3 spatial axes."""

from __future__ import annotations

import math
from collections.abc import Callable

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.shaping import split_axis, trailing
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape
from umd_core.views import View
from umd_core.windows import AUTO_PAD, WINDOW, conv_windows

_GROUP = Attribute("group", "int", 1)


def _forward_shapes(call: Call) -> tuple[Shape, Shape]:
    return call.desc(0).shape, call.desc(1).shape


def _input_grad_shapes(call: Call) -> tuple[Shape, Shape]:
    return call.attr("shape"), call.desc(1).shape


def _weight_grad_shapes(call: Call) -> tuple[Shape, Shape]:
    dy, x = call.desc(0).shape, call.desc(1).shape
    group = max(call.attr("group"), 1)
    if len(dy) != len(x) or len(x) < 3 or x[1] % group:
        raise call.error(f"dY {list(dy)} and X {list(x)} in {group} groups are no convolution's")
    return x, (dy[1], x[1] // group, *call.attr("kernel_shape"))


def _shape(call: Call) -> tuple[Shape]:
    x, w = _forward_shapes(call)
    output = conv_windows(call, x, w).output
    if call.has(2) and call.desc(2).shape != (w[0],):
        detail = f"has shape {list(call.desc(2).shape)}; [{w[0]}], one number an output channel, would be right"
        raise call.error(detail, input="B")
    return ((x[0], w[0], *output),)


def _input_grad_shape(call: Call) -> tuple[Shape]:
    x, w = _input_grad_shapes(call)
    if any(extent < 0 for extent in x):
        raise call.bad_attribute("shape", f"{list(x)} is not a shape", "the shape of X")
    _check_gradient(call, x, w)
    return (x,)


def _weight_grad_shape(call: Call) -> tuple[Shape]:
    x, w = _weight_grad_shapes(call)
    _check_gradient(call, x, w)
    return (w,)


def _check_gradient(call: Call, x: Shape, w: Shape) -> None:
    output = conv_windows(call, x, w).output  # first: it checks the ranks
    expected = (x[0], w[0], *output)
    if call.desc(0).shape != expected:
        raise call.error(f"is {list(call.desc(0).shape)}, the convolution gives {list(expected)}", input="dY")


def _launch(
    kernel: str, names: tuple[str, str, str], shapes: Callable[[Call], tuple[Shape, Shape]]
) -> Callable[[Recorder, Call, View, View, View], None]:
    """Returns what records a convolution kernel on two inputs and an output, each one of x, w, y (or a gradient)."""
    splits = {"x": 1, "dx": 1, "y": 1, "dy": 1, "w": 0, "dw": 0}

    def record(recorder: Recorder, call: Call, *views: View) -> None:
        x, w = shapes(call)
        group = call.attr("group")
        over = conv_windows(call, x, w)
        extents = {
            "batch": x[0], "groups": group, "out_channels": w[0] // group, "in_channels": w[1], **over.extents,
        }  # fmt: skip
        operands = {name: split_axis(view, splits[name], group) for name, view in zip(names, views, strict=True)}
        recorder.launch(kernel, extents, operands, over.fields)

    return record


_conv = _launch("conv_kernel", ("x", "w", "y"), _forward_shapes)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    y = recorder.out(call)
    _conv(recorder, call, views[0], views[1], y)
    if call.has(2):
        recorder.expression("add", (y, trailing(views[2], y.rank - 2)), y)
    return y


def _gradient(kernel: str, names: tuple[str, str, str], shapes: Callable[[Call], tuple[Shape, Shape]]) -> Emit:
    record = _launch(kernel, names, shapes)

    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        out = recorder.out(call)
        record(recorder, call, views[0], views[1], out)
        return out

    return emit


def _flops(shapes: Callable[[Call], tuple[Shape, Shape]]) -> Callable[[Call], int]:
    """Returns the cost rule: two operations per output element, input channel of its group and tap."""

    def flops(call: Call) -> int:
        x, w = shapes(call)
        return 2 * x[0] * math.prod(conv_windows(call, x, w).output) * math.prod(w)

    return flops


_TYPES = {"T": FLOATS}
TEMPLATES = (
    OpTemplate(
        "Conv",
        (Input("X"), Input("W"), Input("B", optional=True)),
        (Result("Y"),),
        _shape,
        _emit,
        _TYPES,
        (AUTO_PAD, _GROUP, Attribute("kernel_shape", "ints"), *WINDOW),
        flops=_flops(_forward_shapes),
        doc="Convolution of X (N, C, …) by W (M, C / group, …) with zero padding, plus B per output channel.",
    ),
    OpTemplate(
        "umd.ConvInputGrad",
        (Input("dY"), Input("W")),
        (Result("dX"),),
        _input_grad_shape,
        _gradient("conv_input_grad_kernel", ("dy", "w", "dx"), _input_grad_shapes),
        _TYPES,
        (_GROUP, Attribute("shape", "ints", required=True), *WINDOW),
        flops=_flops(_input_grad_shapes),
        doc="Gradient of Conv for X, whose shape is `shape`; the other attributes are Conv's.",
    ),
    OpTemplate(
        "umd.ConvWeightGrad",
        (Input("dY"), Input("X")),
        (Result("dW"),),
        _weight_grad_shape,
        _gradient("conv_weight_grad_kernel", ("dy", "x", "dw"), _weight_grad_shapes),
        _TYPES,
        (_GROUP, Attribute("kernel_shape", "ints", required=True), *WINDOW),
        flops=_flops(_weight_grad_shapes),
        doc="Gradient of Conv for W; the attributes are Conv's.",
    ),
)
