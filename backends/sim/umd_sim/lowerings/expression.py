"""The expression family: one NumPy call where a row is one primitive, its program in blocks otherwise."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from umd_core.kernels import KernelRecord
from umd_sim.lowerings.layout import NOTHING, Array, Call, Executable, Launch, coalesce, in_turn, narrowed, product
from umd_sim.lowerings.programs import Program, compiled
from umd_sim.scratch import Scratch

BLOCK = 1 << 16
"""Elements that a program works on at a time: a few of them side by side fit in a core's own cache, and NumPy's calls
cost little beside."""
PREPARED = 256
"""Blocks up to which their calls are made once, when a launch is bound."""


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of an expression row."""
    launch = Launch(record, parameters)
    names = [operand.name for operand in record.row.operands]
    shape, strides = coalesce(launch.shape(names[-1]), *(launch.strides(name) for name in names))
    if 0 in shape:
        return NOTHING
    views = [launch.view(name, *narrowed(shape, s)) for name, s in zip(names[:-1], strides, strict=False)]
    views.append(launch.view(names[-1], shape, strides[-1]))
    program = compiled(record)
    if program.moves:
        views = [view._replace(dtype=np.dtype(f"u{view.dtype.itemsize}")) for view in views]
    return Executable(tuple(views), functools.partial(bind, program))


def step_of(shape: Sequence[int]) -> int:
    """Returns how many entries of the first axis make up a block."""
    return max(1, BLOCK // max(product(shape[1:]), 1))


def bind(program: Program, parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    """Returns the call that runs a program over arrays, the result last."""
    if program.whole:
        return in_turn(program.calls([*arrays, *program.constants]))
    *inputs, out = arrays
    held = -1
    if out.dtype in program.temporaries and out.flags.c_contiguous:
        held = -1 if any(np.may_share_memory(array, out) for array in inputs) else program.temporaries.index(out.dtype)
    plan = _Plan(program, list(_cut(arrays)), held)
    if len(plan.parts) <= PREPARED:
        return in_turn(list(_calls(plan, scratch)))
    return functools.partial(_run, plan, scratch)


class _Plan(NamedTuple):
    """A program over its arrays.

    Attributes:
        program: its steps, over operands, result, constants and temporaries.
        parts: the arrays, the result last, cut into blocks.
        held: number of the temporary that lies where the result will, which the last step alone writes; -1: none.
    """

    program: Program
    parts: Sequence[Sequence[Array]]
    held: int


def _run(plan: _Plan, scratch: Scratch) -> None:
    for call in _calls(plan, scratch):
        call()


def _calls(plan: _Plan, scratch: Scratch) -> Iterator[Call]:
    """Yields the calls of all blocks, in order."""
    program, parts, held = plan
    shape: tuple[int, ...] | None = None
    rest: list[Array] = []
    for block in parts:
        out = block[-1]
        if out.shape != shape:
            shape = out.shape
            rest = program.rest(shape, scratch)
        if held >= 0:
            rest[len(program.constants) + held] = out
        yield from program.calls([*block, *rest])


def _cut(arrays: Sequence[Array]) -> Iterator[Sequence[Array]]:
    """Yields the arrays in blocks of about `BLOCK` elements; those that broadcast along an axis stay whole there."""
    out = arrays[-1]
    each = out[:1].size if out.ndim else 1
    if out.size <= BLOCK:
        yield arrays
    elif each <= BLOCK:
        yield from blocks(arrays, BLOCK // each)
    else:
        for row in blocks(arrays, 1):
            yield from _cut([array[0] if array.ndim == out.ndim else array for array in row])


def blocks(arrays: Sequence[Array], step: int) -> Iterator[list[Array]]:
    """Yields the arrays cut along the first axis of the last one; those that broadcast along it stay whole."""
    rank, rows = arrays[-1].ndim, arrays[-1].shape[0]
    cut = [array.ndim == rank and array.shape[0] == rows for array in arrays]
    for start in range(0, rows, step):
        yield [a[start : start + step] if c else a for a, c in zip(arrays, cut, strict=True)]
