"""Softmax, log-softmax, their gradients, and normalisation, over the inner extents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core.kernels import KernelRecord
from umd_sim.lowerings.layout import (
    NOTHING,
    Array,
    Call,
    Executable,
    Launch,
    coalesce,
    compute_type,
    filling,
    patchable_values,
    product,
)
from umd_sim.lowerings.short import is_short, reduce_rows
from umd_sim.scratch import Scratch

PIECE = 1 << 16
"""Elements that are worked on at a time."""
SHORT = 1024
"""Sums over at most this many elements are matrix-vector products."""


class Inner(NamedTuple):
    """The extents that a row runs over: their axes, their number of elements, and ones where sums are products."""

    axes: tuple[int, ...]
    length: int
    ones: Array | None

    def sum(self, x: Array) -> Array:
        """Returns the sum of each row, with extents of 1 in place of the row's."""
        if self.ones is not None:
            return np.asarray(np.matmul(x, self.ones))
        return np.asarray(np.add.reduce(x, axis=self.axes, keepdims=True))

    def max(self, x: Array, scratch: Scratch) -> Array:
        """Returns the largest element of each row, with extents of 1 in place of the row's."""
        rows = x.size // self.length
        if len(self.axes) == 1 and x.flags.c_contiguous and is_short(rows, self.length):
            largest = scratch.take(_LARGEST, (rows,), x.dtype)
            reduce_rows(np.maximum, x.reshape(rows, self.length), largest, scratch, _LARGEST + 1)
            return largest.reshape(*x.shape[:-1], 1)
        return np.asarray(np.maximum.reduce(x, axis=self.axes, keepdims=True))


Function = Callable[..., None]
"""function(inner, scratch, values, *operands): operands in the table's order, in the type that is computed in; `values`
are the patchable fields."""

_SPARE, _WIDE, _LARGEST = 0, 1, 8
"""Scratch slots: an array like the operands; the operands in another type; the maxima and what they take."""


def _spare(like: Array, scratch: Scratch) -> Array:
    return scratch.take(_SPARE, like.shape, like.dtype)


def _softmax(inner: Inner, scratch: Scratch, values: Sequence[float], x: Array, y: Array) -> None:
    np.subtract(x, inner.max(x, scratch), out=y)
    np.exp(y, out=y)
    np.multiply(y, np.reciprocal(inner.sum(y)), out=y)


def _log_softmax(inner: Inner, scratch: Scratch, values: Sequence[float], x: Array, y: Array) -> None:
    np.subtract(x, inner.max(x, scratch), out=y)
    spare = _spare(y, scratch)
    np.exp(y, out=spare)
    np.subtract(y, np.log(inner.sum(spare)), out=y)


def _softmax_grad(inner: Inner, scratch: Scratch, values: Sequence[float], dy: Array, y: Array, dx: Array) -> None:
    spare = _spare(y, scratch)
    np.multiply(dy, y, out=spare)
    np.subtract(dy, inner.sum(spare), out=spare)
    np.multiply(spare, y, out=dx)


def _log_softmax_grad(inner: Inner, scratch: Scratch, values: Sequence[float], dy: Array, y: Array, dx: Array) -> None:
    spare = _spare(y, scratch)
    np.exp(y, out=spare)
    np.multiply(spare, inner.sum(dy), out=spare)
    np.subtract(dy, spare, out=dx)


def _normalize(
    inner: Inner, scratch: Scratch, values: Sequence[float], x: Array, y: Array, mean: Array, rstd: Array
) -> None:
    middle = inner.sum(x)
    middle /= inner.length
    np.copyto(mean, middle.reshape(mean.shape), casting="unsafe")
    np.subtract(x, middle, out=y)
    spare = _spare(y, scratch)
    np.multiply(y, y, out=spare)
    scale = inner.sum(spare)
    scale /= inner.length
    scale += values[0]
    np.sqrt(scale, out=scale)
    np.reciprocal(scale, out=scale)
    np.copyto(rstd, scale.reshape(rstd.shape), casting="unsafe")
    np.multiply(y, scale, out=y)


