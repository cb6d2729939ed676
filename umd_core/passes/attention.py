"""Attention written out, softmax(scale · Q · Kᵀ + bias) · V, becomes one op, in training graphs with its gradient.

Source: Vaswani et al., Attention is all you need, arXiv:1706.03762
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from umd_core.ir import Attributes, Node
from umd_core.passes.attention_grad import Backward, backward_of
from umd_core.passes.attention_results import read_copies
from umd_core.passes.editor import Editor
from umd_core.passes.matrices import source_of, stretches, swapped, transposed
from umd_core.template import Shape, broadcast


class Forward(NamedTuple):
    """An attention that was found.

    Attributes:
        root: the product with V.
        chances: the probabilities, as the gradient of their softmax takes them.
        product: Q · Kᵀ.
        scale: what lies between that and the bias as a factor.
        bias: what is added, "" for nothing.
        guarded: which queries give 0, as umd.Attention has it.
        batch: leading axes of the scores, where the bias is added, else where the softmax is made.
        nodes: what it is made of, `root` left out.
    """

    root: Node
    chances: str
    product: Node
    scale: float
    bias: str
    guarded: int
    batch: Shape
    nodes: tuple[Node, ...]


def find_attention(editor: Editor) -> int:
    """Puts umd.Attention where it is written out and nobody else reads scores or probabilities; returns how often.

    Where it is the gradient alone that reads them, umd.AttentionGrad takes its place. Results differ by rounding alone.
    Gradients, those that were there too, read the result where it was copied to.
    """
    found = sum(_find(editor, node) for node in list(editor.graph.nodes) if node.op == "MatMul")
    editor.refresh()
    read_copies(editor)
    editor.refresh()
    return found


def _find(editor: Editor, root: Node) -> bool:
    forward = _forward(editor, root)
    if forward is None:
        return False
    if _are_private(editor, forward.nodes, [*forward.nodes, root]):
        return _put(editor, forward, None)
    backward = backward_of(editor, root, forward.product, forward.chances, forward.scale)
    if backward is None:
        return False
    inside = [*forward.nodes, *backward.nodes]
    return _are_private(editor, inside, [*inside, root, *backward.results]) and _put(editor, forward, backward)


def _are_private(editor: Editor, nodes: tuple[Node, ...] | list[Node], own: list[Node]) -> bool:
    return all(editor.is_private(output, own) for node in nodes for output in node.outputs if output)


# finding


def _forward(editor: Editor, root: Node) -> Forward | None:
    """Returns the attention that ends in a product; None where there is none."""
    chances = source_of(editor, root.inputs[0], factors=False)
    guard = _guard(editor, chances.name)
    if guard is None or not _is_last(editor, guard.softmax):
        return None
    softmax = guard.softmax
    between = source_of(editor, softmax.inputs[0], factors=False)
    scores, bias, total = _without_bias(editor, between.name)
    inner = source_of(editor, scores)
    product = editor.maker(inner.name, "MatMul")
    dtype = editor.desc(root.outputs[0]).dtype
    if product is None or not dtype.is_float or editor.desc(product.outputs[0]).dtype is not dtype:
        return None
    descs = [editor.desc(name) for name in (*product.inputs, *root.inputs)]
    if any(desc.rank < 2 or desc.dtype is not dtype for desc in descs):
        return None
    nodes = (*chances.nodes, softmax, *guard.nodes, *between.nodes, *total, *inner.nodes, product)
    shape = editor.desc(between.name if bias else softmax.inputs[0]).shape
    return Forward(root, chances.name, product, inner.factor, bias, guard.guarded, shape[:-2], nodes)


def _is_last(editor: Editor, softmax: Node) -> bool:
    rank = editor.desc(softmax.inputs[0]).rank
    return softmax.attributes.get("axis", -1) in (-1, rank - 1)


def _without_bias(editor: Editor, name: str) -> tuple[str, str, tuple[Node, ...]]:
    """Returns the summand that comes from a matrix product, the other one, and the sum; without one the value."""
    total = editor.maker(name, "Add")
    if total is None:
        return name, "", ()
    for scores, bias in (total.inputs, total.inputs[::-1]):
        found = editor.maker(source_of(editor, scores).name, "MatMul")
        if found is not None and editor.desc(scores).shape == editor.desc(name).shape:
            return scores, bias, (total,)
    return name, "", ()


class _Guard(NamedTuple):
    """A softmax of which some rows become 0: itself, which rows as umd.Attention has it, and the other nodes."""

    softmax: Node
    guarded: int
    nodes: tuple[Node, ...]


def _guard(editor: Editor, name: str) -> _Guard | None:
    """Returns the softmax behind Where(a row is dead, 0, softmax); None for anything else.

    torch asks whether every score is -inf, its ONNX exporter whether the softmax is NaN.
    """
    where = editor.maker(name, "Where")
    softmax = editor.maker(name, "Softmax") if where is None else editor.maker(where.inputs[2], "Softmax")
    if where is None or softmax is None:
        return None if softmax is None else _Guard(softmax, 0, ())
    broken = editor.maker(where.inputs[0], "IsNaN")
    shapes = [editor.desc(node.outputs[0]).shape for node in (where, softmax)]
    if not _is_zero(editor, where.inputs[1]) or shapes[0] != shapes[1]:
        return None
    if broken is not None:
        return _Guard(softmax, 2, (where, broken)) if broken.inputs[0] == softmax.outputs[0] else None
    nodes, value = [where], where.inputs[0]
    for op in ("Not", "ReduceMax", "Not", "Equal"):
        while (cast := editor.maker(value, "Cast")) is not None:
            nodes.append(cast)
            value = cast.inputs[0]
        node = editor.maker(value, op)
        if node is None or (op == "ReduceMax" and not _is_over_last(editor, node)):
            return None
        nodes.append(node)
        value = node.inputs[0]
    sides = nodes[-1].inputs
    ask = any(a == softmax.inputs[0] and editor.scalar(b) == -math.inf for a, b in (sides, sides[::-1]))
    return _Guard(softmax, 1, tuple(nodes)) if ask else None


def _is_zero(editor: Editor, name: str) -> bool:
    node = editor.maker(name, "Expand")
    return editor.scalar(node.inputs[0] if node is not None else name) == 0.0


def _is_over_last(editor: Editor, node: Node) -> bool:
    given = next(iter(node.inputs[1:]), "")
    axes = editor.constant(given) if given else None
    rank = editor.desc(node.inputs[0]).rank
    last = axes is not None and [int(axis) % rank for axis in axes.reshape(-1)] == [rank - 1]
    return last and bool(node.attributes.get("keepdims", True))


# putting


class _Fitted(NamedTuple):
    """An operand with the batch axes of the scores: a value, the shape to bring it to if any, and a constant factor."""

    name: str
    shape: Shape | None
    factor: float


def _fitted(editor: Editor, name: str, product: Node, batch: Shape, *, factors: bool, whole: bool) -> _Fitted | None:
    """Returns an operand of a product so that its batch axes are, or broadcast to, those given; None if they cannot.

    Args:
        editor: the graph.
        name: the operand.
        product: the product that it is an operand of.
        batch: leading axes of the scores.
        factors: whether constant factors may be left out of it.
        whole: whether broadcasting is not enough.
    """
    level, best = editor.desc(product.outputs[0]).shape[:-2], None
    for stretch in stretches(editor, name, factors=factors):
        own = editor.desc(stretch.name).shape[:-2]
        broadcasts = not whole and not stretch.reshaped and level == batch and broadcast(own, batch) == batch
        if own == batch or broadcasts:
            best = _Fitted(stretch.name, None, stretch.factor)
    if best is None and editor.desc(name).shape[:-2] == level and math.prod(level) == math.prod(batch):
        return _Fitted(name, (*batch, *editor.desc(name).shape[-2:]), 1.0)
    return best


class _Operands(NamedTuple):
    """Q, K and V as the op takes them.

    Attributes:
        fitted: the three.
        scalings: (gradient times a constant factor that is the op's now, the gradient).
    """

    fitted: list[_Fitted]
    scalings: list[tuple[str, str]]


def _operands(editor: Editor, forward: Forward, backward: Backward | None) -> _Operands | None:
    """Returns the operands of the op; None where their axes cannot be brought in place.

    In a training graph a constant factor is left out only where the gradient has it too.
    """
    product, found = forward.product, _Operands([], [])
    sources = ((product.inputs[0], product), (product.inputs[1], product), (forward.root.inputs[1], forward.root))
    for which, (name, node) in enumerate(sources):
        fit = functools.partial(_fitted, editor, name, node, forward.batch, whole=backward is not None)
        fitted = fit(factors=node is product)
        if backward is not None and fitted is not None and fitted.factor != 1:
            scalings = backward.scalings(editor, which, fitted.factor)
            fitted = fit(factors=False) if scalings is None else fitted
            found.scalings.extend(scalings or ())
        if fitted is None:
            return None
        found.fitted.append(fitted)
    return found


def _put(editor: Editor, forward: Forward, backward: Backward | None) -> bool:
    """Puts the op, or both, in the place of what was found; returns whether its operands allow it."""
    root, batch = forward.root, forward.batch
    operands = _operands(editor, forward, backward)
    out = editor.desc(root.outputs[0]).shape
    if operands is None or math.prod(out[:-2]) != math.prod(batch) or not _bias_fits(editor, forward):
        return False
    q, k, v = operands.fitted
    inputs = [_value(editor, root, q), _value(editor, root, k, flip=True), _value(editor, root, v)]
    attributes = {"scale": forward.scale * q.factor * k.factor, "guarded": forward.guarded}
    bias = [forward.bias] * bool(forward.bias)
    made = editor.add(root, "umd.Attention", [*inputs, *bias], attributes, 1 if backward is None else 2)
    _put_reshape(editor, root, made[0])
    if backward is not None:
        _put_gradients(editor, backward, (*batch, *out[-2:]), [*inputs, *made, *bias], attributes)
    for scaled in operands.scalings:
        editor.replace(*scaled)
    return True


def _bias_fits(editor: Editor, forward: Forward) -> bool:
    scores = (*forward.batch, *editor.desc(forward.product.outputs[0]).shape[-2:])
    return not forward.bias or broadcast(editor.desc(forward.bias).shape, scores) == scores


def _value(editor: Editor, before: Node, fitted: _Fitted, *, flip: bool = False) -> str:
    """Returns an operand with its batch axes in place, its matrices transposed where they are to be."""
    name = fitted.name
    if fitted.shape is not None:
        (name,) = editor.add(before, "Reshape", [name, _shape(editor, fitted.shape)], _AS_IT_IS)
        return _flipped(editor, before, name, len(fitted.shape)) if flip else name
    if not flip:
        return name
    source, axes = transposed(editor, name)
    if axes == tuple(range(len(axes))):
        return source
    return editor.add(before, "Transpose", [source], {"perm": axes})[0]


def _put_gradients(
    editor: Editor, backward: Backward, shape: Shape, operands: list[str], attributes: Attributes
) -> None:
    own = {id(node) for node in backward.results}
    first = next(node for node in editor.graph.nodes if id(node) in own)
    dy = backward.dy
    if editor.desc(dy).shape != shape:
        (dy,) = editor.add(first, "Reshape", [dy, _shape(editor, shape)], _AS_IT_IS)
    grads = editor.add(first, "umd.AttentionGrad", [dy, *operands], attributes, 3)
    for node, which, flip in backward.gradients:
        grad = _flipped(editor, node, grads[which], len(shape)) if flip else grads[which]
        _put_reshape(editor, node, grad)


def _flipped(editor: Editor, before: Node, name: str, rank: int) -> str:
    return editor.add(before, "Transpose", [name], {"perm": swapped(rank)})[0]


def _put_reshape(editor: Editor, node: Node, name: str) -> None:
    """Puts a value, in the shape of a node's result, in the place of the node."""
    editor.put(node, "Reshape", [name, _shape(editor, editor.desc(node.outputs[0]).shape)], _AS_IT_IS)


_AS_IT_IS = {"allowzero": True}


def _shape(editor: Editor, shape: Shape) -> str:
    return editor.add_constant(np.array(shape, np.int64))
