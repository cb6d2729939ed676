"""Rounding to element types that umd lacks, by ops of the table: the results are held by a wider type, each exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.errors import DTypeError, InternalError
from umd_onnx.values import Computed, Known, Narrow, Tensor

if TYPE_CHECKING:
    from umd_onnx.importer import Importer

INTEGERS: dict[str, DType] = {
    "int4": dtypes.int8,
    "int2": dtypes.int8,
    "uint4": dtypes.uint8,
    "uint2": dtypes.uint8,
}
"""Integers of less than a byte, and what holds them."""
FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")
"""Floats of a byte or less, held by float32."""
_SOURCES = (dtypes.float32, dtypes.float16, dtypes.bfloat16, *dtypes.INTEGERS, dtypes.bool_)
_MANTISSA, _BIAS = 23, 127
"""Of float32: bits of the mantissa, and what the exponent is stored with."""


def narrowed(i: Importer, value: Computed, dtype: np.dtype[Any], *, saturate: bool) -> Narrow:
    """Returns a tensor rounded to a narrow type: floats half to even, integers toward zero and wrapped.

    Raises:
        DTypeError: the type is none of those above, or the tensor is of float64, which would be rounded twice.
    """
    if value.desc.dtype not in _SOURCES or dtype.name not in (*INTEGERS, *FLOATS):
        got = f"{value.desc.dtype.name} to {dtype.name}"
        raise DTypeError("Cast", f"{got}, which umd does not have", got=dtype.name, allowed=tuple(dtypes.BY_NAME))
    if dtype.name in INTEGERS:
        return tagged(_wrapped(i, value, dtype), dtype)
    return tagged(_rounded(i, value, dtype, saturate=saturate), dtype)


def clipped(i: Importer, value: Tensor, dtype: np.dtype[Any]) -> Narrow:
    """Returns integers of the type that holds the narrow one, cut off at its ends."""
    info, holder = ml_dtypes.iinfo(dtype), INTEGERS[dtype.name].numpy
    return tagged(i.one("Clip", value, Known(np.array(info.min, holder)), Known(np.array(info.max, holder))), dtype)


def tagged(value: Tensor, dtype: np.dtype[Any]) -> Narrow:
    """Returns a computed tensor, whose numbers the narrow type has, as one of that type."""
    found = computed(value)
    return Narrow(found.name, found.desc, found.origins, dtype)


def computed(value: Tensor) -> Computed:
    """Returns the result of an op, which the program computes.

    Raises:
        InternalError: it is known.
    """
    if isinstance(value, Known):
        raise InternalError("an op's result is known")
    return value


def _wrapped(i: Importer, value: Computed, dtype: np.dtype[Any]) -> Tensor:
    """Returns the lowest bits of the integer toward zero; with a sign, the highest of them is it."""
    bits = int(ml_dtypes.iinfo(dtype).bits)
    whole = i.one("Cast", value, to=dtypes.int32)
    low = i.one("BitwiseAnd", whole, Known(np.array((1 << bits) - 1, np.int32)))
    if dtype.name.startswith("int"):
        sign = Known(np.array(1 << (bits - 1), np.int32))
        low = i.one("Sub", i.one("BitwiseXor", low, sign), sign)
    return i.one("Cast", low, to=INTEGERS[dtype.name])


def _rounded(i: Importer, value: Computed, dtype: np.dtype[Any], *, saturate: bool) -> Tensor:
    """Returns float32 numbers at the nearest multiple of the step that the type has at their magnitude."""
    info = ml_dtypes.finfo(dtype)
    x = i.one("Cast", value, to=dtypes.float32)
    step = _step(i, x, int(info.nmant), int(info.minexp))
    y = i.one("Mul", i.one("Round", i.one("Div", x, step)), step)
    most = float(info.max)
    if saturate or dtype.name == "float4_e2m1fn":  # it has neither infinity nor NaN
        y = i.one("Clip", y, _number(-most), _number(most))
    else:
        beyond = i.one("Greater", i.one("Abs", y), _number(most))
        instead = i.one("Mul", y, _number(np.inf)) if dtype.name == "float8_e5m2" else _number(np.nan)
        y = i.one("Where", beyond, instead, y)
    return i.one("Add", y, _number(0.0)) if dtype.name.endswith("uz") else y  # no negative zero


def _step(i: Importer, x: Tensor, mantissa: int, least: int) -> Tensor:
    """Returns the distance of neighbours at each number's magnitude: a power of 2, put together from its bits."""
    places = Known(np.array(_MANTISSA, np.uint32))
    shifted = i.one("BitShift", i.one("BitCast", x, to=dtypes.uint32), places, direction="RIGHT")
    exponent = i.one("BitwiseAnd", shifted, Known(np.array(0xFF, np.uint32)))
    exponent = i.one("Max", exponent, Known(np.array(least + _BIAS, np.uint32)))
    lower = i.one("Sub", exponent, Known(np.array(mantissa, np.uint32)))
    return i.one("BitCast", i.one("BitShift", lower, places, direction="LEFT"), to=dtypes.float32)


def _number(value: float) -> Known:
    return Known(np.array(value, np.float32))
