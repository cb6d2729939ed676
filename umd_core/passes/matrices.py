"""What passes over matrix products look through: transposes, reshapes of the leading axes, constant factors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from umd_core.ir import Node
from umd_core.passes.editor import Editor


class Stretch(NamedTuple):
    """A value that another one comes from, by reshapes of the leading axes and constant factors alone.

    Attributes:
        name: the value.
        factor: what the other one is this times.
        reshaped: whether the leading axes differ.
        nodes: what lies between, the last one first.
    """

    name: str
    factor: float
    reshaped: bool
    nodes: tuple[Node, ...]


def stretches(editor: Editor, name: str, *, factors: bool = True) -> Iterator[Stretch]:
    """Yields the value itself and what it comes from, nearest first; without `factors` by reshapes alone."""
    found = Stretch(name, 1.0, False, ())
    while True:
        yield found
        node = editor.maker(found.name)
        if node is None:
            return
        scaled = scaling(editor, node) if factors else None
        if scaled is not None:
            source, factor = scaled
            found = Stretch(source, found.factor * factor, found.reshaped, (*found.nodes, node))
        elif _keeps_matrices(editor, node):
            found = Stretch(node.inputs[0], found.factor, True, (*found.nodes, node))
        else:
            return


def source_of(editor: Editor, name: str, *, factors: bool = True) -> Stretch:
    """Returns the furthest of `stretches`."""
    *_, last = stretches(editor, name, factors=factors)
    return last


def _keeps_matrices(editor: Editor, node: Node) -> bool:
    """Returns whether a node reshapes leading axes and leaves the last two as they are."""
    if node.op != "Reshape":
        return False
    before, after = editor.desc(node.inputs[0]).shape, editor.desc(node.outputs[0]).shape
    return len(before) >= 2 and len(after) >= 2 and before[-2:] == after[-2:]


def scaling(editor: Editor, node: Node) -> tuple[str, float] | None:
    """Returns what a node multiplies by a number, and the number; None where it does anything else."""
    if node.op not in ("Mul", "Div"):
        return None
    for side in (0,) if node.op == "Div" else (0, 1):
        source, number = node.inputs[side], editor.scalar(node.inputs[1 - side])
        if number is None or editor.desc(source).shape != editor.desc(node.outputs[0]).shape:
            continue
        factor = number if node.op == "Mul" else 1 / number if number else math.inf
        return (source, factor) if math.isfinite(factor) else None
    return None


def swapped(rank: int) -> tuple[int, ...]:
    """Returns the permutation that exchanges the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


def untransposed(editor: Editor, name: str) -> tuple[str, tuple[int, ...]]:
    """Returns the value that this one is a permutation of, and the permutation; the value itself where it is none."""
    axes = tuple(range(editor.desc(name).rank))
    while (node := editor.maker(name, "Transpose")) is not None:
        given = node.attributes.get("perm")
        inner = tuple(given) if given is not None else tuple(range(len(axes)))[::-1]
        axes = tuple(inner[axis] % len(axes) for axis in axes)
        name = node.inputs[0]
    return name, axes


def transposed(editor: Editor, name: str) -> tuple[str, tuple[int, ...]]:
    """Returns the value, and the permutation of it, that is this one with its last two axes exchanged."""
    source, axes = untransposed(editor, name)
    return source, tuple(axes[axis] for axis in swapped(len(axes)))


def are_transposed(editor: Editor, a: str, b: str) -> bool:
    """Returns whether two values are each other's transposed matrices."""
    return untransposed(editor, a) == transposed(editor, b)


def are_same(editor: Editor, a: str, b: str) -> bool:
    """Returns whether two values hold the same in the same order."""
    return untransposed(editor, a) == untransposed(editor, b)


def is_swap(editor: Editor, node: Node) -> bool:
    """Returns whether a node exchanges the last two axes and nothing else."""
    if node.op != "Transpose":
        return False
    rank = editor.desc(node.inputs[0]).rank
    given = node.attributes.get("perm")
    axes = tuple(range(rank))[::-1] if given is None else tuple(axis % rank for axis in given)
    return rank >= 2 and axes == swapped(rank)
