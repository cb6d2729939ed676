"""Gather, scatter and iota. An index out of range is found before anything is read or written through it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from umd_core.errors import IndexRangeError
from umd_core.kernels import KernelRecord
from umd_sim.lowerings.layout import (
    FLOAT32,
    HALVES,
    NOTHING,
    Array,
    Executable,
    Launch,
    View,
    coalesce,
    compute_type,
    narrowed,
    running,
)
from umd_sim.scratch import Scratch

_INT64 = np.dtype(np.int64)
_PIECE = 1 << 14


class Indexed(NamedTuple):
    """The boxes of a gather or scatter over coalesced extents.

    Attributes:
        extents: without the axis.
        axis: extent of the axis that is indexed.
        step: elements from one entry of the axis to the next.
        low: elements from the first byte touched to element (0, …, 0).
        steps: elements along each extent.
    """

    kernel: str
    extents: tuple[int, ...]
    axis: int
    step: int
    low: int
    steps: tuple[int, ...]


def _boxes(launch: Launch, indexed: str, plain: str) -> tuple[Indexed, list[View]]:
    """Returns the indexed operand's geometry, and views: all that it may touch (flat), the index, the plain operand."""
    axis = launch["axis"]
    strides = launch.strides(indexed)
    extents, steps = coalesce(launch.shape(plain), strides[:-1], launch.strides("index"), launch.strides(plain))
    size = launch.dtype(indexed).size
    reach = [(e - 1) * s for e, s in zip((*extents, axis), (*steps[0], strides[-1]), strict=True)]
    low = -sum(r for r in reach if r < 0)
    high = sum(r for r in reach if r > 0)
    count = (low + high) // size + 1
    flat = launch.view(indexed, (count,), (size,))
    flat = flat._replace(offset=flat.offset - low)
    along = tuple(step // size for step in steps[0])
    geometry = Indexed(launch.record.row.name, extents, axis, strides[-1] // size, low // size, along)
    index = launch.view("index", *narrowed(extents, steps[1]))
    return geometry, [flat, index, launch.view(plain, extents, steps[2])]


def checked(index: Array, geometry: Indexed) -> Array:
    """Returns the index as int64, in [0, axis).

    Raises:
        IndexRangeError: the first index, in row-major order, that is outside [-axis, axis).
    """
    axis = geometry.axis
    unsigned = index.view(f"u{index.itemsize}")
    if unsigned.max() < axis:
        return index.astype(_INT64, copy=False)
    wide = index.astype(_INT64)
    wrong = (wide < -axis) | (wide >= axis)
    if wrong.any():
        raise IndexRangeError(geometry.kernel, -1, int(wide[wrong][0]), axis)
    return np.asarray(np.where(wide < 0, wide + axis, wide))


def _positions(index: Array, geometry: Indexed, scratch: Scratch) -> Array:
    """Returns the flat position of every element, int64; extents over which it stays the same are 1."""
    rank = len(geometry.extents)
    spread = index.shape or (1,) * rank
    shape = [e if step or i != 1 else 1 for e, step, i in zip(geometry.extents, geometry.steps, spread, strict=True)]
    positions = scratch.take(0, shape, _INT64)
    low, source = geometry.low, index
    if geometry.step != 1:
        source = np.multiply(index, geometry.step, out=positions)
    for axis, step in enumerate(geometry.steps):
        if step:
            along = np.arange(geometry.extents[axis], dtype=_INT64) * step + low
            source = np.add(source, along.reshape([-1 if a == axis else 1 for a in range(rank)]), out=positions)
            low = 0
    if low or source is not positions:
        np.add(source, low, out=positions)
    return positions


def lower_gather(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a gather."""
    launch = Launch(record, parameters)
    if 0 in launch["extents"]:
        return NOTHING
    if launch["axis"] == 0:
        return _out_of_range(launch)
    geometry, (flat, index, out) = _boxes(launch, "data", "out")
    raw = np.dtype(f"u{out.dtype.itemsize}")
    flat, out = flat._replace(dtype=raw), out._replace(dtype=raw)
    split = _picks_rows(geometry, index)
    if split is None:
        along = _picks_along(geometry, index)
        if along is None:
            return Executable((flat, index, out), running(_gather, geometry))
        shape, steps = list(geometry.extents), list(geometry.steps)
        shape[along], steps[along] = geometry.axis, geometry.step
        table = flat._replace(
            shape=tuple(shape),
            strides=tuple(s * raw.itemsize for s in steps),
            offset=flat.offset + geometry.low * raw.itemsize,
        )
        index = index._replace(shape=index.shape[along : along + 1], strides=index.strides[along : along + 1])
        return Executable((table, index, out), running(_take_along, geometry, along))
    row = geometry.extents[split:]
    strides = (geometry.step * raw.itemsize, raw.itemsize)[: 1 + len(row)]
    table = flat._replace(shape=(geometry.axis, *row), strides=strides)
    index = index._replace(shape=index.shape[:split], strides=index.strides[:split])
    return Executable((table, index, out), running(_take_rows, geometry))


def _picks_rows(geometry: Indexed, index: View) -> int | None:
    """Returns how many leading extents pick a row each from a contiguous table, None when it is not like that."""
    rank = len(geometry.extents)
    strides = index.strides or (0,) * rank
    split = next((axis for axis, step in enumerate(strides) if step == 0), rank)
    if any(strides[split:]) or any(geometry.steps[:split]) or split < rank - 1:
        return None
    row = geometry.extents[split:]
    if geometry.steps[split:] != (1,) * len(row) or geometry.step != (row[0] if row else 1):
        return None
    return split


def _picks_along(geometry: Indexed, index: View) -> int | None:
    """Returns the extent along which the index alone varies, in place of the axis; None when it is not like that."""
    moving = [axis for axis, stride in enumerate(index.strides) if stride]
    if len(moving) != 1 or geometry.steps[moving[0]]:
        return None
    return moving[0]


def _take_along(geometry: Indexed, axis: int, table: Array, index: Array, out: Array, scratch: Scratch) -> None:
    np.take(table, checked(index, geometry), axis=axis, out=out, mode="wrap")


def _take_rows(geometry: Indexed, table: Array, index: Array, out: Array, scratch: Scratch) -> None:
    # mode "wrap" writes straight into `out`; every index has been checked
    np.take(table, checked(index, geometry), axis=0, out=out, mode="wrap")


def _gather(geometry: Indexed, flat: Array, index: Array, out: Array, scratch: Scratch) -> None:
    positions = _positions(checked(index, geometry), geometry, scratch)
    if positions.shape == out.shape:
        np.take(flat, positions, out=out, mode="wrap")
    else:
        np.copyto(out, flat[positions])


def _out_of_range(launch: Launch) -> Executable:
    """Returns the executable of a launch whose axis is empty: any index is out of range."""
    extents, (steps,) = coalesce(launch.shape("index"), launch.strides("index"))
    index = launch.view("index", *narrowed(extents, steps))
    geometry = Indexed(launch.record.row.name, extents, 0, 0, 0, ())
    return Executable((index,), running(_check, geometry))


def _check(geometry: Indexed, index: Array, scratch: Scratch) -> None:
    checked(index, geometry)


def lower_scatter(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a scatter."""
    launch = Launch(record, parameters)
    if 0 in launch["extents"]:
        return NOTHING
    if launch["axis"] == 0:
        return _out_of_range(launch)
    geometry, views = _boxes(launch, "out", "updates")
    if record.row.program == "set":
        raw = np.dtype(f"u{launch.dtype('out').size}")
        views = [view if i == 1 else view._replace(dtype=raw) for i, view in enumerate(views)]
        return Executable(tuple(views), running(_scatter, geometry))
    combined = _combined_halves if launch.dtype("out") in HALVES else _combined
    return Executable(tuple(views), running(combined, _COMBINE[record.row.program], geometry))


def _scatter(geometry: Indexed, flat: Array, index: Array, updates: Array, scratch: Scratch) -> None:
    positions = _positions(checked(index, geometry), geometry, scratch)
    flat[_flattened(positions, updates.shape)] = updates.reshape(-1)


def _flattened(positions: Array, shape: tuple[int, ...]) -> Array:
    if positions.shape != shape:
        positions = np.broadcast_to(positions, shape)
    return positions.reshape(-1)


_COMBINE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
"""By program: what an update and the element that it reaches become."""


def _combined(
    combine: np.ufunc, geometry: Indexed, flat: Array, index: Array, updates: Array, scratch: Scratch
) -> None:
    positions = _positions(checked(index, geometry), geometry, scratch)
    combine.at(flat, _flattened(positions, updates.shape), updates.reshape(-1))


def _combined_halves(
    combine: np.ufunc, geometry: Indexed, flat: Array, index: Array, updates: Array, scratch: Scratch
) -> None:
    """Combines in float32 and rounds each element that an update reached once."""
    positions = _flattened(_positions(checked(index, geometry), geometry, scratch), updates.shape)
    reached, ranks = np.unique(positions, return_inverse=True)
    wide = flat[reached].astype(FLOAT32)
    combine.at(wide, ranks, updates.reshape(-1).astype(FLOAT32))
    flat[reached] = wide.astype(flat.dtype)


def lower_iota(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of an iota."""
    launch = Launch(record, parameters)
    count = launch["count"]
    if count == 0:
        return NOTHING
    dtype = launch.dtype("out")
    # Positions beyond 2^24 are not float32 numbers, so wider floats are computed in float64.
    number = compute_type(dtype) if dtype in HALVES or dtype.is_integer else np.dtype(np.float64)
    return Executable(
        (launch.view("start"), launch.view("step"), launch.view("out")),
        running(_iota, count, number),
    )


def _iota(count: int, number: np.dtype[Any], start: Array, step: Array, out: Array, scratch: Scratch) -> None:
    first, by = start.astype(number), step.astype(number)
    for at in range(0, count, _PIECE):
        end = min(at + _PIECE, count)
        values = np.arange(at, end, dtype=_INT64).astype(number)
        values *= by
        values += first
        np.copyto(out[at:end], values, casting="unsafe")
