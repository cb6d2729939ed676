"""What is known before the program runs, and what is computed twice."""

from __future__ import annotations

import numpy as np

from umd_core.ir import Array, Node
from umd_core.ops import op_template
from umd_core.passes.editor import Editor
from umd_core.recipes import freeze

SMALL = 1 << 16
"""Bytes up to which a computed constant may be larger than what it is computed of."""
_COMPARED = 1 << 12
"""Bytes up to which constants are compared."""


def fold_constants(editor: Editor) -> int:
    """Computes nodes whose inputs are all constants, and Shape of anything; returns how many.

    What is larger than its inputs, and than `SMALL`, is left to the device.
    """
    folded: list[Node] = []
    for node in editor.graph.nodes:
        values = _shape_of(editor, node) if node.op == "Shape" else _computed(editor, node)
        if values is None:
            continue
        for name, value in zip(node.outputs, values, strict=False):
            if name:
                editor.graph.constants[name] = value
        folded.append(node)
    editor.drop(folded)
    editor.refresh()
    return len(folded)


def _shape_of(editor: Editor, node: Node) -> list[Array]:
    """Returns the shape of the node's input from `start` to `end`, as int64."""
    shape = editor.desc(node.inputs[0]).shape
    start, end = node.attributes.get("start") or 0, node.attributes.get("end")
    return [np.array(shape[start:end], np.int64)]


def _computed(editor: Editor, node: Node) -> list[Array] | None:
    """Returns the results of a node on the host; None where it does not depend on constants alone."""
    if editor.evaluate is None:
        return None
    required = sum(not result.optional for result in op_template(node.op).results)
    inputs = [editor.constant(name) if name else None for name in node.inputs]
    unknown = any(value is None for name, value in zip(node.inputs, inputs, strict=True) if name)
    if unknown or any(node.outputs[required:]):
        return None
    size = sum(editor.desc(name).byte_size for name in node.outputs if name)
    if size > max(SMALL, sum(value.nbytes for value in inputs if value is not None)):
        return None
    return [np.asarray(value) for value in editor.evaluate(node.op, inputs, node.attributes)]


def drop_dead(editor: Editor) -> int:
    """Leaves nodes out that no output needs; returns how many."""
    before = len(editor.graph.nodes)
    editor.refresh()
    return before - len(editor.graph.nodes)


def merge_equal(editor: Editor) -> int:
    """Lets nodes that compute the same be one, small constants that are equal too; returns how many nodes went.

    Source: Cocke, Global common subexpression elimination, 1970.
    """
    seen: dict[object, tuple[str, ...]] = {}
    same: dict[str, str] = {}
    for name, value in editor.graph.constants.items():
        if value.nbytes <= _COMPARED and value.dtype != object:
            first = seen.setdefault((value.dtype, value.shape, value.tobytes()), (name,))[0]
            if first != name:
                same[name] = first
    merged = 0
    for node in editor.graph.nodes:
        inputs = tuple([same.get(name, name) for name in node.inputs])
        attributes = freeze(node.attributes) if node.attributes else ()
        key = (node.op, inputs, attributes, tuple([bool(name) for name in node.outputs]))
        first_outputs = seen.setdefault(key, node.outputs)
        if first_outputs is not node.outputs:
            same.update((a, b) for a, b in zip(node.outputs, first_outputs, strict=True) if a)
            merged += 1
    for old, new in same.items():
        editor.replace(old, new)
    editor.refresh()
    return merged
