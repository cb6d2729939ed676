"""The table's scalar primitives as NumPy functions: `function(*arguments, out=result)`, by kind of element type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from umd_sim.lowerings import special
from umd_sim.lowerings.layout import Array

Function = Callable[..., Any]


def bits(array: Array) -> Array:
    """Returns the elements as unsigned integers of their size, as a view."""
    return array.view(f"u{array.itemsize}")


def select(condition: Array, a: Array, b: Array, out: Array) -> None:
    """Writes a where the condition is not 0, else b; `out` may be a or b.

    On integers, since a masked copy costs ten times as much when the mask is irregular.
    """
    difference = np.asarray(np.bitwise_xor(bits(a), bits(b)))
    chosen = np.asarray(np.multiply(difference, np.not_equal(condition, 0)))
    np.bitwise_xor(chosen, bits(b), out=bits(out))


def cleared(condition: Array, a: Array, out: Array) -> None:
    """Writes 0 where the bool condition is true, else a; `out` may be a."""
    np.multiply(bits(a), np.logical_not(condition), out=bits(out))


def equal_truth(a: Array, b: Array, out: Array) -> None:
    """Writes whether two bools given as bytes are equal."""
    np.equal(np.not_equal(a, 0), np.not_equal(b, 0), out=out)


_ARITHMETIC: dict[str, Function] = {
    "neg": np.negative, "abs": np.absolute, "sign": np.sign, "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "mod": np.remainder, "fmod": np.fmod, "max": np.maximum, "min": np.minimum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "select": select,
}  # fmt: skip

_FLOAT: dict[str, Function] = {
    **_ARITHMETIC,
    "reciprocal": np.reciprocal, "div": np.divide, "pow": np.power, "exp": np.exp, "log": np.log, "log1p": np.log1p,
    "expm1": np.expm1, "sqrt": np.sqrt, "rsqrt": special.rsqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "sigmoid": special.sigmoid, "erf": special.erf, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "isnan": special.is_nan, "isinf": special.is_inf,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip

_BITWISE: dict[str, Function] = {
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "bitnot": np.invert,
    "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip

_SIGNED: dict[str, Function] = {
    **_ARITHMETIC, **_BITWISE, "div": special.divide_truncating, "pow": special.power_signed,
}  # fmt: skip

_UNSIGNED: dict[str, Function] = {**_ARITHMETIC, **_BITWISE, "div": np.floor_divide, "pow": np.power}

_BOOL: dict[str, Function] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    "eq": equal_truth, "ne": np.logical_xor, "select": select,
}  # fmt: skip

FUNCTIONS: dict[str, dict[str, Function]] = {"f": _FLOAT, "i": _SIGNED, "u": _UNSIGNED, "b": _BOOL}
"""By DType.kind, then by primitive. `cast` has a lowering of its own. `out` may be an argument."""

TO_BOOL = frozenset(("isnan", "isinf", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not"))
"""Primitives whose result is a bool whatever their arguments are."""
