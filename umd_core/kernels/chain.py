"""The row of fused elementwise work: a bounded postfix program in the parameter block.

A program is a list of tokens, one u32 each, read left to right until the first 0:

    p          a primitive by its number (docs/command-buffer.md): pops its arguments, pushes its result; this is a step
    0x100 + i  pushes the element of operand x{i}
    0x200 + i  pushes constants[i]
    0x300 + k  pushes the result of step k once more, counted from 0

Values are numbers or truths. Comparisons make truths, `select` pops a truth and two numbers, everything else takes and
makes numbers. At the end one value is left, a number that a step made. A launch has all eight operands; those that the
program does not name repeat x0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from umd_core import dtypes
from umd_core.kernels.expressions import PRIMITIVES
from umd_core.kernels.row import RANK_CLASSES, Extent, Field, KernelRow, Operand

NAME = "elementwise_chain_kernel"
TOKENS, STEPS, OPERANDS, CONSTANTS, DEPTH = 48, 16, 8, 8, 8
"""The most tokens, steps, operands, constants, and values on the stack."""
OPERAND, CONSTANT, RESULT = 0x100, 0x200, 0x300

_NAMES = (
    "neg", "abs", "sign", "reciprocal", "add", "sub", "mul", "div", "mod", "fmod", "pow", "max", "min", "exp", "log",
    "log1p", "expm1", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "trunc",
    "isnan", "isinf", "eq", "ne", "lt", "le", "gt", "ge", "select", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "atan2",
)  # fmt: skip
CODES: dict[str, int] = {name: code for code, name in enumerate(_NAMES, 1)}
"""The number of each primitive that a program may hold. Append-only."""
BY_CODE: dict[int, str] = {code: name for name, code in CODES.items()}
TRUTHS = frozenset(("isnan", "isinf", "eq", "ne", "lt", "le", "gt", "ge"))
"""Primitives that make a truth."""


class Fault(NamedTuple):
    """What is wrong with a program, and at which token."""

    at: int
    detail: str


def fault_of(tokens: Sequence[int]) -> Fault | None:
    """Returns the first fault of a program, None when it is well-formed. It may be shorter than `TOKENS`."""
    stack: list[bool] = []  # whether each value is a truth
    results: list[bool] = []
    end = next((at for at, token in enumerate(tokens) if not token), len(tokens))
    for at, token in enumerate(tokens[:end]):
        name = BY_CODE.get(token)
        if name is None:
            pushed = _pushed(token, results)
            if pushed is None:
                return Fault(at, f"token {token:#x} names nothing")
            stack.append(pushed)
        else:
            count = PRIMITIVES[name]
            wanted = [True, False, False] if name == "select" else [False] * count
            if stack[-count:] != wanted:
                return Fault(at, f"{name} does not find its {count} arguments")
            del stack[-count:]
            stack.append(name in TRUTHS)
            results.append(name in TRUTHS)
        if len(stack) > DEPTH or len(results) > STEPS:
            return Fault(at, f"{len(stack)} values, {len(results)} steps; the limits are {DEPTH} and {STEPS}")
    if any(tokens[end:]):
        return Fault(end, "tokens follow the end")
    if stack != [False] or not results:
        return Fault(max(end - 1, 0), f"{len(stack)} values are left after {len(results)} steps, not one number")
    return None


def _pushed(token: int, results: Sequence[bool]) -> bool | None:
    """Returns whether what a token pushes is a truth; None when it names nothing."""
    kind, index = token & ~0xFF, token & 0xFF
    if kind == RESULT:
        return results[index] if index < len(results) else None
    return False if index < {OPERAND: OPERANDS, CONSTANT: CONSTANTS}.get(kind, 0) else None


def padded(tokens: Sequence[int]) -> tuple[int, ...]:
    """Returns a program as the parameter holds it: `TOKENS` numbers."""
    return (*tokens, *(0,) * (TOKENS - len(tokens)))


def words(tokens: Sequence[int]) -> list[str]:
    """Returns a program in words up to its end: x0, c1 (a constant), t2 (a step's result), and primitives."""
    marks = {OPERAND: "x", CONSTANT: "c", RESULT: "t"}
    end = next((at for at, token in enumerate(tokens) if not token), len(tokens))
    return [BY_CODE.get(token) or f"{marks[token & ~0xFF]}{token & 0xFF}" for token in tokens[:end]]


def used_operands(tokens: Sequence[int]) -> list[int]:
    """Returns the numbers of the operands that a program names, ascending."""
    return sorted({token - OPERAND for token in tokens if OPERAND <= token < OPERAND + OPERANDS})


_INPUTS = tuple(f"x{i}" for i in range(OPERANDS))

ROW = KernelRow(
    name=NAME,
    family="chain",
    types=(("T", dtypes.FLOATS),),
    extents=(Extent("extents", "rank"),),
    operands=(
        *(Operand(name, "r", "T", ("extents",)) for name in _INPUTS),
        Operand("out", "w", "T", ("extents",)),
    ),
    fields=(Field("program", "u32", size=str(TOKENS)), Field("constants", "f64", size=str(CONSTANTS))),
    sizes=(("rank", RANK_CLASSES),),
    level=1,
    alias=tuple(("out", name) for name in _INPUTS),
    tolerance=256.0,
    mathematics="out[i] = the postfix program over x0[i] to x7[i] and constants, for every i in the box of extents; "
    "float16 and bfloat16 are computed in float32 from the first step to the last and rounded once",
)
