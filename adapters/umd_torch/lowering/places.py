"""Indices of ops that do not count from the end: torch refuses those below zero, the kernels would take them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from umd_core import dtypes
from umd_core.ir import Node
from umd_torch.builder import Builder, Value

SIGNLESS = (1 << 63) - 1
"""Every bit of an int64 but its sign."""


def from_start(b: Builder, index: Value) -> Value:
    """Returns int64 indices of which those below zero are beyond any extent, so that the kernels refuse them too.

    Their sign bit is cleared, and `IndexRangeError` sets it again. Where the indices are known, or cannot be below
    zero, they are returned as they are.
    """
    if index.dtype.kind != "i":
        return index
    if _is_from_zero(b, index.name):
        if b.record is not None:
            b.record.is_repeatable = False  # for other sizes the indices may be made by other ops
        return index
    return b.op("BitwiseAnd", b.cast(index, dtypes.int64), b.scalar(SIGNLESS, dtypes.int64))


def _is_from_zero(b: Builder, name: str) -> bool:
    """Returns whether nothing in a value is below zero, as far as the ops that make it show."""
    asked = {name}
    for node in reversed(b.graph.nodes):
        if not asked.isdisjoint(b.graph.inputs):
            return False
        made = asked.intersection(node.outputs)
        if made:
            needed = _RULES[node.op](b, node, made) if node.op in _RULES else None
            if needed is None:
                return False
            asked = (asked - made).union(needed)
    return all(_is_known_from_zero(b, name) for name in asked)


def _is_known_from_zero(b: Builder, name: str) -> bool:
    value = b.graph.constants.get(name)
    return value is not None and bool((np.asarray(value) >= 0).all())


Needed = tuple[str, ...] | None
"""Names of inputs that must not be below zero so that a node's results are not; None where nothing is sure."""


def _nothing(b: Builder, node: Node, made: set[str]) -> Needed:
    return ()


def _first(b: Builder, node: Node, made: set[str]) -> Needed:
    return node.inputs[:1]


def _all(b: Builder, node: Node, made: set[str]) -> Needed:
    return node.inputs


def _choices(b: Builder, node: Node, made: set[str]) -> Needed:
    return node.inputs[1:]


def _places(b: Builder, node: Node, made: set[str]) -> Needed:
    """The second result of TopK says where the elements of the first are."""
    return node.inputs[:1] if node.outputs[0] in made else ()


def _start_and_step(b: Builder, node: Node, made: set[str]) -> Needed:
    return node.inputs[0], node.inputs[2]


def _any_known(b: Builder, node: Node, made: set[str]) -> Needed:
    """Of the larger of two numbers, and of the bits that two have in common, one that is known is enough."""
    known = [name for name in node.inputs if _is_known_from_zero(b, name)]
    return tuple(known[:1]) or node.inputs


def _lower_bound(b: Builder, node: Node, made: set[str]) -> Needed:
    return node.inputs[1:2]


def _cast(b: Builder, node: Node, made: set[str]) -> Needed:
    """An int64 holds what narrower integers and truth values hold, and of floats the sign at least."""
    if node.attributes["to"] is not dtypes.int64:
        return None
    source = b.descs.get(node.inputs[0]) or b.graph.inputs.get(node.inputs[0])
    if source is not None and source.dtype in (dtypes.bool_, dtypes.uint8, dtypes.uint16, dtypes.uint32):
        return ()
    return node.inputs[:1] if source is not None and source.dtype is not dtypes.uint64 else None


def _drawn(b: Builder, node: Node, made: set[str]) -> Needed:
    return () if node.attributes.get("low", 0) >= 0 else None


_LAYOUT = ("Reshape", "Transpose", "Expand", "Slice", "Identity", "umd.Flip", "Gather", "GatherElements", "Tile")
_TRUTH = (
    "Equal", "umd.NotEqual", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN",
    "IsInf",
)  # fmt: skip
_RULES: dict[str, Callable[[Builder, Node, set[str]], Needed]] = {
    **dict.fromkeys(_LAYOUT, _first),
    **dict.fromkeys((*_TRUTH, "ArgMax", "ArgMin"), _nothing),
    **dict.fromkeys(("Concat", "Min"), _all),
    **dict.fromkeys(("Max", "BitwiseAnd"), _any_known),
    "Where": _choices,
    "TopK": _places,
    "Range": _start_and_step,
    "Clip": _lower_bound,
    "Cast": _cast,
    "umd.RandomInteger": _drawn,
}
"""Op → what decides that its results are not below zero."""
