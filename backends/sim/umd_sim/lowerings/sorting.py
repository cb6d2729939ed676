"""Sorting along one axis, and the first elements of the order.

Elements become integer keys in the same order. Keys of up to 32 bits are packed with their positions into int64
numbers, of which no two are equal: NumPy's fastest sort and its partition then respect the order of equal elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from umd_core.dtypes import DType, bfloat16
from umd_core.kernels import KernelRecord
from umd_sim.lowerings.layout import NOTHING, Array, Executable, Launch, coalesce, filling, running
from umd_sim.scratch import Scratch

PIECE = 1 << 18
"""Elements of short rows that are sorted at a time."""
LONG = 1 << 20
"""Longer rows of which only the beginning of the order is wanted are looked through in pieces."""
_POSITION = 32
_FEW = 8
"""Where at most one element in so many is wanted, the others are not sorted."""


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a sort."""
    launch = Launch(record, parameters)
    length, count = launch["length"], launch["count"]
    names = ("x", "values", "index")
    strides = [launch.strides(name) for name in names]
    outer, lead = coalesce(launch.shape("index")[:-1], *(s[:-1] for s in strides))
    if 0 in outer or not count:
        return NOTHING
    x, values, index = (
        launch.view(name, (*outer, extent), (*own, steps[-1]))
        for name, extent, own, steps in zip(names, (length, count, count), lead, strides, strict=True)
    )
    if not length:
        return Executable((values, index), filling(0, -1))
    return Executable((x, values, index), running(_sort, launch.dtype("x"), bool(launch["descending"])))


def _sort(dtype: DType, descending: bool, x: Array, values: Array, index: Array, scratch: Scratch) -> None:
    held = min(x.shape[-1], index.shape[-1])
    for block in _blocks(x.shape[:-1], x.shape[-1]):
        part = x[block]
        order = _order(dtype, descending, part, held, scratch)
        index[(*block, ..., slice(held))] = order
        values[(*block, ..., slice(held))] = np.take_along_axis(part, order, -1)
    index[..., held:] = -1
    values[..., held:] = 0


def _blocks(outer: Sequence[int], length: int) -> Iterator[tuple[Any, ...]]:
    """Yields indices of the outer axes that cut rows into blocks of about `PIECE` elements."""
    axis, inner = len(outer), length
    while axis and inner * outer[axis - 1] <= PIECE:
        axis -= 1
        inner *= outer[axis]
    if not axis:
        yield ()
        return
    step = max(1, PIECE // inner)
    for lead in np.ndindex(*outer[: axis - 1]):
        for start in range(0, outer[axis - 1], step):
            yield (*lead, slice(start, start + step))


def _order(dtype: DType, descending: bool, x: Array, count: int, scratch: Scratch) -> Array:
    """Returns the positions of the first `count` elements of each row in order."""
    length = x.shape[-1]
    step = max(LONG, 4 * count)
    if length <= step:
        return _first(_keys(dtype, descending, x), count, scratch)
    keys = positions = None
    for start in range(0, length, step):
        more = _keys(dtype, descending, x[..., start : start + step])
        places = np.broadcast_to(np.arange(start, start + more.shape[-1]), more.shape)
        if keys is not None and positions is not None:
            more, places = np.concatenate([keys, more], -1), np.concatenate([positions, places], -1)
        kept = _first(more, min(count, more.shape[-1]), scratch)
        keys, positions = np.take_along_axis(more, kept, -1), np.take_along_axis(places, kept, -1)
    return np.asarray(positions)


def _first(keys: Array, count: int, scratch: Scratch) -> Array:
    """Returns the positions of the `count` smallest keys of each row in order, equal ones as they come."""
    if keys.dtype.itemsize == 8:
        return np.argsort(keys, axis=-1, kind="stable")[..., :count]
    pairs = scratch.take(0, keys.shape, np.dtype(np.int64))
    np.copyto(pairs, keys)
    if keys.dtype == np.uint32:
        np.subtract(pairs, 1 << 31, out=pairs)
    np.left_shift(pairs, _POSITION, out=pairs)
    np.add(pairs, np.arange(keys.shape[-1]), out=pairs)
    if count * _FEW <= keys.shape[-1]:
        pairs.partition(count - 1, axis=-1)
        pairs = pairs[..., :count]
    pairs.sort(axis=-1)
    return np.asarray(np.bitwise_and(pairs[..., :count], (1 << _POSITION) - 1))


def _keys(dtype: DType, descending: bool, x: Array) -> Array:
    """Returns integers in the order of the elements, the other way round if descending."""
    if dtype.kind == "b":
        x = np.not_equal(x, 0).view(np.int8)
    elif dtype.is_float:
        x = _float_keys(dtype, x)
    return np.invert(x) if descending else x


_INFINITE = {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}
_BFLOAT16_INFINITE = 0x7F80
"""The bits of infinity, by size in bytes: more, the sign aside, is NaN."""


def _float_keys(dtype: DType, x: Array) -> Array:
    """Returns integers in the order of floats: both zeros are 0, every NaN is the largest integer."""
    bits = np.ascontiguousarray(x).view(f"i{dtype.size}")
    largest = np.iinfo(bits.dtype).max
    size = np.bitwise_and(bits, largest)
    infinite = _BFLOAT16_INFINITE if dtype is bfloat16 else _INFINITE[dtype.size]
    keys: Array = np.where(bits < 0, np.negative(size), size)
    np.copyto(keys, largest, where=size > infinite)
    return keys
