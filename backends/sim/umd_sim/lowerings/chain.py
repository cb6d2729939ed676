"""Fused elementwise chains: the program in the parameters, in blocks, so that values between steps stay in cache."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord
from umd_core.kernels.chain import used_operands, words
from umd_sim.lowerings.expression import blocks
from umd_sim.lowerings.layout import NOTHING, Array, Call, Executable, Launch, coalesce, compute_type, narrowed
from umd_sim.lowerings.programs import Parser, Program
from umd_sim.scratch import Scratch

BLOCK = 1 << 16
"""Elements of a block: a few of them side by side fit in a core's own cache, and NumPy's calls cost little beside."""


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a chain; operands that its program does not name are not looked at."""
    launch = Launch(record, parameters)
    tokens = launch["program"]
    names = [f"x{number}" for number in used_operands(tokens)]
    shape, strides = coalesce(launch.shape("out"), *(launch.strides(name) for name in (*names, "out")))
    if 0 in shape:
        return NOTHING
    views = [launch.view(name, *narrowed(shape, s)) for name, s in zip(names, strides, strict=False)]
    views.append(launch.view("out", shape, strides[-1]))
    constants = tuple(map(repr, launch["constants"]))
    program = _compiled(record.types[0], tuple(words(tokens)), constants)
    return Executable(tuple(views), functools.partial(_bind, program))


class Plan(NamedTuple):
    """A chain over its arrays.

    Attributes:
        program: its steps, over operands, result, constants and temporaries.
        blocks: the arrays, the result last, cut into blocks.
        held: number of the temporary that lies where the result will, which the last step alone writes; -1: none.
    """

    program: Program
    blocks: Sequence[Sequence[Array]]
    held: int


def _bind(program: Program, parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    *inputs, out = arrays
    held = -1
    if out.dtype in program.temporaries and out.flags.c_contiguous:
        held = -1 if any(np.may_share_memory(array, out) for array in inputs) else program.temporaries.index(out.dtype)
    return functools.partial(_run, Plan(program, list(_cut(arrays)), held), scratch)


def _run(plan: Plan, scratch: Scratch) -> None:
    program, blocks, held = plan
    shape: tuple[int, ...] | None = None
    rest: list[Array] = []
    for block in blocks:
        out = block[-1]
        if out.shape != shape:
            shape = out.shape
            rest = program.rest(shape, scratch)
        if held >= 0:
            rest[len(program.constants) + held] = out
        registers = [*block, *rest]
        for function, sources, target in program.steps:
            function(*[registers[source] for source in sources], out=registers[target])


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


@functools.lru_cache(maxsize=4096)
def _compiled(dtype: DType, program: Sequence[str], constants: Sequence[str]) -> Program:
    """Returns a program in words as calls of NumPy functions; constants are given as text."""
    names = [*sorted({word for word in program if word[0] == "x"}), "out"]
    parser = Parser(names, [dtype.numpy] * len(names), compute_type(dtype), dtype.kind)
    for word in program:
        if word[0] == "t" and word[1:].isdigit():
            parser.recall(int(word[1:]))
        else:
            parser.push(constants[int(word[1:])] if word[0] == "c" and word[1:].isdigit() else word)
    return parser.program()
