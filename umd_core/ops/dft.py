"""DFT and STFT: products with a constant matrix of sines and cosines. Complex numbers are pairs along the last axis."""

from __future__ import annotations

import math

import numpy as np

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS, INDEX
from umd_core.errors import LimitError
from umd_core.ir import Array
from umd_core.recorder import Recorder
from umd_core.shaping import settle, target
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View

MAX_LENGTH = 4096
"""A longer transform wants a fast algorithm, not a matrix of its square."""


def _matrix(taken: int, length: int, parts: int, kept: int, *, inverse: bool, real: bool) -> Array:
    """Returns (taken · parts, kept · 2) float64, or (…, kept) for a real result: the transform of `length` as a matrix.

    `parts` is 1 for real input, 2 for complex; a real result is the inverse of one side of a spectrum.
    """
    at, to = np.arange(taken)[:, None], np.arange(kept)[None, :]
    angle = (at * to % length) * (2 * np.pi / length) * (1 if inverse else -1)
    cosine, sine = np.cos(angle), np.sin(angle)
    rows = np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)], 1)[:, :parts]
    if real:  # the other side holds the conjugates: all but the ends count twice
        twice = np.where((at == 0) | (2 * at == length), 1, 2)
        rows = rows[..., :1] * twice[:, None, :, None]
    if inverse:
        rows = rows / length
    return rows.reshape(taken * parts, -1)


def _length(call: Call, index: int, default: int) -> int:
    """Returns the transform's length, which must be known at translation.

    Raises:
        ShapeError, LimitError: not a number of 1 to MAX_LENGTH.
    """
    value = call.ints(index)
    name = call.template.inputs[index].name
    if value is not None and len(value) != 1:
        raise call.error(f"has {len(value)} elements; one number would be right", input=name)
    length = default if value is None else value[0]
    if length < 1:
        raise call.error(f"is {length}; 1 or more would be right", input=name)
    if length > MAX_LENGTH:
        raise LimitError("length of a Fourier transform", length, MAX_LENGTH, op=call.op)
    return length


def _plan(call: Call) -> tuple[int, int, int]:
    """Returns (axis, length of the transform, extent of the result along the axis)."""
    shape, given = call.desc(0).shape, call.ints(2)
    if len(shape) < 2 or shape[-1] not in (1, 2):
        raise call.error(
            f"has shape {list(shape)}; a last axis of 1 (real) or 2 (complex) would be right", input="input"
        )
    axis = normal_axis(call, given[0] if given else -2, len(shape))
    if axis == len(shape) - 1:
        raise call.error("is the last axis, which holds real and imaginary parts", input="axis")
    inverse, onesided = call.attr("inverse"), call.attr("onesided")
    length = _length(call, 1, 2 * (shape[axis] - 1) if inverse and onesided else shape[axis])
    return axis, length, length // 2 + 1 if onesided and not inverse else length


def _dft_shape(call: Call) -> tuple[Shape]:
    shape, (axis, _, kept) = call.desc(0).shape, _plan(call)
    real = call.attr("inverse") and call.attr("onesided")
    return ((*shape[:axis], kept, *shape[axis + 1 : -1], 1 if real else 2),)


def _transform(recorder: Recorder, x: View, matrix: Array, out: View) -> None:
    """Records out (…, kept, parts) = x (…, taken, parts) times the matrix."""
    lead = x.shape[:-2]
    flat = recorder.reshape(x, (*lead, matrix.shape[0]))
    written = product = target(recorder, out, (*lead, matrix.shape[1]))
    if not lead:
        flat, product = flat.unsqueeze(0), product.unsqueeze(0)
    recorder.gemm(flat, recorder.constant(matrix.astype(x.dtype.numpy)), product)
    settle(recorder, written, out)


def _emit_dft(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, out, (axis, length, kept) = views[0], recorder.out(call), _plan(call)
    inverse, real = call.attr("inverse"), call.attr("inverse") and call.attr("onesided")
    taken = min(x.shape[axis], length // 2 + 1 if real else length)
    order = [*(a for a in range(x.rank - 1) if a != axis), axis, x.rank - 1]
    matrix = _matrix(taken, length, x.shape[-1], kept, inverse=inverse, real=real)
    _transform(recorder, x.slice(axis, 0, taken).permute(order), matrix, out.permute(order))
    return out


def _frames(call: Call) -> tuple[int, int, int]:
    """Returns (length of a frame, elements between frames, frames)."""
    shape, step = call.desc(0).shape, call.ints(1) or ()
    if len(shape) != 3 or shape[-1] not in (1, 2):
        raise call.error(f"has shape {list(shape)}; (N, length, 1 or 2) would be right", input="signal")
    if len(step) != 1 or step[0] < 1:
        raise call.error(f"is {list(step)}; one positive number would be right", input="frame_step")
    window = call.desc(2).shape if call.has(2) else None
    length = _length(call, 3, window[0] if window else shape[1])
    if window is not None and window != (length,):
        raise call.error(f"has shape {list(window)}; [{length}], a frame's, would be right", input="window")
    if length > shape[1]:
        raise call.error(f"has {shape[1]} elements, a frame has {length}", input="signal")
    return length, step[0], 1 + (shape[1] - length) // step[0]


def _stft_shape(call: Call) -> tuple[Shape]:
    length, _, count = _frames(call)
    return ((call.desc(0).shape[0], count, length // 2 + 1 if call.attr("onesided") else length, 2),)


def _emit_stft(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, out, (length, step, count) = views[0], recorder.out(call), _frames(call)
    frames = x.windows(1, count, step, length, 1)
    if call.has(2):
        frames = recorder.expression("mul", (frames, views[2].unsqueeze(1)), recorder.new(x.dtype, frames.shape))
    matrix = _matrix(length, length, x.shape[-1], out.shape[2], inverse=False, real=False)
    _transform(recorder, frames, matrix, out)
    return out


TEMPLATES = (
    OpTemplate(
        "DFT",
        (
            Input("input", "T1"),
            Input("dft_length", "T2", optional=True, static=True),
            Input("axis", "int64", optional=True, static=True),
        ),
        (Result("output", "T1"),),
        _dft_shape,
        _emit_dft,
        {"T1": FLOATS, "T2": INDEX},
        (Attribute("inverse", "bool", False), Attribute("onesided", "bool", False)),
        flops=lambda call: 4 * call.outputs[0].element_count * _plan(call)[1],
        doc="Discrete Fourier transform along axis of input (…, 1 or 2), cut or filled up with 0 to dft_length; "
        "onesided gives the first half only, or with inverse takes it and gives real numbers.",
    ),
    OpTemplate(
        "STFT",
        (
            Input("signal", "T1"),
            Input("frame_step", "T2", static=True),
            Input("window", "T1", optional=True),
            Input("frame_length", "T2", optional=True, static=True),
        ),
        (Result("output", "T1"),),
        _stft_shape,
        _emit_stft,
        {"T1": FLOATS, "T2": INDEX},
        (Attribute("onesided", "bool", True),),
        flops=lambda call: 4 * math.prod(call.outputs[0].shape) * _frames(call)[0],
        doc="Discrete Fourier transforms of frames of the signal (N, length, 1 or 2), frame_step apart, each times "
        "window.",
    ),
)
