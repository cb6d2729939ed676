"""Expression rows: their postfix program over wide numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.ir import Array
from umd_core.kernels import PRIMITIVES, KernelRecord
from umd_core.kernels.chain import words
from umd_core.testing.reference.wide import bounds, wrap


def _divide(a: int, b: int) -> int:
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64) if a >= 0 else pow(-a, b, 1 << 64) * (-1 if b % 2 else 1)
    return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)


_INTEGER: dict[str, Any] = {
    "neg": lambda a: -a,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "mod": lambda a, b: a % b if b else 0,
    "fmod": lambda a, b: a - _divide(a, b) * b if b else 0,
    "pow": _power,
    "max": max,
    "min": min,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "bitnot": lambda a: ~a,
    "shl": lambda a, b: a << b if 0 <= b < 64 else 0,
    "shr": lambda a, b: a >> b if 0 <= b < 64 else -(a < 0),
}
_FLOAT: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "reciprocal": lambda a: 1 / a,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "mod": np.mod,
    "fmod": np.fmod,
    "pow": np.power,
    "max": np.maximum,
    "min": np.minimum,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": lambda a: np.where(a >= 0, 1 / (1 + np.exp(-np.abs(a))), np.exp(-np.abs(a)) / (1 + np.exp(-np.abs(a)))),
    "erf": lambda a: np.vectorize(math.erf, otypes=[np.float64])(a),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
}
_EITHER: dict[str, Callable[..., Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "select": np.where,
}


def convert(value: Array, source: DType, target: DType) -> Array:
    """Returns wide numbers of one type as wide numbers of another, as the primitive `cast` says."""
    flat = value.reshape(-1).tolist() if source.is_float and source is not dtypes.float64 else list(value.reshape(-1))
    if target.kind == "b":
        return np.array([bool(v != 0) for v in flat], np.bool_).reshape(value.shape)
    if target.is_float:
        return np.array([float(v) for v in flat], np.float64).reshape(value.shape)
    if source.is_float:
        low, high = bounds(target)
        result = [0 if math.isnan(v) else min(max(int(v) if math.isfinite(v) else v, low), high) for v in flat]
        return wrap(np.array([*result, None], object)[:-1].reshape(value.shape), target)
    return wrap(np.array([*(int(v) for v in flat), None], object)[:-1].reshape(value.shape), target)


def expression(
    record: KernelRecord, parameters: Mapping[str, Any], operands: Mapping[str, Array]
) -> dict[str, tuple[Any, Any]]:
    """Returns the expression's value; its scale is the largest number that was formed on the way."""
    bound = {o.name: record.dtype(o.type) for o in record.row.operands}
    shape = operands["out"].shape
    stack: list[tuple[Any, DType]] = []
    scale = np.zeros(shape, np.float64)
    for token in record.row.program.split():
        count = PRIMITIVES.get(token)
        if count is None:
            if token in operands:
                stack.append((operands[token], bound[token]))
            else:
                stack.append((_constant(token, record.types[0], shape), record.types[0]))
        else:
            arguments = stack[-count:]
            del stack[-count:]
            stack.append(_apply(token, arguments, bound["out"]))
        value, dtype = stack[-1]
        if dtype.is_float:
            scale = np.fmax(scale, np.abs(value).astype(np.float64))
    return {"out": (stack[0][0], scale)}


def chain(
    record: KernelRecord, parameters: Mapping[str, Any], operands: Mapping[str, Array]
) -> dict[str, tuple[Any, Any]]:
    """Returns the value of the program in the parameters; its scale as for an expression."""
    dtype, shape = record.types[0], operands["out"].shape
    stack: list[tuple[Any, DType]] = []
    results: list[tuple[Any, DType]] = []
    scale = np.zeros(shape, np.float64)
    for word in words(parameters["program"]):
        if word in PRIMITIVES:
            count = PRIMITIVES[word]
            arguments = stack[-count:]
            del stack[-count:]
            stack.append(_apply(word, arguments, dtype))
            results.append(stack[-1])
        elif word[0] == "t":
            stack.append(results[int(word[1:])])
        elif word[0] == "x":
            stack.append((operands[word], dtype))
        else:
            value = parameters["constants"][int(word[1:])]
            rounded = value if dtype is dtypes.float64 else float(np.float32(value))
            stack.append((_constant(repr(rounded), dtype, shape), dtype))
        value, kind = stack[-1]
        if kind.is_float:
            scale = np.fmax(scale, np.abs(value).astype(np.float64))
    return {"out": (stack[0][0], scale)}


def _constant(token: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.is_float:
        return np.full(shape, float(token), np.longdouble if dtype is dtypes.float64 else np.float64)
    return np.full(shape, int(token), object)


def _apply(token: str, arguments: list[tuple[Any, DType]], out: DType) -> tuple[Any, DType]:
    values = [value for value, _ in arguments]
    dtype = arguments[-1][1]
    if token == "cast":
        return convert(values[0], dtype, out), out
    if token in _EITHER:
        result = np.asarray(_EITHER[token](*values))
        return (result, dtype) if token == "select" else (result.astype(np.bool_), dtypes.bool_)
    if dtype.is_float:
        result = np.asarray(_FLOAT[token](*values))
        return result, dtypes.bool_ if result.dtype == np.bool_ else dtype
    results = [_INTEGER[token](*row) for row in zip(*(v.reshape(-1) for v in values), strict=True)]
    return wrap(np.array([*results, None], object)[:-1].reshape(values[0].shape), dtype), dtype
