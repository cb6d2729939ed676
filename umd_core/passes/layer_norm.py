"""Layer normalisation written out becomes the op.

Source: Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from umd_core.ir import Node
from umd_core.passes.editor import Editor
from umd_core.template import broadcast


class Normalised(NamedTuple):
    """(x - mean) / √(variance + epsilon) over the axes from `axis` on, and the nodes that it is made of."""

    x: str
    axis: int
    epsilon: float
    nodes: tuple[Node, ...]


def find_layer_norm(editor: Editor) -> int:
    """Puts LayerNormalization where it is written out, scale and bias with it; returns how often.

    Results differ by rounding alone.
    """
    nodes = editor.graph.nodes if editor.has("Sqrt") else []
    found = sum(_find(editor, node) for node in nodes if node.op in ("Div", "Mul"))
    editor.refresh()
    return found


def _find(editor: Editor, node: Node) -> bool:
    match = _normalised(editor, node)
    if match is None or not all(editor.is_private(n.outputs[0], [*match.nodes, node]) for n in match.nodes):
        return False
    inner = editor.desc(match.x).shape[match.axis :]
    root, scale = _followed(editor, node, "Mul", inner)
    root, bias = _followed(editor, root, "Add", inner)
    if not scale:
        scale = editor.add_constant(np.ones(1, editor.desc(match.x).dtype.numpy))
    inputs = [match.x, scale, *([bias] if bias else [])]
    editor.put(root, "LayerNormalization", inputs, {"axis": match.axis, "epsilon": match.epsilon})
    return True


def _followed(editor: Editor, node: Node, op: str, inner: tuple[int, ...]) -> tuple[Node, str]:
    """Returns the only reader of a node, and what it takes beside, where that is one for each normalised element.

    Otherwise the node itself, and nothing.
    """
    value = node.outputs[0]
    reader = editor.only_reader(value)
    if reader is None or reader.op != op:
        return node, ""
    other = reader.inputs[1 - reader.inputs.index(value)]
    fits = broadcast(editor.desc(other).shape, inner) == inner
    return (reader, other) if fits else (node, "")


def _normalised(editor: Editor, node: Node) -> Normalised | None:
    parts = _centred_and_root(editor, node)
    if parts is None:
        return None
    centred, root, nodes = parts
    total = editor.maker(root.inputs[0], "Add")
    if total is None:
        return None
    mean, x = editor.maker(centred.inputs[1], "ReduceMean"), centred.inputs[0]
    axis = None if mean is None or mean.inputs[0] != x else _axis(editor, mean)
    for side in (0, 1):
        epsilon = editor.scalar(total.inputs[side])
        variance = editor.maker(total.inputs[1 - side], "ReduceMean")
        if epsilon is None or variance is None or mean is None or axis is None or axis != _axis(editor, variance):
            continue
        square = _square(editor, variance.inputs[0], centred.outputs[0])
        if square is not None:
            return Normalised(x, axis, epsilon, (*nodes, centred, root, total, mean, variance, square))
    return None


def _centred_and_root(editor: Editor, node: Node) -> tuple[Node, Node, tuple[Node, ...]] | None:
    """Returns the difference, the root and what lies between, of difference / root or of difference · (1 / root)."""
    for side in (0,) if node.op == "Div" else (0, 1):
        centred = editor.maker(node.inputs[side], "Sub")
        other = editor.maker(node.inputs[1 - side], "Sqrt" if node.op == "Div" else "Reciprocal")
        if centred is None or other is None:
            continue
        root = other if node.op == "Div" else editor.maker(other.inputs[0], "Sqrt")
        if root is not None:
            return centred, root, () if root is other else (other,)
    return None


def _square(editor: Editor, name: str, base: str) -> Node | None:
    """Returns the node that makes base², None when the value is anything else."""
    node = editor.maker(name, "Pow", "Mul")
    if node is None or node.inputs[0] != base:
        return None
    squares = editor.scalar(node.inputs[1]) == 2.0 if node.op == "Pow" else node.inputs[1] == base
    return node if squares else None


def _axis(editor: Editor, node: Node) -> int | None:
    """Returns the axis from which on a ReduceMean runs over all; None when it is another one, or drops them."""
    rank = editor.desc(node.inputs[0]).rank
    axes = editor.constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    if axes is None or not axes.size or not (node.attributes.get("keepdims", True)):
        return None
    first = rank - axes.size
    return first if sorted(int(axis) % rank for axis in axes.reshape(-1)) == list(range(first, rank)) else None
