"""Random programs of elementwise chains whose results a rounding error cannot blow up."""

from __future__ import annotations

from typing import Any

import numpy as np

from umd_core.kernels.chain import CODES, CONSTANT, CONSTANTS, OPERAND, OPERANDS, RESULT, STEPS, TRUTHS, padded
from umd_core.kernels.expressions import PRIMITIVES
from umd_core.testing.values import Random

_ANYWHERE = ("add", "sub", "max", "min", "neg", "abs", "tanh", "sigmoid")
"""Primitives that take computed numbers: an error in an argument is no larger in the result."""
_ON_LEAVES = tuple(name for name in CODES if name not in (*TRUTHS, "select", "pow"))
_COMPARISONS = tuple(name for name in CODES if name in TRUTHS)


def random_program(random: Random) -> dict[str, Any]:
    """Returns a program and its constants, as the fields of a chain."""
    tokens: list[int] = []
    steps = 0
    wanted = int(random.integers(1, STEPS - 2))
    depth = 0
    while steps < wanted:
        depth, more = _grow(random, tokens, depth, steps)
        steps += more
    while depth > 1:
        tokens.append(CODES["add" if depth % 2 else "max"])
        depth -= 1
    constants = random.choice(np.array([0.0, 1.0, -0.5, 0.3, 2.0, -3.25]), CONSTANTS)
    return {"program": padded(tokens), "constants": tuple(float(c) for c in constants)}


def _leaf(random: Random) -> int:
    number = int(random.integers(OPERANDS))
    return CONSTANT + number if random.random() < 0.25 else OPERAND + number


def _grow(random: Random, tokens: list[int], depth: int, steps: int) -> tuple[int, int]:
    """Appends a few tokens; returns the depth of the stack, and how many steps they are.

    Each value that is left on the stack costs a step at the end, so that no more than two are.
    """
    chance = random.random()
    if depth and (chance < 0.5 or depth > 1):
        return _combine(random, tokens, depth, steps)
    if chance < 0.65:
        name = str(random.choice(np.array(_COMPARISONS)))
        tokens += [_leaf(random) for _ in range(PRIMITIVES[name])]
        tokens += [CODES[name], _leaf(random), _leaf(random), CODES["select"]]
        return depth + 1, 2
    name = str(random.choice(np.array(_ON_LEAVES)))
    tokens += [*(_leaf(random) for _ in range(PRIMITIVES[name])), CODES[name]]
    return depth + 1, 1


def _combine(random: Random, tokens: list[int], depth: int, steps: int) -> tuple[int, int]:
    name = str(random.choice(np.array(_ANYWHERE)))
    if PRIMITIVES[name] == 2 and depth == 1:
        # the last step made what is on the stack: an operand, or that once more
        tokens.append(RESULT + steps - 1 if random.random() < 0.3 else _leaf(random))
        depth += 1
    tokens.append(CODES[name])
    return depth - PRIMITIVES[name] + 1, 1
