"""Softmax, log-softmax, their gradients, and normalisation, over the inner extents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
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
    in_turn,
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

    def each(self, x: Array, slot: int, scratch: Scratch) -> Array:
        """Returns scratch for a number of each row, with extents of 1 in place of the row's."""
        shape = [1 if axis in self.axes else extent for axis, extent in enumerate(x.shape)]
        return scratch.take(slot, shape, x.dtype)

    def sums(self, x: Array, out: Array) -> Call:
        """Returns the call that writes the sum of each row."""
        if self.ones is not None:
            return functools.partial(np.matmul, x, self.ones, out)
        return functools.partial(np.add.reduce, x, axis=self.axes, out=out, keepdims=True)

    def maxima(self, x: Array, out: Array, scratch: Scratch) -> Call:
        """Returns the call that writes the largest element of each row."""
        rows = x.size // self.length
        if len(self.axes) == 1 and x.flags.c_contiguous and is_short(rows, self.length):
            table = x.reshape(rows, self.length)
            return functools.partial(reduce_rows, np.maximum, table, out.reshape(rows), scratch, _HALVES)
        return functools.partial(np.maximum.reduce, x, axis=self.axes, out=out, keepdims=True)


Function = Callable[..., Iterator[Call]]
"""function(inner, scratch, values, *operands): operands in the table's order, in the type that is computed in; `values`
are the patchable fields. It yields the calls that do the work."""

_SPARE, _WIDE, _FIRST, _SECOND, _HALVES = 0, 1, 6, 7, 8
"""Scratch slots: an array like the operands; the operands in another type; a number of each row, and another; what
maxima of short rows take."""


def _spare(like: Array, scratch: Scratch) -> Array:
    return scratch.take(_SPARE, like.shape, like.dtype)


def _softmax(inner: Inner, scratch: Scratch, values: Sequence[float], x: Array, y: Array) -> Iterator[Call]:
    number = inner.each(x, _FIRST, scratch)
    yield inner.maxima(x, number, scratch)
    yield functools.partial(np.subtract, x, number, y)
    yield functools.partial(np.exp, y, y)
    yield inner.sums(y, number)
    yield functools.partial(np.reciprocal, number, number)
    yield functools.partial(np.multiply, y, number, y)


def _log_softmax(inner: Inner, scratch: Scratch, values: Sequence[float], x: Array, y: Array) -> Iterator[Call]:
    number, spare = inner.each(x, _FIRST, scratch), _spare(y, scratch)
    yield inner.maxima(x, number, scratch)
    yield functools.partial(np.subtract, x, number, y)
    yield functools.partial(np.exp, y, spare)
    yield inner.sums(spare, number)
    yield functools.partial(np.log, number, number)
    yield functools.partial(np.subtract, y, number, y)


def _softmax_grad(
    inner: Inner, scratch: Scratch, values: Sequence[float], dy: Array, y: Array, dx: Array
) -> Iterator[Call]:
    number, spare = inner.each(y, _FIRST, scratch), _spare(y, scratch)
    yield functools.partial(np.multiply, dy, y, spare)
    yield inner.sums(spare, number)
    yield functools.partial(np.subtract, dy, number, spare)
    yield functools.partial(np.multiply, spare, y, dx)


def _log_softmax_grad(
    inner: Inner, scratch: Scratch, values: Sequence[float], dy: Array, y: Array, dx: Array
) -> Iterator[Call]:
    number, spare = inner.each(y, _FIRST, scratch), _spare(y, scratch)
    yield functools.partial(np.exp, y, spare)
    yield inner.sums(dy, number)
    yield functools.partial(np.multiply, spare, number, spare)
    yield functools.partial(np.subtract, dy, spare, dx)


def _normalize(
    inner: Inner, scratch: Scratch, values: Sequence[float], x: Array, y: Array, mean: Array, rstd: Array
) -> Iterator[Call]:
    middle, scale = (inner.each(x, slot, scratch) for slot in (_FIRST, _SECOND))
    spare = _spare(y, scratch)
    yield inner.sums(x, middle)
    yield functools.partial(np.divide, middle, inner.length, middle)
    yield functools.partial(np.copyto, mean, middle.reshape(mean.shape), casting="unsafe")
    yield functools.partial(np.subtract, x, middle, y)
    yield functools.partial(np.multiply, y, y, spare)
    yield inner.sums(spare, scale)
    yield functools.partial(np.divide, scale, inner.length, scale)
    yield functools.partial(np.add, scale, values[0], scale)
    yield functools.partial(np.sqrt, scale, scale)
    yield functools.partial(np.reciprocal, scale, scale)
    yield functools.partial(np.copyto, rstd, scale.reshape(rstd.shape), casting="unsafe")
    yield functools.partial(np.multiply, y, scale, y)


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
    if arrays[0].size <= PIECE:
        return in_turn(list(_calls(plan, values, arrays, scratch)))
    return functools.partial(_run, plan, values, arrays, scratch)


def _run(plan: _Plan, values: Sequence[float], arrays: Sequence[Array], scratch: Scratch) -> None:
    for piece in _pieces(plan, arrays):
        for call in _calls(plan, values, piece, scratch):
            call()


def _pieces(plan: _Plan, arrays: Sequence[Array]) -> Iterator[Sequence[Array]]:
    if plan.step == 0:
        yield arrays
        return
    for start in range(0, arrays[0].shape[0], plan.step):
        yield [array[start : start + plan.step] for array in arrays]


def _calls(plan: _Plan, values: Sequence[float], arrays: Sequence[Array], scratch: Scratch) -> Iterator[Call]:
    """Yields the calls that do the work on a piece; what they take from scratch is the same for every piece."""
    function = _FUNCTIONS[plan.record.row.name]
    if arrays[0].dtype == plan.compute:
        yield from function(plan.inner, scratch, values, *arrays)
        return
    wide = [scratch.take(_WIDE + at, arrays[0].shape, plan.compute) for at in range(len(plan.writes))]
    for array, number, written in zip(arrays, wide, plan.writes, strict=False):
        if not written:
            yield functools.partial(np.copyto, number, array)
    yield from function(plan.inner, scratch, values, *wide, *arrays[len(wide) :])
    for array, number, written in zip(arrays, wide, plan.writes, strict=False):
        if written:
            yield functools.partial(np.copyto, array, number, casting="unsafe")
