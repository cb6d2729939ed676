"""What the lowering files share: the emitter's type, operands with torch's type promotion."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_torch.builder import Builder, Value, from_torch

Emitted = Value | tuple[Value | None, ...]
Emitter = Callable[..., Emitted]
"""`emitter(builder, *args, **kwargs)` gets the node's arguments with a Value for each tensor; returns its results."""
Table = dict[Any, Emitter]
Number = bool | int | float
Operand = Value | Number

HALVES = (dtypes.float16, dtypes.bfloat16)
_TORCH = {from_torch(getattr(torch, d.name.rstrip("_"))): getattr(torch, d.name.rstrip("_")) for d in dtypes.ALL}


def to_torch(dtype: DType) -> torch.dtype:
    """Returns torch's element type."""
    found: torch.dtype = _TORCH[dtype]
    return found


def operand(b: Builder, x: Operand, dtype: DType) -> Value:
    """Returns a tensor or number as a value of an element type."""
    return b.cast(x, dtype) if isinstance(x, Value) else b.scalar(x, dtype)


def computing(dtype: DType, operands: Sequence[Operand]) -> DType:
    """Returns the element type to multiply and divide in so that numbers keep their value, as torch does.

    torch multiplies a bfloat16 tensor by 0.1, not by 0.1 rounded to bfloat16 (but adds the rounded one).
    """
    numbers = [x for x in operands if not isinstance(x, Value)]
    return dtypes.float32 if dtype in HALVES and any(_rounds(x, dtype) for x in numbers) else dtype


def _rounds(x: Number, dtype: DType) -> bool:
    """Returns whether a number has another value in an element type, as one that varies from call to call may have."""
    return bool(getattr(x, "varies", False) or float(dtype.numpy.type(x)) != x == x)


def promoted(*operands: Operand) -> DType:
    """Returns the element type in which torch combines these operands."""
    return _promoted(tuple((x.dtype, x.rank > 0) if isinstance(x, Value) else (type(x), False) for x in operands))


@functools.cache
def _promoted(kinds: tuple[tuple[Any, bool], ...]) -> DType:
    examples = [
        torch.empty((1,) if dimensioned else (), dtype=to_torch(kind), device="meta")
        if isinstance(kind, DType)
        else kind(1)
        for kind, dimensioned in kinds
    ]
    result = examples[0]
    for other in examples[1:]:
        dtype = torch.result_type(result, other)
        dimensioned = any(isinstance(x, torch.Tensor) and x.dim() > 0 for x in (result, other))
        result = torch.empty((1,) if dimensioned else (), dtype=dtype, device="meta")
    return from_torch(result.dtype)


def unary(op: str, **attributes: Any) -> Emitter:
    """Returns an emitter of one op over one tensor, in the element type of the result."""

    def emit(b: Builder, x: Value) -> Value:
        return b.op(op, b.cast(x, b.dtype), **attributes)

    return emit


def accumulating(dtype: DType) -> DType:
    """Returns the element type in which torch's CPU kernels accumulate."""
    return dtypes.float32 if dtype in HALVES else dtype


def known(b: Builder, value: Value) -> np.ndarray[Any, Any] | None:
    """Returns the value's elements where the program knows them."""
    return b.known(value)
