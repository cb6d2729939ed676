"""Programs of elementwise chains: one at every limit, and those that a reader refuses."""

from __future__ import annotations

from typing import Any

from tests.core.buffer_builder import Build
from umd_core.commands import CommandBuffer
from umd_core.dtypes import float32
from umd_core.kernels import chain

NEG, ADD, LT, SELECT = (chain.CODES[name] for name in ("neg", "add", "lt", "select"))
X, C, T = chain.OPERAND, chain.CONSTANT, chain.RESULT
PROGRAMS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((), 0),  # nothing
    ((X,), 0),  # no step
    ((NEG,), 0),  # nothing on the stack
    ((X, ADD), 1),  # one argument of two
    ((X, X, NEG), 2),  # two values at the end
    ((X + 8, NEG), 0),  # no such operand
    ((C + 8, NEG), 0),  # no such constant
    ((X, T, ADD), 1),  # no such step yet
    ((X, NEG, T + 1, ADD), 2),
    ((X, len(chain.CODES) + 1), 1),  # no such primitive
    ((X, 0x400 + NEG), 1),
    ((X, 2**32 - 1), 1),
    ((X, 0, NEG), 1),  # tokens after the end
    ((X, X, LT), 2),  # a truth is no number
    ((X, X, LT, NEG), 3),
    ((X, X, X, SELECT), 3),  # a number is no truth
    ((X, X, LT, X, T, SELECT), 5),
    ((*(X,) * 9, *(ADD,) * 8), 8),  # nine values at once
    ((X, *(NEG,) * 17), 17),  # seventeen steps
    ((X,) * 48, 8),
)
"""Programs that break the rule, and the token where they do."""


WELL_FORMED = (*range(X, X + 8), *(ADD,) * 7, C + 7, LT, X, T + 6, SELECT, *(NEG,) * 7)
"""Eight operands, sixteen steps, eight values at once."""


def chained(tokens: tuple[int, ...]) -> CommandBuffer:
    """Returns a command buffer with one launch of a chain over four numbers."""
    build = Build()
    x, out = build.slot(), build.slot()
    names = [operand.name for operand in chain.ROW.operands]
    shape: dict[str, Any] = {"extents": (4,), **{f"{name}_strides": (1,) for name in names}}
    shape |= {"program": chain.padded(tokens), "constants": (0.0,) * chain.CONSTANTS}
    build.dispatch(chain.NAME, [float32], [1], shape, {name: (out if name == "out" else x, 0) for name in names})
    return build.done()
