"""Rule 7: what one launch may touch, and whether that is allowed.

Every function here accepts a flat parameter block of Python integers (one launch) or of int64 arrays (many launches of
one record, one entry each). Python integers never overflow; arrays are screened in float64 first, so that exact int64
arithmetic afterwards cannot wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from umd_core.kernels.row import Box, KernelRecord

LARGEST = 2**62
"""Offsets, spans, window positions and work stay below this."""


def touched(box: Box, flat: Sequence[int]) -> tuple[int, int]:
    """Returns the bytes [low, high) of the binding that the operand's box lies in; (0, 0) when it is empty."""
    low = high = flat[box.offset]
    for extent, stride in box.axes:
        reach = flat[extent] - 1
        if reach < 0:
            return (0, 0)
        reach *= flat[stride]
        if reach < 0:
            low += reach
        else:
            high += reach
    size = box.dtype.size
    return (low * size, (high + 1) * size)


def touched_arrays(box: Box, columns: Sequence[Any]) -> tuple[Any, Any]:
    """Returns `touched` for many launches: two int64 arrays."""
    low = columns[box.offset].copy()
    high = low.copy()
    empty = np.zeros(low.shape, np.bool_)
    for extent, stride in box.axes:
        empty |= columns[extent] == 0
        reach = (columns[extent] - 1) * columns[stride]
        low += np.minimum(reach, 0)
        high += np.maximum(reach, 0)
    size = box.dtype.size
    return np.where(empty, 0, low * size), np.where(empty, 0, (high + 1) * size)


def work(record: KernelRecord, flat: Sequence[int]) -> int:
    """Returns the bound on the element operations of one launch."""
    total = 0
    for group in record.work:
        product = 1
        for extent in group:
            product *= flat[extent]
        total += product
    return total


def is_injective(box: Box, flat: Sequence[int]) -> bool:
    """Returns whether no two index tuples of the box meet in one element.

    Sufficient, not necessary: sorted by size, each stride must step over all that the smaller ones span.
    """
    axes = [(abs(flat[stride]), flat[extent]) for extent, stride in box.axes if flat[extent] != 1]
    if len(axes) > 1:
        axes.sort()
    span = 0
    for stride, extent in axes:
        if extent == 0:
            return True
        if stride <= span:
            return any(e == 0 for _, e in axes)
        span += stride * (extent - 1)
    return True


def injective_arrays(box: Box, columns: Sequence[Any]) -> Any:
    """Returns `is_injective` for many launches: a bool array."""
    count = columns[box.offset].shape[0]
    if not box.axes:
        return np.ones(count, np.bool_)
    extents = np.stack([columns[extent] for extent, _ in box.axes])
    strides = np.abs(np.stack([columns[stride] for _, stride in box.axes]))
    single = extents == 1
    order = np.argsort(np.where(single, np.iinfo(np.int64).max, strides), axis=0, kind="stable")
    extents, strides = np.take_along_axis(extents, order, 0), np.take_along_axis(strides, order, 0)
    steps = np.where(extents == 1, 0, strides * (extents - 1))
    before = np.cumsum(steps, axis=0) - steps
    return ((extents == 1) | (strides > before)).all(axis=0) | (extents == 0).any(axis=0)


def same_elements(a: Box, b: Box, flat: Sequence[Any]) -> Any:
    """Returns whether two operands of one launch address exactly the same elements, index by index."""
    if a.dtype is not b.dtype or len(a.axes) != len(b.axes):
        return False
    same = flat[a.offset] == flat[b.offset]
    for (extent_a, stride_a), (extent_b, stride_b) in zip(a.axes, b.axes, strict=True):
        if extent_a != extent_b:
            return False
        same = same & ((flat[stride_a] == flat[stride_b]) | (flat[extent_a] <= 1))
    return same


def magnitude(record: KernelRecord, columns: Sequence[Any]) -> Any:
    """Returns a float64 bound on every number that the functions above and the kernels' index arithmetic form.

    `columns` are Python numbers or float64 arrays. Compare with `LARGEST` before anything else.
    """
    bound: Any = 0.0
    for box in record.boxes:
        reach: Any = abs(float(columns[box.offset]) if isinstance(columns[box.offset], int) else columns[box.offset])
        for extent, stride in box.axes:
            reach = reach + 1.0 * columns[extent] * abs(columns[stride])
        bound = _larger(bound, (reach + 1.0) * box.dtype.size)
        elements: Any = 1.0
        for extent, _ in box.axes:
            elements = elements * _larger(1.0 * columns[extent], 1.0)
        bound = _larger(bound, elements)
    total: Any = 0.0
    for group in record.work:
        product: Any = 1.0
        for extent in group:
            product = product * _larger(1.0 * columns[extent], 1.0)
        total = total + product
    bound = _larger(bound, total)
    for position in record.windows(columns):
        bound = _larger(bound, position)
    return bound


def _larger(a: Any, b: Any) -> Any:
    return max(a, b) if isinstance(a, (int, float)) and isinstance(b, (int, float)) else np.maximum(a, b)