_FUNCTIONS: dict[str, Function] = {
    "softmax_kernel": _softmax,
    "log_softmax_kernel": _log_softmax,
    "softmax_grad_kernel": _softmax_grad,
    "log_softmax_grad_kernel": _log_softmax_grad,
    "normalize_kernel": _normalize,
}


class _Plan(NamedTuple):
    """What is known of a launch.

    Attributes:
        compute: the type that is computed in.
        writes: for each operand that runs over whole rows, whether it is written.
        step: entries of the first axis that make up a piece, 0 when there is one row.
    """

    record: KernelRecord
    inner: Inner
    compute: np.dtype[Any]
    writes: tuple[bool, ...]
    step: int


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a kernel that works on rows."""
    launch = Launch(record, parameters)
    wholes = [o.name for o in record.row.operands if "inner" in o.box]
    sides = [o.name for o in record.row.operands if "inner" not in o.box]
    rank, shape = launch.size(0), launch.shape(wholes[0])
    strides = [launch.strides(name) for name in wholes]
    outer, outer_strides = coalesce(shape[:rank], *(s[:rank] for s in strides), *(launch.strides(n) for n in sides))
    inner, inner_strides = coalesce(shape[rank:], *(s[rank:] for s in strides))
    if not inner:
        inner, inner_strides = (1,), [(0,)] * len(wholes)
    side_views = [launch.view(n, outer, s) for n, s in zip(sides, outer_strides[len(wholes) :], strict=True)]
    if 0 in outer or (0 in inner and not sides):
        return NOTHING
    if 0 in inner:
        return Executable(tuple(side_views), filling(*[np.nan] * len(side_views)))
    views = [
        launch.view(n, outer + inner, o + i)
        for n, o, i in zip(wholes, outer_strides[: len(wholes)], inner_strides, strict=True)
    ]
    plan = _plan(record, outer, inner, len(wholes))
    return Executable((*views, *side_views), functools.partial(_bind, plan))


def _plan(record: KernelRecord, outer: tuple[int, ...], inner: tuple[int, ...], wholes: int) -> _Plan:
    compute = np.result_type(*(compute_type(dtype) for dtype in record.types))
    count, rank = product(inner), len(outer)
    ones = np.ones((count, 1), compute) if len(inner) == 1 and 1 < count <= SHORT and outer else None
    return _Plan(
        record,
        Inner(tuple(range(rank, rank + len(inner))), count, ones),
        compute,
        tuple(o.writes for o in record.row.operands[:wholes]),
        max(1, PIECE // product((*outer[1:], *inner))) if outer else 0,
    )


def _bind(plan: _Plan, parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    values = patchable_values(plan.record, parameters)
    if plan.step == 0 or arrays[0].shape[0] <= plan.step:
        return functools.partial(_run, plan, values, arrays, scratch)
    return functools.partial(_run_pieces, plan, values, arrays, scratch)


def _run_pieces(plan: _Plan, values: Sequence[float], arrays: Sequence[Array], scratch: Scratch) -> None:
    for start in range(0, arrays[0].shape[0], plan.step):
        _run(plan, values, [array[start : start + plan.step] for array in arrays], scratch)


def _run(plan: _Plan, values: Sequence[float], arrays: Sequence[Array], scratch: Scratch) -> None:
    function = _FUNCTIONS[plan.record.row.name]
    if arrays[0].dtype == plan.compute:
        function(plan.inner, scratch, values, *arrays)
        return
    wide = [scratch.take(_WIDE + at, arrays[0].shape, plan.compute) for at in range(len(plan.writes))]
    for array, number, written in zip(arrays, wide, plan.writes, strict=False):
        if not written:
            np.copyto(number, array)
    function(plan.inner, scratch, values, *wide, *arrays[len(wide) :])
    for array, number, written in zip(arrays, wide, plan.writes, strict=False):
        if written:
            np.copyto(array, number, casting="unsafe")
