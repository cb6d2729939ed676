"""Reductions and arg-reductions over the inner extents."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord
from umd_sim.lowerings.layout import (
    NOTHING,
    Array,
    Bind,
    Call,
    Executable,
    Launch,
    View,
    coalesce,
    compute_type,
    filling,
    product,
    running,
)
from umd_sim.lowerings.programs import convert
from umd_sim.lowerings.short import is_short, reduce_rows
from umd_sim.scratch import Scratch

LONG = 4096
"""Float32 sums of more terms than this, one after the other, are accumulated in float64."""
SHORT = 1024
"""Rows of at most this many elements are summed by a matrix-vector product."""
MANY = 256

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add, "mean": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


class Rows(NamedTuple):
    """An operand's box with the outer and the inner extents each coalesced."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    strides: tuple[int, ...]


def rows_of(launch: Launch, name: str, *beside: str) -> tuple[Rows, list[tuple[int, ...]]]:
    """Returns an operand's rows, and the strides over the outer extents of operands that lie beside them."""
    rank = launch.size(0)
    shape, strides = launch.shape(name), launch.strides(name)
    outer, (x_outer, *others) = coalesce(shape[:rank], strides[:rank], *(launch.strides(o) for o in beside))
    inner, (x_inner,) = coalesce(shape[rank:], strides[rank:])
    return Rows(outer, inner, x_outer + x_inner), others


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a reduction."""
    launch = Launch(record, parameters)
    rows, (out_strides,) = rows_of(launch, "x", "out")
    if 0 in rows.outer:
        return NOTHING
    out = launch.view("out", rows.outer, out_strides)
    program, dtype = record.row.program, launch.dtype("x")
    if 0 in rows.inner:
        return Executable((out,), filling(identity(program, dtype)))
    x = launch.view("x", rows.outer + rows.inner, rows.strides)
    if not rows.inner:
        return Executable((x, out), _bind_convert)
    return Executable((x, out), functools.partial(_bind, _plan(program, dtype, rows)))


def identity(program: str, dtype: DType) -> Any:
    """Returns the result over no elements."""
    if program in ("max", "min"):
        least = program == "max"
        if dtype.is_float:
            return -np.inf if least else np.inf
        limits = np.iinfo(dtype.numpy)
        return limits.min if least else limits.max
    return {"add": 0, "mul": 1, "mean": np.nan}[program]


def _bind_convert(parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    return functools.partial(convert, *arrays)


class _Plan(NamedTuple):
    """How to reduce: all axes but the fastest first, since short rows are slow, then that one.

    Attributes:
        first, last: axes of the two stages; `first` is empty when one stage does.
        dtype: what is accumulated.
        product: whether the one stage is a matrix-vector product with ones.
        short: whether it is over short rows.
        divisor: what the sum is divided by, 0 for no division.
    """

    ufunc: np.ufunc
    first: tuple[int, ...]
    last: tuple[int, ...]
    dtype: np.dtype[Any]
    product: bool
    short: bool
    divisor: int


def _plan(program: str, dtype: DType, rows: Rows) -> _Plan:
    rank = len(rows.outer)
    inner = tuple(range(rank, rank + len(rows.inner)))
    fastest = min(range(len(rows.strides)), key=lambda axis: abs(rows.strides[axis]))
    first = tuple(axis for axis in inner if axis != fastest) if fastest in inner else ()
    last = (len(rows.strides) - len(first) - 1,) if first else inner
    accumulated = compute_type(dtype)
    extents = rows.outer + rows.inner
    in_order = product([extents[axis] for axis in (first if fastest in inner else inner)])
    adds = program in ("add", "mean", "mul")
    if adds and accumulated == np.float32 and in_order > LONG:
        accumulated = np.dtype(np.float64)
    lone = len(rows.outer) == 1 and len(rows.inner) == 1 and accumulated == dtype.numpy
    table = lone and rows.strides == (dtype.size * extents[1], dtype.size)
    floats = program in ("add", "mean") and dtype.is_float
    by_product = table and floats and extents[0] >= MANY and extents[1] <= SHORT
    short = table and not by_product and is_short(*extents)
    divisor = product(rows.inner) if program == "mean" else 0
    return _Plan(_UFUNCS[program], first, last, accumulated, by_product, short, divisor)


def _bind(plan: _Plan, parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    x, out = arrays
    if plan.product:
        ones = np.full(x.shape[-1], 1.0, x.dtype)
        call = functools.partial(np.matmul, x, ones, out=out)
        return call if not plan.divisor else functools.partial(_divided, call, plan.divisor, out)
    if plan.short:
        call = functools.partial(reduce_rows, plan.ufunc, x, out, scratch, 0)
        return call if not plan.divisor else functools.partial(_divided, call, plan.divisor, out)
    if not plan.first and not plan.divisor and plan.dtype == out.dtype:
        return functools.partial(plan.ufunc.reduce, x, axis=plan.last, dtype=plan.dtype, out=out)
    return functools.partial(_run, plan, x, out, scratch)


def _divided(call: Call, divisor: int, out: Array) -> None:
    call()
    np.divide(out, divisor, out=out)


def _run(plan: _Plan, x: Array, out: Array, scratch: Scratch) -> None:
    if plan.first:
        shape = [extent for axis, extent in enumerate(x.shape) if axis not in plan.first]
        partial = scratch.take(0, shape, plan.dtype)
        plan.ufunc.reduce(x, axis=plan.first, dtype=plan.dtype, out=partial)
        x = partial
    result = out if out.dtype == plan.dtype else scratch.take(1, out.shape, plan.dtype)
    plan.ufunc.reduce(x, axis=plan.last, dtype=plan.dtype, out=result)
    if plan.divisor:
        np.divide(result, plan.divisor, out=result)
    if result is not out:
        np.copyto(out, result, casting="unsafe")


# Elements of a row that lies in several pieces are gathered into one before NumPy searches it.
_GATHERED = 1 << 20


def lower_arg(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of an arg-reduction."""
    launch = Launch(record, parameters)
    rows, (out_strides,) = rows_of(launch, "x", "out")
    if 0 in rows.outer:
        return NOTHING
    out = launch.view("out", rows.outer, out_strides)
    if 0 in rows.inner:
        return Executable((out,), filling(0))
    x = launch.view("x", rows.outer + rows.inner, rows.strides)
    search = np.argmax if record.row.program == "max" else np.argmin
    last = bool(launch["select_last"])
    return Executable((x, out), _bind_arg(search, last, x, len(rows.outer)))


def _bind_arg(search: Any, last: bool, x: View, rank: int) -> Bind:
    if len(x.shape) == rank + 1:
        return running(_search, search, last)
    return running(_search_pieces, search, last, rank)


def _search(search: Any, last: bool, x: Array, out: Array, scratch: Scratch) -> None:
    if not last:
        search(x, axis=-1, out=out)
        return
    search(x[..., ::-1], axis=-1, out=out)
    np.subtract(x.shape[-1] - 1, out, out=out)


def _search_pieces(search: Any, last: bool, rank: int, x: Array, out: Array, scratch: Scratch) -> None:
    if rank == 0:
        x, out, rank = x[np.newaxis], out[np.newaxis], 1
    step = max(1, _GATHERED // product(x.shape[1:]))
    for start in range(0, x.shape[0], step):
        piece = x[start : start + step]
        gathered = scratch.take(0, piece.shape, x.dtype)
        np.copyto(gathered, piece)
        _search(search, last, gathered.reshape(*piece.shape[:rank], -1), out[start : start + step], scratch)
