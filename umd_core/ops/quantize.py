"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: floats as small integers and back."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.attributes import Attribute
from umd_core.dtypes import DType, bool_, float32, uint8
from umd_core.quantization import check_scale, spread, store
from umd_core.recorder import Recorder
from umd_core.shaping import widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View

_HALF_AND_SINGLE = (dtypes.float16, dtypes.bfloat16, dtypes.float32)
_SHORT = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16)
_AXIS, _BLOCK = Attribute("axis", "int", 1), Attribute("block_size", "int", 0)
_OUTPUT = Attribute("output_dtype", "int", 0)


def _named(call: Call, attribute: str, allowed: tuple[DType, ...]) -> DType | None:
    """Returns the dtype that an attribute names by ONNX's number, None where it is 0.

    Raises:
        AttributeValueError: none of those allowed.
    """
    code = call.attr(attribute)
    if not code:
        return None
    found = next((dtype for dtype in allowed if dtype.code == code), None)
    if found is None:
        known = dtypes.BY_CODE.get(code)
        wanted = "one of " + ", ".join(f"{dtype.code} ({dtype})" for dtype in allowed)
        raise call.bad_attribute(attribute, f"type {known or code} is not supported", wanted)
    return found


def _quantized(call: Call) -> tuple[Shape]:
    check_scale(call, 1)
    named = _named(call, "output_dtype", _SHORT)
    _named(call, "precision", _HALF_AND_SINGLE)
    if call.has(2):
        _check_zero_point(call)
        if named not in (None, call.types["T3"]):
            raise call.bad_attribute("output_dtype", f"is {named}, the zero point {call.types['T3']}", "the same")
    else:
        call.types["T3"] = named or uint8
    return (call.desc(0).shape,)


def _check_zero_point(call: Call) -> None:
    scale, zero = call.desc(1).shape, call.desc(2).shape
    if zero != scale and {zero, scale} != {(), (1,)}:
        name = call.template.inputs[2].name
        raise call.error(f"has shape {list(zero)}; the scale's, {list(scale)}, would be right", input=name)


def _emit_quantize(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Divides in `precision`, or the scale's type, and rounds once more where that is a 16-bit float."""
    x, out = views[0], recorder.out(call)
    dtype = _named(call, "precision", _HALF_AND_SINGLE) or (views[1].dtype if views[1].dtype.is_float else float32)
    scale = spread(recorder, call, views[1], dtype)
    value = x if x.dtype is dtype else recorder.copy(x, recorder.new(dtype, x.shape))
    quotient = widen(recorder, recorder.expression("div", (value, scale), recorder.new(dtype, x.shape)), float32)
    return store(recorder, quotient, spread(recorder, call, views[2], float32) if call.has(2) else None, out)


def _dequantized(call: Call) -> tuple[Shape]:
    check_scale(call, 1)
    if call.has(2):
        _check_zero_point(call)
    call.types["T3"] = _named(call, "output_dtype", _HALF_AND_SINGLE) or call.types["T2"]
    return (call.desc(0).shape,)


def _emit_dequantize(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, out = recorder.copy(views[0], recorder.new(float32, views[0].shape)), recorder.out(call)
    result = out if out.dtype is float32 else recorder.new(float32, out.shape)
    scale = spread(recorder, call, views[1], float32)
    if call.has(2):
        recorder.expression("dequantize", (x, scale, spread(recorder, call, views[2], float32)), result)
    else:
        recorder.expression("mul", (x, scale), result)
    return out if result is out else recorder.copy(result, out)


def _dynamic(call: Call) -> tuple[Shape, Shape, Shape]:
    return (call.desc(0).shape, (), ())


def _emit_dynamic(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, View, View]:
    """The range is that of x and 0; it maps onto 0 to 255. A scale of 1 stands for an empty range."""
    x, axes = views[0], range(views[0].rank)
    y, scale, point = (recorder.out(call, i) for i in range(3))
    zero, top = recorder.scalar(0, float32), recorder.scalar(255, float32)
    high, low = (recorder.reduce(name, x, axes, recorder.new(float32, ())) for name in ("max", "min"))
    recorder.expression("max", (high, zero), high)
    recorder.expression("min", (low, zero), low)
    empty = recorder.expression("eq", (high, low), recorder.new(bool_, ()))
    span = recorder.expression("sub", (high, low), high)
    recorder.expression("div", (span, top), span)
    recorder.expression("select", (empty, recorder.scalar(1, float32), span), scale)
    recorder.expression("div", (low, scale), low)
    recorder.expression("neg", (low,), low)
    recorder.expression("clip", (low, zero, top), low)
    rounded = recorder.expression("round", (low,), low)
    recorder.copy(rounded, point)
    quotient = recorder.expression("div", (x, scale), recorder.like(x))
    store(recorder, quotient, rounded, y)
    return y, scale, point


TEMPLATES = (
    OpTemplate(
        "QuantizeLinear",
        (Input("x", "T1"), Input("y_scale", "T2"), Input("y_zero_point", "T3", optional=True)),
        (Result("y", "T3"),),
        _quantized,
        _emit_quantize,
        {"T1": (*_HALF_AND_SINGLE, dtypes.int32), "T2": (*_HALF_AND_SINGLE, dtypes.int32), "T3": _SHORT},
        (_AXIS, _BLOCK, _OUTPUT, Attribute("precision", "int", 0), Attribute("saturate", "bool", True)),
        doc="y = x / y_scale rounded half to even, plus y_zero_point, saturated; one scale for all, for each place of "
        "axis, or for each block of block_size along it. saturate concerns 8-bit floats, which are not supported.",
    ),
    OpTemplate(
        "DequantizeLinear",
        (Input("x", "T1"), Input("x_scale", "T2"), Input("x_zero_point", "T1", optional=True)),
        (Result("y", "T3"),),
        _dequantized,
        _emit_dequantize,
        {"T1": (*_SHORT, dtypes.int32), "T2": _HALF_AND_SINGLE},
        (_AXIS, _BLOCK, _OUTPUT),
        doc="y = (x - x_zero_point) · x_scale; one scale for all, for each place of axis, or for each block of "
        "block_size along it.",
    ),
    OpTemplate(
        "DynamicQuantizeLinear",
        (Input("x", "T1"),),
        (Result("y", "uint8"), Result("y_scale", "float32"), Result("y_zero_point", "uint8")),
        _dynamic,
        _emit_dynamic,
        {"T1": (float32,)},
        doc="x as uint8 by a scale and zero point that fit its range together with 0.",
    ),
)
