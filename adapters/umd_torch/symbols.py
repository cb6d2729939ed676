"""Sizes that torch left open: what each symbol is in one call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sympy
import torch

from umd_core.errors import UnsupportedError

Bound = dict[sympy.Basic, Any]
"""What the symbols are in one call, and what expressions of them are, as these come up."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(value: object) -> bool:
    """Returns whether a size, number or truth value is not known while tracing."""
    return isinstance(value, _SYMBOLIC)


class Open:
    """A number that torch left open, its expression looked up once.

    Attributes:
        value: as torch has it.
        expression: of the graph's symbols.
    """

    __slots__ = ("expression", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.expression: sympy.Basic = sympy.sympify(value.node.expr)


def evaluate(value: Any, bound: Bound) -> Any:
    """Returns a number, with every symbol in it replaced by what it is in this call; what is none as it is.

    Raises:
        UnsupportedError: it depends on data (the number of non-zero elements, for example).
    """
    if type(value) is not Open:
        if not is_symbolic(value):
            return value
        value = Open(value)
    expression = value.expression
    found = bound.get(expression)
    if found is None:
        found = bound[expression] = _evaluated(value.value, expression, bound)
    return found


def _evaluated(value: Any, expression: sympy.Basic, bound: Bound) -> Any:
    if isinstance(value, torch.SymInt):
        whole = _whole(expression, bound)
        if whole is not None:
            return whole
    number: Any = sympy.sympify(expression.xreplace(bound))
    if number.free_symbols:
        raise UnsupportedError(f"the size {value} depends on data")
    if isinstance(value, torch.SymBool):
        return bool(number)
    return float(number) if isinstance(value, torch.SymFloat) else int(number)


def _whole(expression: sympy.Basic, bound: Bound) -> int | None:
    """Returns an expression's value where it is made of whole numbers, sums and products; None for any other."""
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if expression.is_Symbol:
        found = bound.get(expression)
        return found if type(found) is int else None
    if not (expression.is_Add or expression.is_Mul):
        return None
    parts: list[int] = []
    for part in expression.args:
        number = _whole(part, bound)
        if number is None:
            return None
        parts.append(number)
    return sum(parts) if expression.is_Add else math.prod(parts)


def bind(examples: Mapping[int, Any], arguments: Any) -> Bound:
    """Returns what the symbols are, from the arguments at the positions where tracing saw symbolic numbers.

    Raises:
        UnsupportedError: an argument is not a symbol itself but an expression of some.
    """
    bound: Bound = {}
    for position, example in examples.items():
        symbol = example.node.expr
        if not isinstance(symbol, sympy.Symbol):
            if symbol.free_symbols - bound.keys():
                raise UnsupportedError(f"an argument is the expression {symbol}, not a symbol")
            continue
        bound[symbol] = arguments[position]
    return bound


def hints(examples: Mapping[int, Any]) -> dict[int, Any]:
    """Returns the numbers that tracing saw at the symbolic positions."""
    return {position: example.node.hint for position, example in examples.items()}
