"""What must hold while a program runs: assertions of the model, and what torch refuses to compute with."""

from __future__ import annotations

import dataclasses
import math

import torch

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_torch.builder import Builder, Value
from umd_torch.lowering.common import Number, Operand, Table, known, operand

aten = torch.ops.aten
_SINGLE = "Expected Tensor with single nonzero value, but got zero"


def require(b: Builder, condition: Value, message: str) -> None:
    """Lets the program fail, with an error that says so, where not all of a condition is true."""
    if not math.prod(condition.shape):
        return
    if condition.rank:
        least = b.op("ReduceMin", b.cast(condition, dtypes.uint8), b.ints(range(condition.rank)), keepdims=0)
        condition = b.cast(least, dtypes.bool_)
    count = len(b.graph.nodes)
    b.op("umd.Assert", condition, message=message)
    if len(b.graph.nodes) > count:  # errors name the node
        b.graph.nodes[-1] = dataclasses.replace(b.graph.nodes[-1], name=f"assertion: {message}")
    if b.record is not None:
        b.record.is_repeatable = False  # it holds the node as it was


def require_within(b: Builder, x: Value, low: Number | None, high: Number | None, message: str) -> None:
    """Lets the program fail where an element is outside [low, high], or NaN."""
    inside: Value | None = None
    for op, bound in (("GreaterOrEqual", low), ("LessOrEqual", high)):
        if bound is not None:
            held = b.op(op, x, b.scalar(bound, x.dtype))
            inside = held if inside is None else b.op("And", inside, held)
    if inside is not None:
        require(b, inside, message)


def divisor(b: Builder, y: Operand, dtype: DType) -> Value:
    """Returns what is divided by, an integer 0 of which is an error, as torch has it.

    Raises:
        UnsupportedError: an integer 0 is known already.
    """
    value = operand(b, y, dtype)
    if dtype.is_float:
        return value
    elements = known(b, value)
    if elements is None:
        require(b, b.op("umd.NotEqual", value, b.scalar(0, dtype)), "ZeroDivisionError")
    elif not elements.all():
        raise b.unsupported("ZeroDivisionError: it divides integers by 0")
    return value


def _assert_async(b: Builder, condition: Value, message: str = _SINGLE) -> Value:
    """Returns the condition, for which nobody asks: torch's op returns nothing."""
    require(b, b.reshape(b.cast(condition, dtypes.bool_), ()), message)
    return condition


def _assert_with_token(b: Builder, condition: Value, message: str, token: Value) -> Value:
    _assert_async(b, condition, message)
    return token


TABLE: Table = {
    aten._assert_async.default: _assert_async,
    aten._assert_async.msg: _assert_async,
    aten._functional_assert_async.msg: _assert_with_token,
}
