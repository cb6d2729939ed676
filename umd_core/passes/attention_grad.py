"""The gradient of an attention that is written out: what reads its probabilities, and what is made of that."""

from __future__ import annotations

import math
from typing import NamedTuple

from umd_core.ir import Node
from umd_core.passes.editor import Editor
from umd_core.passes.matrices import are_same, are_transposed, is_swap, scaling, source_of, stretches

_Q, _K, _V = range(3)


class Backward(NamedTuple):
    """The gradients of an attention.

    Attributes:
        dy: gradient of the attention's result.
        gradients: (product, which of Q, K and V it is the gradient of, whether it is transposed).
        nodes: what they are made of, themselves left out.
    """

    dy: str
    gradients: tuple[tuple[Node, int, bool], ...]
    nodes: tuple[Node, ...]

    @property
    def results(self) -> list[Node]:
        """The products that are the gradients."""
        return [node for node, _, _ in self.gradients]

    def scalings(self, editor: Editor, which: int, factor: float) -> list[tuple[str, str]] | None:
        """Returns (product, what it multiplies) where the gradient of Q or K is given a constant factor of theirs.

        Empty where nobody wants that gradient; None where somebody reads it without the factor.
        """
        products = [node for node, at, _ in self.gradients if at == which]
        found = [_scaled(editor, node.outputs[0], factor) for node in products]
        return None if None in found else [pair for pair in found if pair is not None]


class _Use(NamedTuple):
    """A node that reads a value, or the value with axes reshaped, matrices transposed, or times a number."""

    node: Node
    name: str
    flipped: bool
    factor: float


def backward_of(editor: Editor, root: Node, product: Node, chances: str, scale: float) -> Backward | None:
    """Returns the gradients of softmax(scale · product) · V; None where probabilities are read by anything else."""
    uses, nodes = _uses(editor, chances)
    others = [use for use in uses if use.node is not root]
    softmax = [use.node for use in others if _is_softmax_grad(editor, use)]
    values = [use for use in others if use.node.op == "MatMul" and use.flipped and use.node.inputs[0] == use.name]
    if len(softmax) != 1 or len(values) > 1 or len(softmax) + len(values) != len(others):
        return None
    dy, between = _result_gradient(editor, softmax[0], root)
    if not dy or any(use.factor != 1 or not are_same(editor, use.node.inputs[1], dy) for use in values):
        return None
    slopes, more = _uses(editor, softmax[0].outputs[0])
    found = [_slope_use(editor, use, product, scale) for use in slopes]
    gradients = [(use.node, _V, False) for use in values] + [gradient for gradient in found if gradient is not None]
    which = [at for _, at, _ in gradients]
    if len(set(which)) != len(which) or None in found:
        return None
    return Backward(dy, tuple(gradients), (*nodes, softmax[0], *between, *more))


def _uses(editor: Editor, name: str) -> tuple[list[_Use], list[Node]]:
    """Returns who reads a value, through what only moves or scales it, and what that is."""
    uses: list[_Use] = []
    nodes: list[Node] = []
    waiting = [(name, False, 1.0)]
    while waiting:
        value, flipped, factor = waiting.pop()
        for node in editor.readers(value):
            moved = _moved(editor, node, value)
            if moved is None:
                uses.append(_Use(node, value, flipped, factor))
            else:
                nodes.append(node)
                waiting.append((node.outputs[0], flipped != is_swap(editor, node), factor * moved))
    return uses, nodes


def _moved(editor: Editor, node: Node, name: str) -> float | None:
    """Returns the number that a node multiplies a value by while it moves it; None where it does more than that."""
    if is_swap(editor, node):
        return 1.0
    step = next((stretch for stretch in stretches(editor, node.outputs[0]) if stretch.nodes), None)
    return step.factor if step is not None and step.name == name else None


def _scaled(editor: Editor, name: str, factor: float) -> tuple[str, str] | None:
    """Returns a value times a number, and that value, which is another one moved; None where others read it too."""
    while (node := editor.only_reader(name)) is not None:
        found = scaling(editor, node)
        if found is not None:
            return (node.outputs[0], name) if math.isclose(found[1], factor, rel_tol=1e-6) else None
        if node.op not in ("Reshape", "Transpose"):
            return None
        name = node.outputs[0]
    return None


def _is_softmax_grad(editor: Editor, use: _Use) -> bool:
    node = use.node
    if node.op != "umd.SoftmaxGrad" or use.flipped or use.factor != 1 or node.inputs[1] != use.name:
        return False
    rank = editor.desc(use.name).rank
    return node.inputs[0] != use.name and node.attributes.get("axis", -1) in (-1, rank - 1)


def _result_gradient(editor: Editor, softmax: Node, root: Node) -> tuple[str, tuple[Node, ...]]:
    """Returns the gradient of the attention's result, of which dY · Vᵀ is made, and what lies between; "" for none."""
    inner = source_of(editor, softmax.inputs[0], factors=False)
    product = editor.maker(inner.name, "MatMul")
    if product is None or not are_transposed(editor, product.inputs[1], root.inputs[1]):
        return "", ()
    if editor.desc(product.inputs[0]).shape != editor.desc(root.outputs[0]).shape:
        return "", ()
    return product.inputs[0], (*inner.nodes, product)


def _slope_use(editor: Editor, use: _Use, product: Node, scale: float) -> tuple[Node, int, bool] | None:
    """Returns which gradient a product with the gradient of the scores is; None where it is none."""
    node, (left, right) = use.node, product.inputs
    if node.op != "MatMul" or not math.isclose(use.factor, scale, rel_tol=1e-6):
        return None
    a, b = node.inputs
    if a == use.name and not use.flipped and are_transposed(editor, b, right):
        return node, _Q, False
    if a == use.name and use.flipped and are_same(editor, b, left):
        return node, _K, False
    if b == use.name and not use.flipped and are_transposed(editor, a, left):
        return node, _K, True
    return None
