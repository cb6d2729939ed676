"""Constant factors and summands of each channel go into the convolution before them: batch norm, bias, scale."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from umd_core.ir import Array, Node
from umd_core.passes.editor import Editor


class Affine(NamedTuple):
    """y = x · scale + shift in each channel: two (channels,) arrays of float64."""

    scale: Array
    shift: Array


def fold_into_convolution(editor: Editor) -> int:
    """Folds what follows a Conv with constant weights into these; returns how many nodes went.

    The weights are multiplied in float64 and rounded once, so that results differ by rounding: (w · a) · x is not
    (w · x) · a. Each element stays within a few epsilons of the sum of the absolute values of what is added up for it.
    """
    total = 0
    while True:
        changed = sum(_fold(editor, node) for node in editor.graph.nodes if node.op in _AFFINE)
        editor.refresh()
        if not changed:
            return total
        total += changed


def _fold(editor: Editor, node: Node) -> bool:
    side = next((i for i, name in enumerate(node.inputs[:2]) if editor.maker(name, "Conv")), None)
    if side is None or any(node.outputs[1:]):
        return False
    conv = editor.maker(node.inputs[side], "Conv")
    if conv is None or not editor.is_private(conv.outputs[0], [node]):
        return False
    weight = editor.constant(conv.inputs[1])
    given = next(iter(conv.inputs[2:]), "")
    bias = editor.constant(given) if given else None
    if weight is None or (given and bias is None) or weight.dtype == object:
        return False
    with np.errstate(all="ignore"):
        affine = _affine(editor, node, side, weight.shape[0])
    if affine is None or not np.isfinite(affine.scale).all():
        return False
    if editor.desc(node.outputs[0]).shape != editor.desc(conv.outputs[0]).shape:
        return False
    before = np.zeros(weight.shape[0]) if bias is None else bias.astype(np.float64)
    factors = affine.scale.reshape((-1,) + (1,) * (weight.ndim - 1))
    with np.errstate(over="ignore"):
        scaled = np.empty_like(weight)
        np.multiply(weight, factors, out=scaled, dtype=np.float64, casting="unsafe")  # no array of float64 beside it
        shifted = (before * affine.scale + affine.shift).astype(weight.dtype)
    names = [editor.add_constant(value) for value in (scaled, shifted)]
    editor.put(node, "Conv", [conv.inputs[0], *names], conv.attributes)
    return True


def _affine(editor: Editor, node: Node, side: int, channels: int) -> Affine | None:
    """Returns what a node does to each channel of its input `side`; None when it is anything else."""
    if node.op == "BatchNormalization":
        return _batch_norm(editor, node)
    number = _by_channel(editor, node.inputs[1 - side], editor.desc(node.inputs[side]).rank, channels)
    if number is None:
        return None
    one, none = np.ones(channels), np.zeros(channels)
    if node.op == "Add":
        return Affine(one, number)
    if node.op == "Mul":
        return Affine(number, none)
    if side:  # number - x, number / x
        return Affine(-one, number) if node.op == "Sub" else None
    return Affine(one, -number) if node.op == "Sub" else Affine(1 / number, none) if number.all() else None


def _batch_norm(editor: Editor, node: Node) -> Affine | None:
    values = [editor.constant(name) for name in node.inputs[1:5]]
    known = [value.astype(np.float64) for value in values if value is not None]
    if node.attributes.get("training_mode") or len(known) != len(values):
        return None
    scale, bias, mean, variance = known
    factor = scale / np.sqrt(variance + _attribute(node, "epsilon", 1e-5))
    return Affine(factor, bias - mean * factor)


def _attribute(node: Node, name: str, default: float) -> float:
    value = node.attributes.get(name)
    return default if value is None else float(value)


def _by_channel(editor: Editor, name: str, rank: int, channels: int) -> Array | None:
    """Returns a constant that broadcasts over (N, C, …) as one number a channel; None for anything else."""
    value = editor.constant(name)
    if value is None or value.ndim > rank or value.dtype == object:
        return None
    shape = (1,) * (rank - value.ndim) + value.shape
    own = shape[1]
    if math.prod(shape) != own or own not in (1, channels):
        return None
    return np.broadcast_to(value.astype(np.float64).reshape(-1), (channels,))


_AFFINE = ("BatchNormalization", "Add", "Sub", "Mul", "Div")
