"""What the ops on quantised numbers share: scales and zero points per tensor, axis or block, exact integer products."""

from __future__ import annotations

import numpy as np

from umd_core.dtypes import DType, float32, int32
from umd_core.recorder import Recorder
from umd_core.shaping import take, trailing
from umd_core.template import Call, Shape, normal_axis
from umd_core.views import View

EXACT = (1 << 24) // 255**2
"""How many products of two numbers in -255 to 255 add up exactly in float32."""


def check_scale(call: Call, index: int) -> None:
    """Checks that an input holds one number, one a place of `axis`, or one a block along it.

    Raises:
        ShapeError, AttributeValueError: it does not.
    """
    x, own, block = call.desc(0).shape, call.desc(index).shape, call.attr("block_size")
    name = call.template.input_spec(index).name
    if block < 0:
        raise call.bad_attribute("block_size", f"{block} is negative", "0 (no blocks) or more")
    if own in ((), (1,)):
        return
    axis = normal_axis(call, call.attr("axis"), len(x))
    if block:
        wanted = (*x[:axis], -(-x[axis] // block), *x[axis + 1 :])
        if own != wanted:
            raise call.error(f"has shape {list(own)}; {list(wanted)}, blocks of {block}, would be right", input=name)
    elif own != x[axis : axis + 1]:
        raise call.error(f"has shape {list(own)}; [] or {list(x[axis : axis + 1])} would be right", input=name)


def spread(recorder: Recorder, call: Call, value: View, dtype: DType) -> View:
    """Returns a scale or zero point as `dtype`, so that it broadcasts with the first input."""
    x, block = call.desc(0).shape, call.attr("block_size")
    if value.dtype is not dtype:
        value = recorder.copy(value, recorder.new(dtype, value.shape))
    if value.shape in ((), (1,)):
        return recorder.reshape(value, ())
    axis = normal_axis(call, call.attr("axis"), len(x))
    if not block:
        return trailing(value, len(x) - 1 - axis)
    index = recorder.constant(np.arange(x[axis], dtype=np.int64) // block)
    return take(recorder, value, axis, index, recorder.new(dtype, x))


def store(recorder: Recorder, quotient: View, zero: View | None, out: View) -> View:
    """Records out = saturated (quotient rounded half to even, plus zero); float32 in, integers out."""
    name, operands = ("round_add", (quotient, zero)) if zero else ("round", (quotient,))
    return recorder.copy(recorder.expression(name, operands, recorder.new(float32, out.shape)), out)


def centred(recorder: Recorder, value: View, zero: View | None, dtype: DType = float32) -> View:
    """Returns value - zero in a float type, exactly."""
    wide = recorder.copy(value, recorder.new(dtype, value.shape))
    if zero:
        point = recorder.copy(zero, recorder.new(dtype, zero.shape))
        recorder.expression("sub", (wide, point), wide)
    return wide


def add_exactly(recorder: Recorder, part: View, out: View, *, first: bool) -> None:
    """Records out += part for a part that float holds exactly; out is int32, and wraps."""
    if first:
        recorder.copy(part, out)
        return
    whole = recorder.copy(part, recorder.new(int32, out.shape))
    recorder.expression("add", (out, whole), out)


def per_row(value: View, rank: int) -> View:
    """Returns a number a row of a matrix, or one for all, so that it broadcasts over `rank` axes."""
    if value.shape in ((), (1,)):
        return View(value.buffer, value.dtype, (), (), value.offset)
    return trailing(value, 1) if value.rank == 1 and rank > 1 else value


def per_column(value: View) -> View:
    """Returns a number a column of a matrix, or one for all, so that it broadcasts."""
    return View(value.buffer, value.dtype, (), (), value.offset) if value.shape == (1,) else value


def check_matrix_scale(call: Call, index: int, whole: Shape, axis: int) -> None:
    """Checks that an input holds one number, or one along `axis` (-2: a row, -1: a column) of matrices `whole`.

    Raises:
        ShapeError: it does not.
    """
    if not call.has(index):
        return
    own = call.desc(index).shape
    allowed: list[Shape] = [(), (1,)]
    if len(whole) >= -axis:
        allowed.append((whole[axis],))
    if len(whole) > 1:
        allowed.append((*whole[:-2], whole[-2], 1) if axis == -2 else (*whole[:-2], 1, whole[-1]))
    if own not in allowed:
        text = " or ".join(str(list(shape)) for shape in allowed if shape != (1,))
        name = call.template.input_spec(index).name
        raise call.error(f"has shape {list(own)}; {text} would be right", input=name)
