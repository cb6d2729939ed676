"""The expression family: one NumPy call where a row is one primitive, its program in blocks otherwise."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from umd_core.kernels import KernelRecord
from umd_sim.lowerings.layout import NOTHING, Array, Call, Executable, Launch, coalesce, narrowed, product
from umd_sim.lowerings.programs import Program, compiled
from umd_sim.scratch import Scratch

BLOCK = 1 << 16
"""Elements that a program works on at a time, so that its temporaries stay in the processor's cache."""


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
    return Executable(tuple(views), functools.partial(_bind, program, step_of(shape)))


def step_of(shape: Sequence[int]) -> int:
    """Returns how many entries of the first axis make up a block."""
    return max(1, BLOCK // max(product(shape[1:]), 1))


def blocks(arrays: Sequence[Array], step: int) -> Iterator[list[Array]]:
    """Yields the arrays cut along the first axis of the last one; those that broadcast along it stay whole."""
    rank, rows = arrays[-1].ndim, arrays[-1].shape[0]
    cut = [array.ndim == rank and array.shape[0] == rows for array in arrays]
    for start in range(0, rows, step):
        yield [a[start : start + step] if c else a for a, c in zip(arrays, cut, strict=True)]


def _bind(program: Program, step: int, parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    if program.whole:
        registers, only = [*arrays, *program.constants], program.steps[0]
        return functools.partial(only.function, *[registers[s] for s in only.sources], out=arrays[-1])
    if arrays[-1].ndim == 0 or arrays[-1].shape[0] <= step:
        return functools.partial(_run, program, arrays, scratch)
    return functools.partial(_run_blocks, program, step, arrays, scratch)


def _run_blocks(program: Program, step: int, arrays: Sequence[Array], scratch: Scratch) -> None:
    for block in blocks(arrays, step):
        _run(program, block, scratch)


def _run(program: Program, arrays: Sequence[Array], scratch: Scratch) -> None:
    registers = [*arrays, *program.rest(arrays[-1].shape, scratch)]
    for function, sources, target in program.steps:
        function(*[registers[s] for s in sources], out=registers[target])
