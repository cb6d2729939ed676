"""Sequences of tensors and optional values: lists while the model is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

from umd_core.errors import LimitError, UnsupportedError
from umd_core.ir import Array
from umd_onnx.handlers.common import Attributes, extents_of, item_of, joined, stacked, tensor_of
from umd_onnx.scope import Scope
from umd_onnx.values import Known, Tensor, TensorSequence, Value, known_array

if TYPE_CHECKING:
    from umd_onnx.importer import Handler, Importer


def _sequence(value: Value, node: onnx.NodeProto) -> TensorSequence:
    if isinstance(value, TensorSequence):
        return value
    raise UnsupportedError("a sequence is wanted here", op=node.op_type)


def _sequence_construct(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [TensorSequence(tuple(tensor_of(scope[name], node) for name in node.input))]


def _sequence_empty(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [TensorSequence(())]


def _sequence_length(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [Known(np.array(len(_sequence(scope[node.input[0]], node).items), np.int64))]


def _place(value: Value, node: onnx.NodeProto, count: int) -> int:
    place = int(np.asarray(known_array(value, "a place in a sequence", node.op_type)).reshape(-1)[0])
    if not -count <= place < max(count, 1):
        raise LimitError(f"place in a sequence of {count}", place, count - 1)
    return place % count if count else 0


def _sequence_at(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    items = _sequence(scope[node.input[0]], node).items
    return [items[_place(scope[node.input[1]], node, len(items))]]


def _sequence_insert(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    items = list(_sequence(scope[node.input[0]], node).items)
    at = len(items)
    if len(node.input) > 2 and node.input[2]:
        at = int(np.asarray(known_array(scope[node.input[2]], "a place in a sequence", node.op_type)).reshape(-1)[0])
    items.insert(at, tensor_of(scope[node.input[1]], node))
    return [TensorSequence(tuple(items))]


def _sequence_erase(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    items = list(_sequence(scope[node.input[0]], node).items)
    del items[_place(scope[node.input[1]], node, len(items)) if len(node.input) > 1 and node.input[1] else -1]
    return [TensorSequence(tuple(items))]


def _concat_from_sequence(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    items = _sequence(scope[node.input[0]], node).items
    if not items:
        raise UnsupportedError("an empty sequence cannot be joined", op=node.op_type)
    axis = attributes["axis"]
    if attributes.get("new_axis"):
        return [stacked(i, list(items), axis % (len(extents_of(items[0], node)) + 1))]
    return [joined(i, list(items), axis)]


def _split_to_sequence(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    value, axis, keep = tensor_of(scope[node.input[0]], node), attributes.get("axis", 0), attributes.get("keepdims", 1)
    extent = extents_of(value, node)[axis]
    split = scope[node.input[1]] if len(node.input) > 1 else None
    sizes: Array = np.ones(extent, np.int64)
    if split is not None:
        given = known_array(split, "how a tensor is split", node.op_type)
        sizes = given if given.ndim else np.array([min(int(given), extent - at) for at in range(0, extent, int(given))])
    items: list[Tensor] = []
    at = 0
    for size in map(int, sizes):
        if split is None and not keep:
            items.append(item_of(i, value, axis, at))
        else:
            items.append(_range(i, value, axis, at, at + size))
        at += size
    return [TensorSequence(tuple(items))]


def _range(i: Importer, value: Tensor, axis: int, start: int, stop: int) -> Tensor:
    if isinstance(value, Known):
        return Known(np.take(value.array, np.arange(start, stop), axis))
    ints = [Known(np.array([n], np.int64)) for n in (start, stop, axis)]
    return i.one("Slice", value, *ints)


def _optional(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [scope[node.input[0]] if node.input else None]


def _has_element(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [Known(np.array(bool(node.input) and scope[node.input[0]] is not None))]


def _get_element(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    value = scope[node.input[0]]
    if value is None:
        raise UnsupportedError("the optional value is not there", op=node.op_type)
    return [value]


HANDLERS: Mapping[str, Handler] = {
    "SequenceConstruct": _sequence_construct,
    "SequenceEmpty": _sequence_empty,
    "SequenceLength": _sequence_length,
    "SequenceAt": _sequence_at,
    "SequenceInsert": _sequence_insert,
    "SequenceErase": _sequence_erase,
    "ConcatFromSequence": _concat_from_sequence,
    "SplitToSequence": _split_to_sequence,
    "Optional": _optional,
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _get_element,
}
