"""Compares what a device computed with the reference, within the kernel's stated tolerance."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from umd_core.dtypes import DType
from umd_core.ir import Array
from umd_core.testing.reference import Expected

LARGEST = 1 / 8
"""No tolerance excuses more, in relation to the numbers: 256 epsilons of bfloat16 would hide a wrong sign."""


def epsilon(dtype: DType) -> float:
    """Returns the distance from 1 to the next larger number of a float type."""
    return float(_finfo(dtype).eps)


def smallest(dtype: DType) -> float:
    """Returns the smallest normal number of a float type."""
    return float(_finfo(dtype).tiny)


def _finfo(dtype: DType) -> Any:
    finfo: Any = ml_dtypes.finfo
    return finfo(dtype.numpy)


def difference(got: Array, expected: Expected, dtype: DType, tolerance: float) -> str:
    """Returns "" when `got` agrees, else where it first does not.

    Bools agree by truth, integers exactly. Floats agree within `tolerance` epsilons of the larger of the result and its
    scale; NaN with NaN; infinities exactly, save that a result at the edge of the type's range may be either. Denormal
    results may be flushed to zero.
    """
    if got.shape != expected.value.shape:
        return f"shape {got.shape}, expected {expected.value.shape}"
    if got.size == 0:
        return ""
    wrong = wrong_elements(got, expected, dtype, tolerance)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(wrong.sum())
    return f"{count} of {got.size} elements differ, first at {list(at)}: {got[at]}, expected {expected.value[at]}"


def wrong_elements(got: Array, expected: Expected, dtype: DType, tolerance: float) -> Array:
    """Returns for each element whether it disagrees, shaped like `got`; see `difference`."""
    if dtype.kind == "b":
        wrong = (np.frombuffer(got.tobytes(), np.uint8).reshape(got.shape) != 0) != expected.value.astype(np.bool_)
    elif dtype.is_integer:
        wrong = got.astype(object) != expected.value
    else:
        wrong = _far(got, expected, dtype, tolerance)
    return np.asarray(wrong, np.bool_)


def _far(got: Array, expected: Expected, dtype: DType, tolerance: float) -> Any:
    info = _finfo(dtype)
    largest, least = float(info.max), float(info.tiny)
    value = expected.value.astype(np.longdouble)
    given = got.astype(np.longdouble)
    with np.errstate(all="ignore"):
        scale = np.where(np.isfinite(expected.scale), expected.scale, 0)
        size = np.fmax(np.where(np.isfinite(value), np.abs(value), 0), scale)
        allowed = min(tolerance * epsilon(dtype), LARGEST) * size + least
        far = ~(np.abs(given - value) <= allowed)
        beyond = np.isinf(given) & (np.sign(given) == np.sign(value)) & (np.abs(value) + allowed >= largest)
        nan = np.isnan(given) & np.isnan(value)
        return far & ~beyond & ~nan & ~(given == value)
