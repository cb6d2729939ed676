"""ConstantOfShape and umd.Fill: one value everywhere. The result is that value with strides of 0, no data moves."""

from __future__ import annotations

import math

import numpy as np

from umd_core import dtypes
from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import DType
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _of_shape(call: Call) -> tuple[Shape]:
    value, shape = call.attr("value"), call.ints(0) or ()
    if min(shape, default=0) < 0:
        raise call.error(f"{list(shape)} has a negative extent", input="input")
    if value is not None and value.size != 1:
        raise call.bad_attribute("value", f"has {value.size} elements", "a tensor of one element")
    call.types["T2"] = dtypes.float32 if value is None else dtypes.dtype(value.dtype)
    return (shape,)


def _emit_of_shape(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    value, out = call.attr("value"), call.outputs[0]
    return recorder.scalar(0 if value is None else value.reshape(()), out.dtype).expand(out.shape)


def _holds(dtype: DType, value: float) -> bool:
    """Returns whether the dtype has a number for `value`, rounding a float but not overflowing."""
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return math.isinf(value) or not np.isinf(np.asarray(value).astype(dtype.numpy))
    if dtype.kind == "b":
        return value in (0, 1)
    limits = np.iinfo(dtype.numpy)
    return math.isfinite(value) and value == int(value) and limits.min <= value <= limits.max


def _filled(call: Call) -> tuple[Shape]:
    shape, dtype, value = call.attr("shape"), call.attr("dtype"), call.attr("value")
    if min(shape, default=0) < 0:
        raise call.bad_attribute("shape", f"{list(shape)} has a negative extent", "0 or more")
    if not _holds(dtype, value):
        raise call.bad_attribute("value", f"{value} is not a number of {dtype}", "a value within its range")
    return (shape,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    out = call.outputs[0]
    return recorder.scalar(call.attr("value"), out.dtype).expand(out.shape)


TEMPLATES = (
    OpTemplate(
        "ConstantOfShape",
        (Input("input", "int64", static=True),),
        (Result("output", "T2"),),
        _of_shape,
        _emit_of_shape,
        attributes=(Attribute("value", "tensor"),),
        flops=no_flops,
        doc="A tensor of the given shape full of value's one element, float32 0 by default.",
    ),
    OpTemplate(
        "umd.Fill",
        (),
        (Result("Y", "@dtype"),),
        _filled,
        _emit,
        attributes=(
            Attribute("shape", "ints", required=True),
            Attribute("dtype", "dtype", dtypes.float32),
            Attribute("value", "number", 0),
        ),
        flops=no_flops,
        doc="A tensor of the given shape and dtype full of value.",
    ),
)
