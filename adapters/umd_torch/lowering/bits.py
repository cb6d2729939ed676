"""Bits of numbers: shifts, signs and what depends on them, exponents, neighbours."""

from __future__ import annotations

import math

import torch

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_torch.builder import Builder, Value
from umd_torch.lowering.common import Emitter, Operand, Table, operand

aten = torch.ops.aten
_WORDS = {
    dtypes.float64: dtypes.int64, dtypes.float32: dtypes.int32, dtypes.float16: dtypes.int16,
    dtypes.bfloat16: dtypes.int16,
}  # fmt: skip
"""Float → the integers that hold its bits."""


def _word(b: Builder, x: Value) -> Value:
    return b.op("BitCast", x, to=_WORDS[x.dtype])


def _sign_bit(b: Builder, x: Value) -> Value:
    """Returns whether a number is negative, -0.0 and a NaN with a sign too."""
    if x.dtype is dtypes.bool_ or x.dtype.kind == "u":
        return b.full(False, dtypes.bool_, x.shape)
    bits = _word(b, x) if x.dtype.is_float else x
    return b.op("Less", bits, b.scalar(0, bits.dtype))


def _with_sign(b: Builder, x: Operand, y: Operand) -> Value:
    """Returns the size of x with the sign of y."""
    x, y = operand(b, x, b.dtype), operand(b, y, b.dtype)
    size = b.op("Abs", x)
    return b.op("Where", _sign_bit(b, y), b.op("Neg", size), size)


def _direction(b: Builder, y: Value, x: Value) -> Value:
    """Returns the angle of (x, y) in radians, within (-π, π]: that of the nearest axis, and what lies between."""
    y, x = b.cast(y, b.dtype), b.cast(x, b.dtype)
    high, wide = b.op("Abs", y), b.op("Abs", x)
    large, zero, one = b.op("Max", high, wide), b.scalar(0, b.dtype), b.scalar(1, b.dtype)
    ratio = b.op("Where", b.op("Equal", high, wide), one, b.op("Div", b.op("Min", high, wide), large))
    angle = b.op("Atan", b.op("Where", b.op("Equal", large, zero), zero, ratio))
    steep = b.op("Sub", b.scalar(math.pi / 2, b.dtype), angle)
    angle = b.op("Where", b.op("Greater", high, wide), steep, angle)
    angle = b.op("Where", _sign_bit(b, x), b.op("Sub", b.scalar(math.pi, b.dtype), angle), angle)
    return _with_sign(b, angle, y)


def _neighbour(b: Builder, x: Value, y: Value) -> Value:
    """Returns the next number after x towards y: one more or less in the bits, whose order is that of the sizes."""
    x, y = b.cast(x, b.dtype), b.cast(y, b.dtype)
    bits = _word(b, x)
    one, zero = b.scalar(1, bits.dtype), b.scalar(0, x.dtype)
    away = b.op("Equal", b.op("Greater", y, x), b.op("Greater", x, zero))
    moved = b.op("Where", away, b.op("Add", bits, one), b.op("Sub", bits, one))
    least = b.op("BitCast", one, to=x.dtype)
    from_zero = b.op("Where", b.op("Greater", y, zero), least, b.op("Neg", least))
    stepped = b.op("Where", b.op("Equal", x, zero), from_zero, b.op("BitCast", moved, to=x.dtype))
    reached = b.op("Where", b.op("Equal", x, y), y, stepped)
    return b.op("Where", b.op("Or", b.op("IsNaN", x), b.op("IsNaN", y)), b.op("Add", x, y), reached)


_PARTS: dict[DType, tuple[int, int, int]] = {dtypes.float64: (52, 0x7FF, 54), dtypes.float32: (23, 0xFF, 25)}
"""Bits of the fraction, the exponent's mask, the power of 2 that makes subnormal numbers normal."""


def _mantissa_and_exponent(b: Builder, x: Value) -> tuple[Value, Value]:
    """Returns m and e with x = m · 2^e and m in [0.5, 1); 0, infinities and NaN are their own mantissa."""
    if x.dtype not in _PARTS:
        raise b.unsupported(f"mantissa and exponent of {x.dtype} are not there")
    fraction, mask, lift = _PARTS[x.dtype]
    least = b.scalar(2.0 ** (2 - (mask + 1) // 2), x.dtype)
    small = b.op("Less", b.op("Abs", x), least)
    normal = b.op("Where", small, b.op("Mul", x, b.scalar(2.0**lift, x.dtype)), x)
    bits = _word(b, normal)
    word = bits.dtype
    shifted = b.op("BitShift", bits, b.scalar(fraction, word), direction="RIGHT")
    biased = b.op("BitwiseAnd", shifted, b.scalar(mask, word))
    half = mask // 2 - 1
    bias = b.op("Where", small, b.scalar(half + lift, word), b.scalar(half, word))
    exponent = b.op("Sub", biased, bias)
    cleared = b.op("BitwiseAnd", bits, b.scalar(~(mask << fraction), word))
    mantissa = b.op("BitCast", b.op("BitwiseOr", cleared, b.scalar(half << fraction, word)), to=x.dtype)
    odd = b.op("Or", b.op("Equal", x, b.scalar(0, x.dtype)), b.op("Equal", biased, b.scalar(mask, word)))
    exponent = b.op("Where", odd, b.scalar(0, word), exponent)
    return b.op("Where", odd, x, mantissa), b.cast(exponent, dtypes.int32)


def _shift(direction: str) -> Emitter:
    def emit(b: Builder, x: Operand, y: Operand) -> Value:
        return b.op("BitShift", operand(b, x, b.dtype), operand(b, y, b.dtype), direction=direction)

    return emit


def _shifts(name: str, direction: str) -> Table:
    packet = getattr(aten, name)
    return {getattr(packet, overload): _shift(direction) for overload in packet.overloads() if "out" not in overload}


TABLE: Table = {
    aten.signbit.default: _sign_bit,
    **dict.fromkeys((aten.copysign.Tensor, aten.copysign.Scalar), _with_sign),
    aten.atan2.default: _direction,
    aten.nextafter.default: _neighbour,
    aten.frexp.Tensor: _mantissa_and_exponent,
    **{k: v for name in ("bitwise_left_shift", "__lshift__") for k, v in _shifts(name, "LEFT").items()},
    **{k: v for name in ("bitwise_right_shift", "__rshift__") for k, v in _shifts(name, "RIGHT").items()},
}
