"""MatMulInteger, QLinearMatMul, ConvInteger and QLinearConv: products of 8-bit integers, exact, by float kernels."""

from __future__ import annotations

import math

from umd_core.attributes import Attribute
from umd_core.dtypes import bfloat16, float16, float32, float64, int8, int32, uint8
from umd_core.quantization import EXACT, add_exactly, centred, check_matrix_scale, per_column, per_row, store
from umd_core.recorder import Recorder
from umd_core.shaping import split_axis, trailing, widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast, matrix_product
from umd_core.views import ABSENT, View
from umd_core.windows import AUTO_PAD, WINDOW, conv_windows

_BYTES = (int8, uint8)
_CONV = (AUTO_PAD, Attribute("group", "int", 1), Attribute("kernel_shape", "ints"), *WINDOW)


def _product(recorder: Recorder, a: View, b: View, zeros: tuple[View | None, View | None], out: View) -> View:
    """Records out = (a - zero) · (b - zero) as int32: parts of the depth that float32 holds exactly, added up."""
    depth, product = a.shape[-1], out
    a = centred(recorder, a, per_row(zeros[0], a.rank) if zeros[0] else None)
    b = centred(recorder, b, per_column(zeros[1]) if zeros[1] else None)
    if b.rank == 1:
        b, product = b.unsqueeze(1), product.unsqueeze(product.rank)
    if a.rank == 1:
        a, product = a.unsqueeze(0), product.unsqueeze(product.rank - 1)
    for first in range(0, depth, EXACT) or (0,):
        count = min(EXACT, depth - first)
        left, right = a.slice(a.rank - 1, first, count), b.slice(b.rank - 2, first, count)
        part = recorder.gemm(left, right, recorder.new(float32, product.shape))
        add_exactly(recorder, part, product, first=first == 0)
    return out


def _matmul_shape(call: Call) -> tuple[Shape]:
    a, b = call.desc(0).shape, call.desc(1).shape
    shape = matrix_product(call, 0, 1)
    check_matrix_scale(call, 2, a, -2)
    check_matrix_scale(call, 3, b, -1)
    return (shape,)


