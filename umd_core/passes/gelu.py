"""Gelu written out, by erf or by tanh, becomes the op.

Source: Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from umd_core.dtypes import DType, bfloat16
from umd_core.ir import Node
from umd_core.passes.editor import Editor

_CUBE = 0.044715


class Product(NamedTuple):
    """A product taken apart: its constant factor, its other factors, and the nodes that it is made of."""

    number: float
    factors: tuple[str, ...]
    nodes: tuple[Node, ...]


def find_gelu(editor: Editor) -> int:
    """Puts Gelu where x · 0.5 · (1 + erf(x / √2)), or its tanh form, is written out; returns how often.

    The factors may stand in any order. Results differ by rounding alone.
    """
    nodes = editor.graph.nodes if editor.has("Erf", "Tanh") else []
    found = sum(_find(editor, node) for node in nodes if node.op in ("Mul", "Div"))
    editor.refresh()
    return found


def _find(editor: Editor, root: Node) -> bool:
    dtype = editor.desc(root.outputs[0]).dtype
    whole = _of_node(editor, root)
    if not dtype.is_float or len(whole.factors) != 2 or not _close(whole.number, 0.5, dtype):
        return False
    for x, other in (whole.factors, whole.factors[::-1]):
        for curve, form in (("Erf", _is_erf_argument), ("Tanh", _is_tanh_argument)):
            inside = _one_plus(editor, other, curve)
            if inside is None:
                continue
            nodes = form(editor, inside[0].inputs[0], x, dtype)
            shapes = editor.desc(x).shape == editor.desc(root.outputs[0]).shape
            if nodes is not None and shapes and _are_private(editor, root, [*whole.nodes, *inside, *nodes]):
                editor.put(root, "Gelu", [x], {"approximate": "none" if curve == "Erf" else "tanh"})
                return True
    return False


def _are_private(editor: Editor, root: Node, nodes: list[Node]) -> bool:
    own = [root, *nodes]
    return all(editor.is_private(node.outputs[0], own) for node in nodes if node is not root)


def _close(number: float, wanted: float, dtype: DType) -> bool:
    """Returns whether a constant is the wanted number, but for its rounding."""
    epsilon = 2.0**-7 if dtype is bfloat16 else float(np.finfo(dtype.numpy).eps)
    return abs(number - wanted) <= 4 * max(epsilon, 2.0**-23) * abs(wanted)


def _product(editor: Editor, name: str) -> Product:
    """Takes a value apart, as far as nobody else reads the products that it is made of."""
    number = editor.scalar(name)
    if number is not None:
        return Product(number, (), ())
    node = editor.maker(name, *_PRODUCTS)
    if node is None or not editor.has_one_reader(name):
        return Product(1.0, (name,), ())
    return _of_node(editor, node)


def _of_node(editor: Editor, node: Node) -> Product:
    return _PRODUCTS[node.op](editor, node)


def _of_mul(editor: Editor, node: Node) -> Product:
    a, b = (_product(editor, name) for name in node.inputs)
    return Product(a.number * b.number, a.factors + b.factors, (*a.nodes, *b.nodes, node))


def _of_div(editor: Editor, node: Node) -> Product:
    a, divisor = _product(editor, node.inputs[0]), editor.scalar(node.inputs[1])
    if not divisor:
        return Product(1.0, node.outputs[:1], ())
    return Product(a.number / divisor, a.factors, (*a.nodes, node))


def _of_pow(editor: Editor, node: Node) -> Product:
    exponent = editor.scalar(node.inputs[1])
    if exponent not in (2.0, 3.0):
        return Product(1.0, node.outputs[:1], ())
    return Product(1.0, node.inputs[:1] * int(exponent), (node,))


_PRODUCTS: dict[str, Callable[[Editor, Node], Product]] = {"Mul": _of_mul, "Div": _of_div, "Pow": _of_pow}


def _one_plus(editor: Editor, name: str, op: str) -> tuple[Node, Node] | None:
    """Returns (what is added to 1, the sum) where the value is 1 plus the result of an op."""
    total = editor.maker(name, "Add")
    if total is None:
        return None
    for term, one in (total.inputs, total.inputs[::-1]):
        inner = editor.maker(term, op)
        if inner is not None and editor.scalar(one) == 1.0:
            return inner, total
    return None


def _is_erf_argument(editor: Editor, name: str, x: str, dtype: DType) -> tuple[Node, ...] | None:
    """Returns the nodes of x / √2."""
    found = _product(editor, name)
    fits = found.factors == (x,) and _close(found.number, math.sqrt(0.5), dtype)
    return found.nodes if fits else None


def _is_tanh_argument(editor: Editor, name: str, x: str, dtype: DType) -> tuple[Node, ...] | None:
    """Returns the nodes of √(2 / π) · (x + 0.044715 · x³), or of √(2 / π) · x · (1 + 0.044715 · x²)."""
    found = _product(editor, name)
    if not _close(found.number, math.sqrt(2 / math.pi), dtype):
        return None
    rest = [factor for factor in found.factors if factor != x]
    powers = len(found.factors) - len(rest)
    if len(rest) != 1 or powers > 1:
        return None
    total = editor.maker(rest[0], "Add")
    if total is None:
        return None
    for side in (0, 1):
        plain = total.inputs[1 - side]
        cubic = _product(editor, total.inputs[side])
        starts = editor.scalar(plain) == 1.0 if powers else plain == x
        if starts and cubic.factors == (x,) * (3 - powers) and _close(cubic.number, _CUBE, dtype):
            return (*found.nodes, *cubic.nodes, total)
    return None
