"""What the gradient of attention reads of its result: the copy that others keep too, so that one of both can go."""

from __future__ import annotations

import numpy as np

from umd_core.ir import Node
from umd_core.passes.editor import Editor

_Y = 4


def read_copies(editor: Editor) -> None:
    """Lets gradients of attention read its result where it was copied with all heads of a query side by side.

    The projection behind it keeps that copy for a gradient of its own. Reading the copy moves nothing.
    """
    nodes = list(editor.graph.nodes)
    for at, node in enumerate(nodes):
        if node.op == "umd.AttentionGrad":
            found = _copy_of(editor, node.inputs[_Y], nodes[:at])
            if found is not None:
                _read(editor, node, *found)


def _copy_of(editor: Editor, name: str, before: list[Node]) -> tuple[Node, Node] | None:
    """Returns the nodes that transpose a value and then bring it into another shape; None where there are none."""
    shape, waiting = editor.desc(name).shape, [name]
    while waiting:
        value = waiting.pop()
        for node in editor.readers(value):
            if node.op == "Reshape":
                waiting.append(node.outputs[0])
            elif node.op == "Transpose" and editor.desc(value).shape == shape:
                copies = [reader for reader in editor.readers(node.outputs[0]) if reader.op == "Reshape"]
                known = [copy for copy in copies if any(copy is other for other in before)]
                if known:
                    return node, known[0]
    return None


def _read(editor: Editor, node: Node, transpose: Node, copy: Node) -> None:
    """Puts a gradient that reads the copy, with its axes as they were, in the place of one."""
    moved = editor.desc(transpose.outputs[0]).shape
    rank = len(moved)
    given = transpose.attributes.get("perm")
    axes = tuple(axis % rank for axis in given) if given is not None else tuple(range(rank))[::-1]
    shape = editor.add_constant(np.array(moved, np.int64))
    (apart,) = editor.add(node, "Reshape", [copy.outputs[0], shape], {"allowzero": True})
    back = tuple(int(axis) for axis in np.argsort(axes))
    (y,) = editor.add(node, "Transpose", [apart], {"perm": back})
    inputs = [*node.inputs[:_Y], y, *node.inputs[_Y + 1 :]]
    for old, new in zip(
        node.outputs, editor.add(node, node.op, inputs, node.attributes, len(node.outputs)), strict=True
    ):
        if old:
            editor.replace(old, new)
