"""What is generated before the kernels that go along one axis: how a scan carries, how elements are compared."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.kernels import KernelRecord
from umd_cuda.snippets import RAW, TYPES

_INFINITE = {
    dtypes.float16: 0x7C00, dtypes.bfloat16: 0x7F80, dtypes.float32: 0x7F800000, dtypes.float64: 0x7FF0000000000000,
}  # fmt: skip
"""The bits of infinity; more, the sign aside, is NaN."""


def is_comparing(record: KernelRecord) -> bool:
    """Returns whether a reduction or scan picks one of its elements."""
    return record.row.program in ("max", "min")


def carry(record: KernelRecord) -> str:
    """Returns the type that runs along the row of a scan: double for sums and products of floats."""
    text = TYPES[record.types[0]]
    if is_comparing(record):
        return text.value
    return "double" if record.types[0].is_float else text.total


def sort_types(record: KernelRecord) -> str:
    """Returns T, an element's bits, and Key, the unsigned type in which they are compared."""
    size = record.types[0].size
    return f"typedef {RAW[size]} T;\ntypedef {RAW[max(size, 4)]} Key;\n"


def sort_macros(record: KernelRecord) -> dict[str, object]:
    """Returns what the bits of an element mean."""
    dtype = record.types[0]
    macros: dict[str, object] = {
        "BITS": 1 if dtype.kind == "b" else 8 * dtype.size,
        "IS_FLOAT": int(dtype.is_float),
        "IS_SIGNED": int(dtype.kind == "i"),
        "IS_BOOL": int(dtype.kind == "b"),
    }
    return {**macros, "INFINITE": f"((Key){_INFINITE[dtype]}ULL)"} if dtype.is_float else macros
