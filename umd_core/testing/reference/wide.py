"""Wide numbers: Python integers, float64, and long double for float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from umd_core.dtypes import DType
from umd_core.ir import Array


def widen(array: Array) -> Array:
    """Returns the elements as wide numbers: bool (any non-zero byte), Python integers, or float64 and above."""
    if array.dtype == np.bool_:
        return np.not_equal(np.frombuffer(array.tobytes(), np.uint8).reshape(array.shape), 0)
    if array.dtype.kind in "iu":
        return array.astype(object)
    return array.astype(np.longdouble if array.dtype == np.float64 else np.float64)


def wrap(value: Any, dtype: DType) -> Array:
    """Returns Python integers reduced to the range of an integer type, as two's complement does."""
    bits = 8 * dtype.size
    low = -(1 << (bits - 1)) if dtype.kind == "i" else 0
    wrapped = [(int(v) - low) % (1 << bits) + low for v in np.asarray(value, object).reshape(-1)]
    return _objects(wrapped, np.shape(value))


def bounds(dtype: DType) -> tuple[Any, Any]:
    """Returns the least and the greatest value of a type; infinities for floats."""
    if dtype.is_float:
        return (-np.inf, np.inf)
    info = np.iinfo(dtype.numpy)
    return (int(info.min), int(info.max))


def _objects(values: list[Any], shape: tuple[int, ...]) -> Array:
    result = np.empty(len(values), object)
    result[:] = values
    return result.reshape(shape)
