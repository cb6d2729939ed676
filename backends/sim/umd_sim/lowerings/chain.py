"""Fused elementwise chains: the program in the parameters, in blocks, so that values between steps stay in cache."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord
from umd_core.kernels.chain import used_operands, words
from umd_sim.lowerings import expression
from umd_sim.lowerings.layout import NOTHING, Executable, Launch, coalesce, compute_type, narrowed
from umd_sim.lowerings.programs import Parser, Program


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
    return Executable(tuple(views), functools.partial(expression.bind, program))


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
