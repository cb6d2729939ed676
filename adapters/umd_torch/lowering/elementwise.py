"""Arithmetic, comparison, logic and choice, elementwise with broadcasting and torch's type promotion."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from umd_core import dtypes
from umd_torch.builder import Builder, Value
from umd_torch.lowering.checks import divisor
from umd_torch.lowering.common import Emitter, Operand, Table, accumulating, computing, operand, promoted, unary

aten = torch.ops.aten


def _combine(op: str, on_bool: str = "", **attributes: int) -> Emitter:
    """Returns an emitter of a binary op in the element type of the result; `on_bool` replaces it for bool."""

    def emit(b: Builder, x: Operand, y: Operand, *, alpha: float = 1) -> Value:
        if b.dtype is dtypes.bool_:
            if not on_bool or alpha != 1:
                raise b.unsupported("bool operands")
            return b.op(on_bool, operand(b, x, b.dtype), operand(b, y, b.dtype))
        dtype = computing(b.dtype, (x, y)) if op == "Mul" else b.dtype
        right = operand(b, y, dtype)
        if alpha != 1:
            right = b.op("Mul", right, b.scalar(alpha, dtype))
        return b.cast(b.op(op, operand(b, x, dtype), right, **attributes), b.dtype)

    return emit


def _remainder(**attributes: int) -> Emitter:
    """Returns an emitter of a remainder; of integers by 0 there is none."""

    def emit(b: Builder, x: Operand, y: Operand) -> Value:
        if b.dtype is dtypes.bool_:
            raise b.unsupported("bool operands")
        return b.op("Mod", operand(b, x, b.dtype), divisor(b, y, b.dtype), **attributes)

    return emit


def _rsub(b: Builder, x: Operand, y: Operand, alpha: float = 1) -> Value:
    dtype = b.dtype
    left = b.op("Mul", operand(b, x, dtype), b.scalar(alpha, dtype)) if alpha != 1 else operand(b, x, dtype)
    return b.op("Sub", operand(b, y, dtype), left)


def _compare(op: str) -> Emitter:
    """Returns an emitter of a comparison in the promoted element type of its operands."""

    def emit(b: Builder, x: Operand, y: Operand) -> Value:
        dtype = promoted(x, y)
        if dtype is dtypes.bool_ and op not in ("Equal", "umd.NotEqual"):
            dtype = dtypes.uint8
        return b.op(op, operand(b, x, dtype), operand(b, y, dtype))

    return emit


def _logic(op: str) -> Emitter:
    def emit(b: Builder, *operands: Operand) -> Value:
        return b.op(op, *(operand(b, x, dtypes.bool_) for x in operands))

    return emit


def _bits(op: str, on_bool: str) -> Emitter:
    def emit(b: Builder, *operands: Operand) -> Value:
        name = on_bool if b.dtype is dtypes.bool_ else op
        return b.op(name, *(operand(b, x, b.dtype) for x in operands))

    return emit


# division


def _floor_divide(b: Builder, x: Value, y: Value) -> Value:
    """Returns x // y with Python's rule, as torch does: 1.0 // 0.1 is 9, and 2.5 // -inf is -1."""
    if not x.dtype.is_float:
        return b.op("Div", b.op("Sub", x, b.op("Mod", x, y)), y)
    zero, plain = b.scalar(0, y.dtype), b.op("Div", x, y)
    rest = b.op("Mod", x, y, fmod=1)
    quotient = b.op("Div", b.op("Sub", x, rest), y)
    differ = b.op("Xor", b.op("Less", y, zero), b.op("Less", rest, zero))
    below = b.op("And", b.op("umd.NotEqual", rest, zero), differ)
    quotient = b.op("Where", below, b.op("Sub", quotient, b.scalar(1, y.dtype)), quotient)
    signed = b.op("Where", b.op("Equal", quotient, zero), b.op("Mul", plain, zero), b.op("Round", quotient))
    return b.op("Where", b.op("Equal", y, zero), plain, signed)


_ROUNDED: dict[str | None, Callable[[Builder, Value, Value], Value]] = {
    None: lambda b, x, y: b.op("Div", x, y),
    "floor": _floor_divide,
    "trunc": lambda b, x, y: b.op("umd.Trunc", b.op("Div", x, y)) if x.dtype.is_float else b.op("Div", x, y),
}


