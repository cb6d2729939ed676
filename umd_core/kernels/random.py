"""Rows of random numbers: what element i gets depends on the seed, the offset and i alone.

The generator is Philox4x32-10: a function of a 64-bit key (`seed`) and a 128-bit counter, of which the upper half is
`offset` and the lower half numbers blocks of four 32-bit words. So an offset is a stream of its own: who draws several
tensors under one seed gives each another offset. Both come as 0-d operands, so that a program that runs again can draw
other numbers.
"""

from __future__ import annotations

from umd_core import dtypes
from umd_core.dtypes import DType, float16, float32, float64
from umd_core.kernels.row import RANK_CLASSES, Extent, KernelRow, Operand

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
"""Philox4x32's constants: round multipliers, what is added to the key after each round, and the number of rounds."""
DIGITS: dict[DType, int] = {float16: 11, dtypes.bfloat16: 8, float32: 24, float64: 53}
"""Binary digits of a uniform number of each type: all that its mantissa holds."""

_BOX = ("extents",)
_WORDS = (
    "w[b, 0..3] is Philox4x32-10 of the key seed and the counter (b, offset), low words first; i counts the box in "
    "row-major order"
)
_PAIRS = "W[i] = w[i div 2, 2 · (i mod 2)] + 2^32 · w[i div 2, 2 · (i mod 2) + 1]"
_UNIT = f"u[i] = (w[i div 4, i mod 4] div 2^8) / 2^24, in float64 (W[i] div 2^11) / 2^53 with {_PAIRS}"


def _row(
    name: str,
    types: tuple[DType, ...],
    mathematics: str,
    *,
    operands: tuple[Operand, ...] = (),
    out: str = "T",
    tolerance: float = 0.0,
) -> KernelRow:
    return KernelRow(
        name=f"random_{name}_kernel",
        family="random",
        types=(("T", types),),
        extents=(Extent("extents", "rank"),),
        operands=(
            Operand("seed", "r", "int64", ()),
            Operand("offset", "r", "int64", ()),
            *operands,
            Operand("out", "w", out, _BOX),
        ),
        sizes=(("rank", RANK_CLASSES),),
        program=name,
        level=1,
        tolerance=tolerance,
        mathematics=mathematics,
        source="Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011",
    )


ROWS: tuple[KernelRow, ...] = (
    _row(
        "uniform",
        dtypes.FLOATS,
        "out[i] = u[i], of which float16 keeps the first 11 binary digits and bfloat16 the first 8, so that 1 is never "
        f"reached. {_WORDS}; {_UNIT}. The same bits everywhere",
    ),
    _row(
        "normal",
        dtypes.FLOATS,
        "out[i] = r · cos(2π · u[j + 1]) for even i, r · sin(2π · u[j + 1]) for odd i, with j = i - i mod 2 and "
        f"r = sqrt(-2 · log(1 - u[j])). {_WORDS}; {_UNIT}; float16 and bfloat16 are computed in float32",
        tolerance=64.0,
    ),
    _row(
        "bernoulli",
        dtypes.FLOATS,
        f"out[i] = u[i] < p[i]. {_WORDS}; {_UNIT}. The same truth everywhere",
        operands=(Operand("p", "r", "T", _BOX),),
        out="bool",
    ),
    _row(
        "integer",
        dtypes.INTEGERS,
        "out[i] = low + W[i] mod (high - low), wrapped to the type of out; the difference is taken modulo 2^64, and "
        f"where it is 0 out[i] = low + W[i]. {_WORDS}; {_PAIRS}. The same bits everywhere",
        operands=(Operand("low", "r", "int64", ()), Operand("high", "r", "int64", ())),
    ),
)
