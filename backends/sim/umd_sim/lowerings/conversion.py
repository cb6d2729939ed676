"""The cast kernel: float to integer truncates and saturates, NaN becomes 0; anything to bool is `!= 0`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord
from umd_sim.lowerings.expression import blocks, step_of
from umd_sim.lowerings.layout import (
    FLOAT32,
    HALVES,
    NOTHING,
    Array,
    Call,
    Executable,
    Launch,
    coalesce,
    narrowed,
)
from umd_sim.lowerings.primitives import Function
from umd_sim.lowerings.programs import convert, copy
from umd_sim.scratch import Scratch


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a cast."""
    launch = Launch(record, parameters)
    shape, (x_strides, out_strides) = coalesce(launch.shape("x"), launch.strides("x"), launch.strides("out"))
    if 0 in shape:
        return NOTHING
    source, target = record.types
    views = (launch.view("x", *narrowed(shape, x_strides)), launch.view("out", shape, out_strides))
    return Executable(views, functools.partial(_bind, _function(source, target), step_of(shape)))


def _function(source: DType, target: DType) -> Function:
    if target.kind == "b":
        return _half_truth if source in HALVES else _truth
    if source.kind == "b":
        return _number
    if source.is_float and target.is_integer:
        return functools.partial(_saturate, *_limits(source, target))
    return copy if source is target else convert


def _bind(function: Function, step: int, parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    if function in (_truth, convert, copy) or arrays[-1].ndim == 0:
        return functools.partial(function, *arrays[:-1], out=arrays[-1])
    return functools.partial(_run_blocks, function, step, arrays)


def _run_blocks(function: Function, step: int, arrays: Sequence[Array]) -> None:
    for x, out in blocks(arrays, step):
        function(x, out=out)


def _truth(x: Array, out: Array) -> None:
    np.not_equal(x, 0, out=out)


def _half_truth(x: Array, out: Array) -> None:
    """Writes whether the bits other than the sign's are not all zero."""
    np.not_equal(np.left_shift(x.view(np.uint16), 1), 0, out=out)


def _number(x: Array, out: Array) -> None:
    np.copyto(out, np.not_equal(x, 0), casting="unsafe")


def _limits(source: DType, target: DType) -> tuple[Any, Any, Any, Any]:
    """Returns bounds of the integers as floats: lowest, largest below the end, the end; and the largest integer."""
    integers = np.iinfo(target.numpy)
    number = (FLOAT32 if source in HALVES else source.numpy).type
    end = number(float(integers.max) + 1.0 if target.size < 8 else 2.0 ** (64 if target.kind == "u" else 63))
    return number(integers.min), np.nextafter(end, number(0)), end, integers.max


def _saturate(lowest: Any, highest: Any, end: Any, largest: int, x: Array, out: Array) -> None:
    """Writes x truncated. `highest` truncates to less than `largest` where the float has fewer digits than it."""
    values = np.asarray(x, lowest.dtype)
    bounded = np.asarray(np.clip(values, lowest, highest))
    np.copyto(bounded, 0, where=np.isnan(bounded))
    np.copyto(out, bounded, casting="unsafe")
    if int(highest) != largest:
        np.copyto(out, largest, where=values >= end)
