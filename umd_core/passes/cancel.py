"""Nodes that undo each other or do nothing: identities, reshapes of reshapes, transposes of transposes, casts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from umd_core.dtypes import DType, bfloat16, float16
from umd_core.ir import Node
from umd_core.passes.editor import Editor

RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def cancel(editor: Editor) -> int:
    """Removes what does nothing and joins neighbours that move or convert the same data; returns how many nodes."""
    total = 0
    while True:
        changed = sum(_RULES[node.op](editor, node) for node in editor.graph.nodes if node.op in _RULES)
        editor.refresh()
        if not changed:
            return total
        total += changed


def _skip(editor: Editor, node: Node) -> bool:
    """Lets the readers of a node take its first input."""
    editor.replace(node.outputs[0], node.inputs[0])
    return True


def _reshape(editor: Editor, node: Node) -> bool:
    """A reshape of a reshape is one from the first shape to the last, and nothing when they are the same."""
    shape = editor.desc(node.outputs[0]).shape
    if editor.desc(node.inputs[0]).shape == shape:
        return _skip(editor, node)
    inner = editor.maker(node.inputs[0], *RESHAPES)
    if inner is None:
        return False
    if editor.desc(inner.inputs[0]).shape == shape:
        editor.replace(node.outputs[0], inner.inputs[0])
        return True
    target = editor.add_constant(np.array(shape, np.int64))
    editor.put(node, "Reshape", [inner.inputs[0], target], {"allowzero": True})
    return True


def _permutation(editor: Editor, node: Node) -> tuple[int, ...]:
    given = node.attributes.get("perm")
    rank = editor.desc(node.inputs[0]).rank
    return tuple(axis % rank for axis in given) if given is not None else tuple(range(rank))[::-1]


def _transpose(editor: Editor, node: Node) -> bool:
    """A transpose of a transpose is one, and nothing when the axes end where they began."""
    axes, source = _permutation(editor, node), node.inputs[0]
    inner = editor.maker(source, "Transpose")
    if inner is not None:
        first = _permutation(editor, inner)
        axes, source = tuple(first[axis] for axis in axes), inner.inputs[0]
    if axes == tuple(range(len(axes))):
        editor.replace(node.outputs[0], source)
        return True
    if inner is None:
        return False
    editor.put(node, "Transpose", [source], {"perm": axes})
    return True


def is_exact(source: DType, target: DType) -> bool:
    """Returns whether every number of one type is a number of the other."""
    if source in (bfloat16, float16) or target in (bfloat16, float16):
        return target.is_float and (target.size > source.size or source is target) and source.is_float
    return bool(np.can_cast(source.numpy, target.numpy, "safe")) and not (
        source.is_integer and target.is_float and source.size >= target.size
    )


def _cast(editor: Editor, node: Node) -> bool:
    """A cast of a lossless cast is a cast of the first, and nothing when it leads back to where it came from."""
    target = editor.desc(node.outputs[0]).dtype
    middle = editor.desc(node.inputs[0]).dtype
    if middle is target:
        return _skip(editor, node)
    inner = editor.maker(node.inputs[0], "Cast")
    if inner is None:
        return False
    source = editor.desc(inner.inputs[0]).dtype
    if not is_exact(source, middle):
        return False
    if source is target:
        editor.replace(node.outputs[0], inner.inputs[0])
        return True
    # an integer beyond the target's range wraps, a float saturates: both steps must start from the same kind
    if source.is_float != middle.is_float or source.kind == "b":
        return False
    editor.put(node, "Cast", [inner.inputs[0]], node.attributes)
    return True


def _expand(editor: Editor, node: Node) -> bool:
    """Expanding to the shape that is there already does nothing."""
    same = editor.desc(node.inputs[0]).shape == editor.desc(node.outputs[0]).shape
    return same and _skip(editor, node)


def _concat(editor: Editor, node: Node) -> bool:
    """Joining one tensor does nothing."""
    return len(node.inputs) == 1 and _skip(editor, node)


def _neutral(number: float, sides: tuple[int, ...]) -> Callable[[Editor, Node], bool]:
    """Returns the rule for an op that does nothing when the input of a side is a constant full of a number."""

    def rule(editor: Editor, node: Node) -> bool:
        for side in sides:
            value = editor.constant(node.inputs[side])
            other = node.inputs[1 - side]
            if value is None or editor.desc(other).shape != editor.desc(node.outputs[0]).shape:
                continue
            if (value == number).all() and not np.signbit(value).any():
                editor.replace(node.outputs[0], other)
                return True
        return False

    return rule


_RULES: dict[str, Callable[[Editor, Node], bool]] = {
    "Identity": _skip,
    "Transpose": _transpose,
    "Cast": _cast,
    "Expand": _expand,
    "Concat": _concat,
    "Mul": _neutral(1, (0, 1)),
    "Div": _neutral(1, (1,)),
    "Sub": _neutral(0, (1,)),
    **dict.fromkeys(RESHAPES, _reshape),
}
