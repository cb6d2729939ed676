"""The attribute schema of ops: kinds, defaults, and how values and text become them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from umd_core.dtypes import dtype as to_dtype
from umd_core.errors import AttributeValueError, DTypeError
from umd_core.ir import Array


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute: kind is one of int, float, number, bool, string, dtype, ints, floats, strings, tensor.

    A number is an int, a float or a bool and stays what it is; a tensor is a NumPy array.
    """

    name: str
    kind: str
    default: Any = None
    required: bool = False
    choices: tuple[Any, ...] = ()


def _to_int(value: Any) -> int:
    number = int(value)
    if isinstance(value, bool) or not (isinstance(value, str) or number == value):
        raise ValueError("not an integer")
    return number


def _to_bool(value: Any) -> bool:
    if isinstance(value, str):
        return {"true": True, "false": False, "1": True, "0": False}[value.lower()]
    if value not in (0, 1):
        raise ValueError("not a truth value")
    return bool(value)


def _to_string(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _to_number(value: Any) -> int | float:
    if isinstance(value, str):
        text = value.strip().lower()
        value = int(text) if text.lstrip("+-").isdigit() else float(text)
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (int, float)):
        raise TypeError("not a number")
    return value


def _to_tensor(value: Any) -> Array:
    array = np.asarray(value)
    to_dtype(array.dtype)
    return array


def _items(value: Any) -> list[Any]:
    """Returns the items of a list, or of text like "1,1", "[1, 1]" or "(1, 1)"; a single number is a list of one."""
    if isinstance(value, str):
        text = value.strip()
        if (text[:1], text[-1:]) in (("[", "]"), ("(", ")")):
            text = text[1:-1]
        return [part.strip() for part in text.split(",") if part.strip()]
    return list(value) if hasattr(value, "__iter__") else [value]


_COERCE: dict[str, Callable[[Any], Any]] = {
    "int": _to_int,
    "float": float,
    "number": _to_number,
    "bool": _to_bool,
    "string": _to_string,
    "dtype": to_dtype,
    "ints": lambda value: tuple(_to_int(v) for v in _items(value)),
    "floats": lambda value: tuple(float(v) for v in _items(value)),
    "strings": lambda value: tuple(map(_to_string, [value] if isinstance(value, (str, bytes)) else value)),
    "tensor": _to_tensor,
}


def coerce(op: str, attribute: Attribute, value: Any) -> Any:
    """Returns the value as the attribute's kind; text such as "1,1" is read as numbers.

    Raises:
        AttributeValueError: it cannot be read so, or is not among the choices.
    """
    try:
        result = _COERCE[attribute.kind](value)
    except (ValueError, TypeError, KeyError, SyntaxError, OverflowError, DTypeError) as error:
        detail = f"{value!r} is not of kind {attribute.kind}"
        raise AttributeValueError(op, attribute.name, detail, value=value, wanted=f"kind {attribute.kind}") from error
    if attribute.choices and result not in attribute.choices:
        wanted = "one of " + ", ".join(map(str, attribute.choices))
        raise AttributeValueError(op, attribute.name, f"{value!r} is not allowed", value=value, wanted=wanted)
    return result
