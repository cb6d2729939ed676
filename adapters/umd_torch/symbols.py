"""Sizes that torch left open: what each symbol is in one call."""

from __future__ import annotations

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


def evaluate(value: Any, bound: Bound) -> Any:
    """Returns a number, with every symbol in it replaced by what it is in this call.

    Raises:
        UnsupportedError: it depends on data (the number of non-zero elements, for example).
    """
    if not is_symbolic(value):
        return value
    expression = sympy.sympify(value.node.expr)
    found = bound.get(expression)
    if found is None:
        found = bound[expression] = _evaluated(value, expression, bound)
    return found


def _evaluated(value: Any, expression: sympy.Basic, bound: Bound) -> Any:
    number: Any = sympy.sympify(expression.xreplace(bound))
    if number.free_symbols:
        raise UnsupportedError(f"the size {value} depends on data")
    if isinstance(value, torch.SymBool):
        return bool(number)
    return float(number) if isinstance(value, torch.SymFloat) else int(number)


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