def _divide(b: Builder, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Value:
    dtype = accumulating(b.dtype) if rounding_mode else computing(b.dtype, (x, y))
    return b.cast(_ROUNDED[rounding_mode](b, operand(b, x, dtype), divisor(b, y, dtype)), b.dtype)


# powers

_POWERS: dict[float, Callable[[Builder, Value], Value]] = {
    0.5: lambda b, x: b.op("Sqrt", x),
    1.0: lambda b, x: x,
    2.0: lambda b, x: b.op("Mul", x, x),
    3.0: lambda b, x: b.op("Mul", b.op("Mul", x, x), x),
    -0.5: lambda b, x: b.op("umd.Rsqrt", x),
    -1.0: lambda b, x: b.op("Reciprocal", x),
    -2.0: lambda b, x: b.op("Reciprocal", b.op("Mul", x, x)),
}
"""The exponents that torch computes without `pow`."""


def _power(b: Builder, x: Operand, y: Operand) -> Value:
    base = operand(b, x, b.dtype)
    if not isinstance(y, Value) and (b.dtype.is_float or y in (1, 2, 3)):
        special = _POWERS.get(float(y))
        if special is not None:
            return special(b, base)
    if not isinstance(y, Value) and not b.dtype.is_float and isinstance(x, Value) and y < 0:
        raise b.unsupported("Integers to negative integer powers are not allowed")
    return b.op("Pow", base, operand(b, y, b.dtype))


# choice and bounds


def _where(b: Builder, condition: Value, x: Operand, y: Operand) -> Value:
    return b.op("Where", b.cast(condition, dtypes.bool_), operand(b, x, b.dtype), operand(b, y, b.dtype))


def _clamp(b: Builder, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    dtype = dtypes.uint8 if b.dtype is dtypes.bool_ else b.dtype
    result = b.cast(x, dtype)
    if low is not None:
        result = b.op("Max", result, operand(b, low, dtype))
    if high is not None:
        result = b.op("Min", result, operand(b, high, dtype))
    return b.cast(result, b.dtype)


def _clip(b: Builder, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    """Returns what one kernel computes where both bounds are numbers."""
    numbers = isinstance(low, (int, float)) and isinstance(high, (int, float))
    if numbers and b.dtype is not dtypes.bool_:
        return b.op("Clip", b.cast(x, b.dtype), b.scalar(low, b.dtype), b.scalar(high, b.dtype))
    return _clamp(b, x, low, high)


def _hardtanh(b: Builder, x: Value, low: Operand = -1.0, high: Operand = 1.0) -> Value:
    return _clip(b, x, low, high)


# activations


def _gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    return b.op("Gelu", x, approximate=approximate)


def _leaky_relu(b: Builder, x: Value, negative_slope: float = 0.01) -> Value:
    positive = b.op("Greater", x, b.scalar(0, x.dtype))
    return b.op("Where", positive, x, b.op("Mul", x, b.scalar(negative_slope, x.dtype)))


def _elu(b: Builder, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    def times(value: Value, factor: float) -> Value:
        return value if factor == 1 else b.op("Mul", value, b.scalar(factor, value.dtype))

    positive = b.op("Greater", x, b.scalar(0, x.dtype))
    negative = times(b.op("umd.Expm1", times(x, input_scale)), alpha * scale)
    return b.op("Where", positive, times(x, scale), negative)


def _threshold_backward(b: Builder, dy: Value, x: Value, threshold: float) -> Value:
    if threshold == 0:
        return b.op("umd.ReluGrad", dy, x)
    below = b.op("LessOrEqual", x, b.scalar(threshold, x.dtype))
    return b.op("Where", below, b.scalar(0, dy.dtype), dy)


def _gelu_backward(b: Builder, dy: Value, x: Value, *, approximate: str = "none") -> Value:
    return b.op("umd.GeluGrad", dy, x, approximate=approximate)


def _of_result(op: str) -> Emitter:
    """Returns an emitter of a gradient that needs dy and what the forward op gave."""

    def emit(b: Builder, dy: Value, y: Value) -> Value:
        return b.op(op, dy, y)

    return emit


# functions made of others


def _scaled_log(base: float) -> Emitter:
    def emit(b: Builder, x: Value) -> Value:
        return b.op("Mul", b.op("Log", b.cast(x, b.dtype)), b.scalar(1 / math.log(base), b.dtype))

    return emit


def _exp2(b: Builder, x: Value) -> Value:
    return b.op("Pow", b.scalar(2, b.dtype), b.cast(x, b.dtype))


def _round(b: Builder, x: Value, *, decimals: int = 0) -> Value:
    if not decimals or not x.dtype.is_float:
        return b.op("Round", x) if x.dtype.is_float else x
    scale = b.scalar(10.0 ** abs(decimals), x.dtype)
    away, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return b.op(back, b.op("Round", b.op(away, x, scale)), scale)


def _present(op: str) -> Emitter:
    """Returns an emitter of the larger or smaller of two numbers; of a number and NaN it is the number."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        x, y = b.cast(x, b.dtype), b.cast(y, b.dtype)
        if not b.dtype.is_float:
            return b.op(op, x, y)
        either = b.op("Where", b.op("IsNaN", y), x, b.op(op, x, y))
        return b.op("Where", b.op("IsNaN", x), y, either)

    return emit


def _same_or(op: str) -> Emitter:
    """Returns an emitter of an op that leaves integers as they are."""

    def emit(b: Builder, x: Value) -> Value:
        return b.op(op, x) if x.dtype.is_float else x

    return emit


def _false_or(op: str) -> Emitter:
    """Returns an emitter of a test that no integer passes."""

    def emit(b: Builder, x: Value) -> Value:
        return b.op(op, x) if x.dtype.is_float else b.full(False, dtypes.bool_, x.shape)

    return emit


def _abs(b: Builder, x: Value) -> Value:
    return x if x.dtype is dtypes.bool_ else b.op("Abs", x)


def _sign(b: Builder, x: Value) -> Value:
    """Returns -1, 0 or 1; torch's sign of NaN is 0, ONNX's is NaN."""
    if x.dtype is dtypes.bool_:
        return x
    sign = b.op("Sign", x)
    return b.op("Where", b.op("IsNaN", x), b.scalar(0, x.dtype), sign) if x.dtype.is_float else sign


def _angle(b: Builder, x: Value) -> Value:
    """Returns 0 or π, NaN of NaN."""
    x = b.cast(x, b.dtype)
    flat = b.op("Where", b.op("Less", x, b.scalar(0, x.dtype)), b.scalar(math.pi, x.dtype), b.scalar(0, x.dtype))
    return b.op("Where", b.op("IsNaN", x), x, flat)


def _hypotenuse(b: Builder, x: Value, y: Value) -> Value:
    """Returns the root of x² + y², which overflows only where it is too large itself."""
    x, y = (b.op("Abs", b.cast(v, b.dtype)) for v in (x, y))
    large, small, zero = b.op("Max", x, y), b.op("Min", x, y), b.scalar(0, b.dtype)
    ratio = b.op("Div", small, large)
    root = b.op("Mul", large, b.op("Sqrt", b.op("Add", b.scalar(1, b.dtype), b.op("Mul", ratio, ratio))))
    infinity = b.scalar(math.inf, b.dtype)
    plain = b.op("Or", b.op("Equal", large, zero), b.op("Equal", large, infinity))
    either = b.op("Or", b.op("Equal", x, infinity), b.op("Equal", y, infinity))
    return b.op("Where", either, infinity, b.op("Where", plain, large, root))


def _spherical_bessel(b: Builder, x: Value) -> Value:
    """Returns sin(x) / x, by its series near 0."""
    x = b.cast(x, b.dtype)
    square, series = b.op("Mul", x, x), b.scalar(1 / 6227020800, x.dtype)
    for count in (39916800, 362880, 5040, 120, 6, 1):
        series = b.op("Sub", b.scalar(1 / count, x.dtype), b.op("Mul", square, series))
    far = b.op("Where", b.op("IsInf", x), b.scalar(0, x.dtype), b.op("Div", b.op("Sin", x), x))
    return b.op("Where", b.op("Less", b.op("Abs", x), b.scalar(0.5, x.dtype)), series, far)


def _addc(op: str) -> Emitter:
    """Returns an emitter of input + value · (x op y)."""

    def emit(b: Builder, input: Value, x: Value, y: Value, *, value: float = 1) -> Value:
        term = b.op(op, b.cast(x, b.dtype), b.cast(y, b.dtype))
        if value != 1:
            term = b.op("Mul", b.scalar(value, b.dtype), term)
        return b.op("Add", b.cast(input, b.dtype), term)

    return emit


def _multiply_add(b: Builder, x: Operand, y: Operand, z: Operand) -> Value:
    left, right, more = (operand(b, v, b.dtype) for v in (x, y, z))
    return b.op("Add", b.op("Mul", left, right), more)


_UNARY = {
    "exp": "Exp", "expm1": "umd.Expm1", "log": "Log", "log1p": "umd.Log1p", "sqrt": "Sqrt", "rsqrt": "umd.Rsqrt",
    "sin": "Sin", "cos": "Cos", "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf", "reciprocal": "Reciprocal",
    "neg": "Neg", "relu": "Relu", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh",
    "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh",
}  # fmt: skip
_ROUNDING = {"floor": "Floor", "ceil": "Ceil", "trunc": "umd.Trunc"}
_COMPARISONS = {
    "eq": "Equal", "ne": "umd.NotEqual", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}  # fmt: skip
_OVERLOADS = ("Tensor", "Scalar")


def _both(name: str, emitter: Emitter) -> Table:
    """Returns the entries of the tensor and the scalar overload."""
    packet = getattr(aten, name)
    return {getattr(packet, overload): emitter for overload in _OVERLOADS}


TABLE: Table = {
    **{getattr(aten, name).default: unary(op) for name, op in _UNARY.items()},
    **{getattr(aten, name).default: _same_or(op) for name, op in _ROUNDING.items()},
    **{k: v for name, op in _COMPARISONS.items() for k, v in _both(name, _compare(op)).items()},
    **_both("add", _combine("Add", "Or")),
    **_both("sub", _combine("Sub")),
    **_both("mul", _combine("Mul", "And")),
    **_both("rsub", _rsub),
    **_both("div", _divide),
    **_both("true_divide", _divide),
    aten.div.Tensor_mode: _divide,
    aten.div.Scalar_mode: _divide,
    aten.floor_divide.default: functools.partial(_divide, rounding_mode="floor"),
    **_both("fmod", _remainder(fmod=1)),
    **_both("remainder", _remainder()),
    aten.remainder.Scalar_Tensor: _remainder(),
    aten.maximum.default: _combine("Max", "Or"),
    aten.minimum.default: _combine("Min", "And"),
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _power,
    aten.pow.Scalar: _power,
    aten.logical_and.default: _logic("And"),
    aten.logical_or.default: _logic("Or"),
    aten.logical_xor.default: _logic("Xor"),
    aten.logical_not.default: _logic("Not"),
    **_both("bitwise_and", _bits("BitwiseAnd", "And")),
    **_both("bitwise_or", _bits("BitwiseOr", "Or")),
    **_both("bitwise_xor", _bits("BitwiseXor", "Xor")),
    aten.bitwise_not.default: _bits("BitwiseNot", "Not"),
    aten.where.self: _where,
    aten.where.ScalarSelf: _where,
    aten.where.ScalarOther: _where,
    aten.where.Scalar: _where,
    aten.clamp.default: _clip,
    aten.clamp.Tensor: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_max.default: lambda b, x, high: _clamp(b, x, None, high),
    aten.hardtanh.default: _hardtanh,
    aten.gelu.default: _gelu,
    aten.leaky_relu.default: _leaky_relu,
    aten.elu.default: _elu,
    aten.threshold_backward.default: _threshold_backward,
    aten.gelu_backward.default: _gelu_backward,
    aten.sigmoid_backward.default: _of_result("umd.SigmoidGrad"),
    aten.tanh_backward.default: _of_result("umd.TanhGrad"),
    aten.log2.default: _scaled_log(2),
    aten.log10.default: _scaled_log(10),
    aten.exp2.default: _exp2,
    aten.round.default: _round,
    aten.round.decimals: _round,
    aten.fmax.default: _present("Max"),
    aten.fmin.default: _present("Min"),
    aten.angle.default: _angle,
    aten.hypot.default: _hypotenuse,
    aten.special_spherical_bessel_j0.default: _spherical_bessel,
    aten.abs.default: _abs,
    aten.sign.default: _sign,
    aten.isnan.default: _false_or("IsNaN"),
    aten.isinf.default: _false_or("IsInf"),
    aten.addcmul.default: _addc("Mul"),
    aten.addcdiv.default: _addc("Div"),
}

BY_NAME: dict[str, Emitter] = {"prims.fma.default": _multiply_add}
"""Ops that torch declares where they are first used, by the name of their overload."""
