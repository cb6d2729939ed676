"""Element types: wire code (ONNX TensorProto number), size in bytes, NumPy type, aliases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from umd_core.errors import DTypeError


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. `code` is ONNX's TensorProto number, `size` is in bytes. One object a type: compare by `is`."""

    name: str
    code: int
    size: int
    kind: str  # "b" bool, "i" signed, "u" unsigned, "f" float
    numpy: np.dtype[Any] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return dtype, (self.name,)

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer type (bool is neither)."""
        return self.kind in "iu"


def _dtype(name: str, code: int, kind: str, numpy: Any) -> DType:
    as_numpy = np.dtype(numpy)
    return DType(name, code, as_numpy.itemsize, kind, as_numpy)


float32: DType = _dtype("float32", 1, "f", np.float32)
uint8: DType = _dtype("uint8", 2, "u", np.uint8)
int8: DType = _dtype("int8", 3, "i", np.int8)
uint16: DType = _dtype("uint16", 4, "u", np.uint16)
int16: DType = _dtype("int16", 5, "i", np.int16)
int32: DType = _dtype("int32", 6, "i", np.int32)
int64: DType = _dtype("int64", 7, "i", np.int64)
bool_: DType = _dtype("bool", 9, "b", np.bool_)
float16: DType = _dtype("float16", 10, "f", np.float16)
float64: DType = _dtype("float64", 11, "f", np.float64)
uint32: DType = _dtype("uint32", 12, "u", np.uint32)
uint64: DType = _dtype("uint64", 13, "u", np.uint64)
bfloat16: DType = _dtype("bfloat16", 16, "f", ml_dtypes.bfloat16)

BOOL = (bool_,)
SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (float16, bfloat16, float32, float64)
NUMERIC = FLOATS + INTEGERS
ALL = NUMERIC + BOOL
INDEX = (int32, int64)

BY_CODE: dict[int, DType] = {d.code: d for d in ALL}
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
_BY_NUMPY: dict[np.dtype[Any], DType] = {d.numpy: d for d in ALL}
_ALIASES: dict[str, DType] = {
    **BY_NAME,
    "f16": float16, "half": float16, "bf16": bfloat16, "f32": float32, "float": float32,
    "f64": float64, "double": float64, "b8": bool_, "bool_": bool_,
    **{f"i{8 * d.size}": d for d in SIGNED}, **{f"u{8 * d.size}": d for d in UNSIGNED},
    "long": int64, "int": int32, "short": int16,
}  # fmt: skip


def dtype(value: object) -> DType:
    """Returns the DType that a DType, NumPy or torch type, ONNX number or name stands for.

    Names may be spelt as "float32", "f32", "torch.float32" or "float".

    Raises:
        DTypeError: nothing known has that name.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, np.dtype) and (known := _BY_NUMPY.get(value)) is not None:
        return known
    if isinstance(value, int) and not isinstance(value, bool):
        found = BY_CODE.get(value)
    else:
        text = str(value)
        found = _ALIASES.get(text.removeprefix("torch."))
        if found is None:
            found = _from_numpy(value)
    if found is None:
        raise DTypeError("dtype", f"unknown element type {value!r}", got=str(value), allowed=tuple(BY_NAME))
    return found


def _from_numpy(value: object) -> DType | None:
    try:
        return _BY_NUMPY.get(np.dtype(value))  # type: ignore[call-overload]  # any object may be a NumPy type
    except TypeError:
        return None
