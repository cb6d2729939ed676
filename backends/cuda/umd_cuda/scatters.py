"""What is generated before a scatter: how an update meets the element it reaches, in order or by atomics."""

from __future__ import annotations

from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord
from umd_cuda.snippets import HALVES, TYPES

_LARGER = "((a) != (a) || (a) > (b) ? (a) : (b))"
_SMALLER = "((a) != (a) || (a) < (b) ? (a) : (b))"
COMBINERS = {"add": "((a) + (b))", "mul": "((a) * (b))", "max": _LARGER, "min": _SMALLER}
"""By program, the expression of two numbers a and b."""

_EXTREMES = ("max", "min")


def is_unordered(record: KernelRecord) -> bool:
    """Returns whether a scatter may run by atomics: elements of 32 or 64 bits whose result no order changes."""
    dtype, row = record.types[0], record.row
    if row.family != "scatter" or row.program == "set" or dtype.size < 4:
        return False
    return dtype.is_integer or row.program in _EXTREMES


def needs_order(record: KernelRecord) -> bool:
    """Returns whether a scatter could run by atomics if its sums or products of floats may differ in the last bits."""
    dtype, row = record.types[0], record.row
    return row.family == "scatter" and row.program in ("add", "mul") and dtype.is_float and dtype.size >= 4


def number_of(record: KernelRecord) -> str:
    """Returns the type that a scatter computes in; integers wrap where they add or multiply."""
    text = TYPES[record.types[0]]
    return text.value if record.row.program in _EXTREMES else text.total


def in_order(record: KernelRecord) -> dict[str, object]:
    """Returns the macros of `scatter.cu`."""
    program = record.row.program
    if program == "set":
        return {"COMBINES": 0, "ROUNDS": 0}
    rounds = record.types[0] in HALVES and program not in _EXTREMES
    return {"COMBINES": 1, "ROUNDS": int(rounds), "COMBINE(a, b)": COMBINERS[program]}


def by_atomics(record: KernelRecord) -> dict[str, object]:
    """Returns the macros of `scatter_atomic.cu`."""
    dtype, program = record.types[0], record.row.program
    bits = "unsigned long long" if dtype.size == 8 else "unsigned"
    macros: dict[str, object] = {"Bits": bits, **_bit_casts(dtype)}
    if program == "add":
        return macros | {"ATOMIC(to, value)": f"atomicAdd(({bits if dtype.is_integer else 'T'}*)(to), value)"}
    if program in _EXTREMES and dtype.is_integer:
        return macros | {"ATOMIC(to, value)": f"atomic{program.title()}(to, value)"}
    return macros | {"MEET(a, b)": _extreme(dtype, program) if program in _EXTREMES else COMBINERS[program]}


def _bit_casts(dtype: DType) -> dict[str, object]:
    if dtype.is_integer:
        return {"BITS(number)": "((Bits)(number))", "FROM_BITS(bits)": "((Number)(bits))"}
    if dtype.size == 4:
        return {"BITS(number)": "__float_as_uint(number)", "FROM_BITS(bits)": "__uint_as_float(bits)"}
    return {
        "BITS(number)": "((Bits)__double_as_longlong(number))",
        "FROM_BITS(bits)": "__longlong_as_double((long long)(bits))",
    }


def _extreme(dtype: DType, program: str) -> str:
    """Returns the larger or smaller of two floats, the same bits in any order: a sign tells zeros apart."""
    sign, zeros = (">", "&") if program == "max" else ("<", "|")
    quiet = "0x7fc00000u" if dtype.size == 4 else "0x7ff8000000000000ull"
    return (
        f"((a) != (a) || (b) != (b) ? FROM_BITS({quiet}) : (a) {sign} (b) ? (a) : (b) {sign} (a) ? (b) : "
        f"FROM_BITS(BITS(a) {zeros} BITS(b)))"
    )