def _emit_matmul(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    zeros = (views[2] if call.has(2) else None, views[3] if call.has(3) else None)
    return _product(recorder, views[0], views[1], zeros, recorder.out(call))


def _qlinear_matmul_shape(call: Call) -> tuple[Shape]:
    a, b = call.desc(0).shape, call.desc(3).shape
    shape = matrix_product(call, 0, 3)
    for index, whole, axis in ((1, a, -2), (2, a, -2), (4, b, -1), (5, b, -1), (6, shape, -2), (7, shape, -2)):
        check_matrix_scale(call, index, whole, axis)
    return (shape,)


def _factor(recorder: Recorder, a: View, b: View, y: View) -> View:
    """Returns a · b / y as float32, in the shape that they broadcast to."""
    a, b, y = (widen(recorder, v, float32) for v in (a, b, y))
    factor = recorder.new(float32, broadcast(a.shape, b.shape, y.shape) or ())
    recorder.expression("mul", (a, b), factor)
    return recorder.expression("div", (factor, y), factor)


def _requantize(recorder: Recorder, total: View, factor: View, zero: View, out: View) -> View:
    """Records out = saturated (total · factor, rounded, plus zero)."""
    scaled = recorder.expression("mul", (widen(recorder, total, float32), factor), recorder.new(float32, out.shape))
    return store(recorder, scaled, recorder.copy(zero, recorder.new(float32, zero.shape)), out)


def _emit_qlinear_matmul(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = views
    out = recorder.out(call)
    total = _product(recorder, a, b, (a_zero, b_zero), recorder.new(int32, out.shape))
    rank = max(a.rank, 1)
    scales = (per_row(a_scale, rank), per_column(b_scale), per_row(y_scale, rank))
    return _requantize(recorder, total, _factor(recorder, *scales), per_row(y_zero, rank), out)


def _check_conv(call: Call, x: int, w: int, per_tensor: tuple[int, ...], per_channel: tuple[int, ...]) -> Shape:
    """Returns the output's shape after checking zero points and scales against it."""
    image, weights = call.desc(x).shape, call.desc(w).shape
    over = conv_windows(call, image, weights)
    for indices, allowed in ((per_tensor, ((), (1,))), (per_channel, ((), (1,), (weights[0],)))):
        for index in indices:
            if call.has(index) and call.desc(index).shape not in allowed:
                name, own = call.template.input_spec(index).name, list(call.desc(index).shape)
                wanted = "[]" if indices is per_tensor else f"[] or [{weights[0]}], one an output channel,"
                raise call.error(f"has shape {own}; {wanted} would be right", input=name)
    return (image[0], weights[0], *over.output)


def _conv(recorder: Recorder, call: Call, x: View, w: View, zeros: tuple[View, View], out: View) -> View:
    """Records out = the convolution of (x - zero) by (w - zero), padded with 0 after that, as int32.

    Channels are taken as many at a time as float32 adds up exactly; a window too large for that is computed in float64.
    """
    over, group, channels = conv_windows(call, x.shape, w.shape), call.attr("group"), w.shape[1]
    step = EXACT // over.kernel_size
    dtype = float32 if step else float64
    wide_x = split_axis(centred(recorder, x, per_column(zeros[0]), dtype), 1, group)
    wide_w = split_axis(centred(recorder, w, _per_channel(zeros[1], w.rank - 1), dtype), 0, group)
    for first in range(0, channels, step or channels) if channels else (0,):
        count = min(step or channels, channels - first)
        part = recorder.new(dtype, out.shape)
        extents = {
            "batch": x.shape[0], "groups": group, "out_channels": w.shape[0] // group, "in_channels": count,
            **over.extents,
        }  # fmt: skip
        operands = {
            "x": wide_x.slice(2, first, count), "w": wide_w.slice(2, first, count), "y": split_axis(part, 1, group)
        }  # fmt: skip
        recorder.launch("conv_kernel", extents, operands, over.fields)
        add_exactly(recorder, part, out, first=first == 0)
    return out


def _per_channel(value: View, after: int) -> View:
    """Returns one number for all, or one an output channel with `after` axes behind it; an absent view stays so."""
    if value and value.shape in ((), (1,)):
        return View(value.buffer, value.dtype, (), (), value.offset)
    return trailing(value, after) if value else value


def _emit_conv(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x_zero, w_zero = (*views[2:], ABSENT, ABSENT)[:2]
    return _conv(recorder, call, views[0], views[1], (x_zero, w_zero), recorder.out(call))


def _qlinear_conv_shape(call: Call) -> tuple[Shape]:
    shape = _check_conv(call, 0, 3, (1, 2, 6, 7), (4, 5))
    if call.has(8) and call.desc(8).shape != shape[1:2]:
        detail = f"has shape {list(call.desc(8).shape)}; [{shape[1]}], one number an output channel, would be right"
        raise call.error(detail, input="B")
    return (shape,)


def _emit_qlinear_conv(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = views[:8]
    out = recorder.out(call)
    total = _conv(recorder, call, x, w, (x_zero, w_zero), recorder.new(int32, out.shape))
    after = out.rank - 2
    if call.has(8):
        recorder.expression("add", (total, trailing(views[8], after)), total)
    scale = _per_channel(w_scale, 0)
    factor = _factor(recorder, per_column(x_scale), scale, per_column(y_scale))
    return _requantize(recorder, total, _per_channel(factor, after), per_column(y_zero), out)


TEMPLATES = (
    OpTemplate(
        "MatMulInteger",
        (
            Input("A", "T1"),
            Input("B", "T2"),
            Input("a_zero_point", "T1", optional=True),
            Input("b_zero_point", "T2", optional=True),
        ),
        (Result("Y", "int32"),),
        _matmul_shape,
        _emit_matmul,
        {"T1": _BYTES, "T2": _BYTES},
        flops=lambda call: 2 * call.outputs[0].element_count * call.desc(0).shape[-1],
        doc="Y = (A - a_zero_point) · (B - b_zero_point), as MatMul; zero points for all, a row of A, a column of B.",
    ),
    OpTemplate(
        "QLinearMatMul",
        (
            Input("a", "T1"),
            Input("a_scale", "TS"),
            Input("a_zero_point", "T1"),
            Input("b", "T2"),
            Input("b_scale", "TS"),
            Input("b_zero_point", "T2"),
            Input("y_scale", "TS"),
            Input("y_zero_point", "T3"),
        ),
        (Result("y", "T3"),),
        _qlinear_matmul_shape,
        _emit_qlinear_matmul,
        {"T1": _BYTES, "T2": _BYTES, "T3": _BYTES, "TS": (float16, bfloat16, float32)},
        flops=lambda call: 2 * call.outputs[0].element_count * call.desc(0).shape[-1],
        doc="The product of what a and b stand for, quantised by y_scale and y_zero_point.",
    ),
    OpTemplate(
        "ConvInteger",
        (
            Input("x", "T1"),
            Input("w", "T2"),
            Input("x_zero_point", "T1", optional=True),
            Input("w_zero_point", "T2", optional=True),
        ),
        (Result("y", "int32"),),
        lambda call: (_check_conv(call, 0, 1, (2,), (3,)),),
        _emit_conv,
        {"T1": _BYTES, "T2": _BYTES},
        _CONV,
        flops=lambda call: 2 * call.outputs[0].element_count * math.prod(call.desc(1).shape[1:]),
        doc="Convolution of x - x_zero_point by w - w_zero_point, as Conv; padding counts as x_zero_point.",
    ),
    OpTemplate(
        "QLinearConv",
        (
            Input("x", "T1"),
            Input("x_scale", "float32"),
            Input("x_zero_point", "T1"),
            Input("w", "T2"),
            Input("w_scale", "float32"),
            Input("w_zero_point", "T2"),
            Input("y_scale", "float32"),
            Input("y_zero_point", "T3"),
            Input("B", "int32", optional=True),
        ),
        (Result("y", "T3"),),
        _qlinear_conv_shape,
        _emit_qlinear_conv,
        {"T1": _BYTES, "T2": _BYTES, "T3": _BYTES},
        _CONV,
        flops=lambda call: 2 * call.outputs[0].element_count * math.prod(call.desc(3).shape[1:]),
        doc="The convolution of what x and w stand for, plus B in units of x_scale · w_scale, quantised by y_scale and "
        "y_zero_point.",
    ),
)
