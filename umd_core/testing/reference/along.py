"""Scans and sorting, as their `mathematics` say: one row, one element after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from umd_core.dtypes import DType
from umd_core.ir import Array
from umd_core.kernels import KernelRecord
from umd_core.testing.reference.wide import bounds, wrap

Parameters = Mapping[str, Any]
Operands = Mapping[str, Array]
Results = dict[str, tuple[Any, Any]]

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": lambda a, b: a if a != a or a > b else b,
    "min": lambda a, b: a if a != a or a < b else b,
}


def _nothing(program: str, dtype: DType) -> Any:
    """Returns what a scan gives over nothing."""
    if program in ("add", "mul"):
        return 0 if program == "add" else 1
    return bounds(dtype)[0 if program == "max" else 1]


def scan(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns every running result; the scale of a sum is the sum of the absolute values."""
    x, dtype, program = operands["x"], record.types[0], record.row.program
    value, scale = np.empty_like(x), np.zeros(x.shape, np.float64)
    places = range(x.shape[-1])
    for o in np.ndindex(x.shape[:-1]):
        total, size = _nothing(program, dtype), 0.0
        for i in reversed(places) if parameters["reverse"] else places:
            before = total, size
            total = _COMBINE[program](total, x[(*o, i)])
            if dtype.is_float and program == "add":
                size += float(abs(x[(*o, i)])) if np.isfinite(x[(*o, i)]) else 0.0
            value[(*o, i)], scale[(*o, i)] = before if parameters["exclusive"] else (total, size)
    return {"out": (value if dtype.is_float else wrap(value, dtype), scale)}


def sort(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns the first elements of each row in order, and their positions."""
    x, shape = operands["x"], operands["index"].shape
    values, index = np.zeros(shape, x.dtype), np.full(shape, -1, object)
    rank = functools.cmp_to_key(_compare_descending if parameters["descending"] else _compare)
    for o in np.ndindex(shape[:-1]):
        row = list(x[o])
        for j, k in enumerate(sorted(range(len(row)), key=[rank(v) for v in row].__getitem__)[: shape[-1]]):
            values[(*o, j)], index[(*o, j)] = row[k], k
    return {"values": (values, 0.0), "index": (index, 0.0)}


def _compare(a: Any, b: Any) -> int:
    """Returns 1 where a comes after b, -1 where before, else 0: NaN is greater than every number."""
    if a != a or b != b:
        return int(a != a) - int(b != b)
    return int(a > b) - int(a < b)


def _compare_descending(a: Any, b: Any) -> int:
    return _compare(b, a)
