"""Ops that are settled while importing: constants, shapes, control flow, sequences and optional values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from umd_core.errors import LimitError, UnsupportedError
from umd_core.ir import Array
from umd_onnx.values import Computed, Known, Tensor, TensorSequence, Value, ValueNeededError, known_array, origins_of

if TYPE_CHECKING:
    from umd_onnx.importer import Handler, Importer, Scope

TRIPS = 4096
"""Times that a loop is unrolled at most."""
Attributes = dict[str, Any]

# constants and shapes


def _constant(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    (name, value), *rest = attributes.items()
    if rest or name.startswith("sparse"):
        raise UnsupportedError(f"Constant with attributes {', '.join(attributes)}", op="Constant")
    dtypes: Mapping[str, Any] = {
        "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
        "value_string": object, "value_strings": object,
    }  # fmt: skip
    return [Known(np.asarray(value, dtypes.get(name)))]


def _shape(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    extents = _extents(scope[node.input[0]], node)
    return [Known(np.array(extents[attributes.get("start", 0) : attributes.get("end")], np.int64))]


def _size(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [Known(np.array(int(np.prod(_extents(scope[node.input[0]], node), dtype=np.int64)), np.int64))]


def _extents(value: Value, node: onnx.NodeProto) -> tuple[int, ...]:
    if isinstance(value, Known):
        return tuple(value.array.shape)
    if isinstance(value, Computed):
        return value.desc.shape
    raise UnsupportedError("no tensor has a shape here", op=node.op_type)


def _identity(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [scope[node.input[0]]]


def _cast_like(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    value, like = (_tensor(scope[name], node) for name in node.input)
    code = onnx.helper.np_dtype_to_tensor_dtype(like.array.dtype) if isinstance(like, Known) else like.desc.dtype.code
    cast = onnx.helper.make_node("Cast", node.input[:1], node.output, to=code, **attributes)
    return i.call(cast, [value], {"to": code, **attributes}, scope)


def _tensor(value: Value, node: onnx.NodeProto) -> Tensor:
    if isinstance(value, (Known, Computed)):
        return value
    raise UnsupportedError("a tensor is wanted here", op=node.op_type)


# control flow


def _if(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    condition = known_array(scope[node.input[0]], "which branch is taken", "If")
    branch = attributes["then_branch" if bool(np.asarray(condition).reshape(-1)[0]) else "else_branch"]
    return _body(i, scope, branch, [])


def _body(i: Importer, scope: Scope, graph: onnx.GraphProto, inputs: Sequence[Value]) -> list[Value]:
    """Returns the results of a graph inside the model, which sees the names around it."""
    from umd_onnx.importer import Scope, array_of  # noqa: PLC0415  # they import each other

    inner = Scope(scope)
    for tensor in graph.initializer:
        inner[tensor.name] = Known(array_of(tensor))
    for info, value in zip(graph.input, inputs, strict=False):
        inner[info.name] = value
    i.nodes(inner, graph.node)
    return [inner[output.name] for output in graph.output]


def _loop(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """Unrolls a loop whose number of trips is known, trip by trip."""
    most, condition, *carried = (scope[name] for name in node.input)
    trips = None if most is None else int(np.asarray(known_array(most, "how often a loop runs", "Loop")).reshape(-1)[0])
    body: onnx.GraphProto = attributes["body"]
    scanned: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    goes_on, trip = condition, 0
    while trips is None or trip < trips:
        if goes_on is not None and not bool(
            np.asarray(known_array(goes_on, "whether a loop goes on", "Loop")).reshape(-1)[0]
        ):
            break
        if trip == TRIPS:
            raise LimitError("trips of an unrolled loop", trip + 1, TRIPS)
        goes_on, *results = _body(i, scope, body, [Known(np.array(trip, np.int64)), goes_on, *carried])
        carried, parts = results[: len(carried)], results[len(carried) :]
        for place, part in zip(scanned, parts, strict=True):
            place.append(_tensor(part, node))
        trip += 1
    stacked = [_stack(i, parts, body.output[1 + len(carried) + n], node) for n, parts in enumerate(scanned)]
    return [*carried, *stacked]


def _stack(
    i: Importer, parts: Sequence[Tensor], info: onnx.ValueInfoProto, node: onnx.NodeProto, axis: int = 0
) -> Value:
    if not parts:
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        return Known(np.empty((0, *dims), dtype))
    if all(isinstance(part, Known) for part in parts):
        return Known(np.stack([known_array(part, "", "") for part in parts], axis))
    axes = Known(np.array([axis], np.int64))
    return _concat(i, [i.one("Unsqueeze", part, axes) for part in parts], axis)


def _concat(i: Importer, parts: Sequence[Tensor], axis: int) -> Tensor:
    return i.one("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


def _scan(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """Unrolls a scan over the axes of its inputs."""
    body: onnx.GraphProto = attributes["body"]
    values = [scope[name] for name in node.input]
    count = attributes["num_scan_inputs"]
    state, scanned = values[: len(values) - count], [_tensor(v, node) for v in values[len(values) - count :]]
    results = len(body.output) - len(state)
    axes = attributes.get("scan_input_axes") or [0] * count
    flips = attributes.get("scan_input_directions") or [0] * count
    out_axes = attributes.get("scan_output_axes") or [0] * results
    out_flips = attributes.get("scan_output_directions") or [0] * results
    axes = [axis % len(_extents(value, node)) for axis, value in zip(axes, scanned, strict=True)]
    length = _extents(scanned[0], node)[axes[0]]
    if length > TRIPS:
        raise LimitError("steps of an unrolled scan", length, TRIPS)
    parts: list[list[Tensor]] = [[] for _ in range(results)]
    for step in range(length):
        slices = [
            _item(i, value, axis, length - 1 - step if flip else step)
            for value, axis, flip in zip(scanned, axes, flips, strict=True)
        ]
        found = _body(i, scope, body, [*state, *slices])
        state = found[: len(state)]
        for place, part in zip(parts, found[len(state) :], strict=True):
            place.append(_tensor(part, node))
    stacked = []
    for n, place in enumerate(parts):
        ordered = place[::-1] if out_flips[n] else place
        info = body.output[len(state) + n]
        rank = len(_extents(ordered[0], node)) + 1 if ordered else 1
        stacked.append(_stack(i, ordered, info, node, out_axes[n] % rank))
    return [*state, *stacked]


def _item(i: Importer, value: Tensor, axis: int, index: int) -> Tensor:
    """Returns one step of a tensor along an axis, which goes away."""
    if isinstance(value, Known):
        return Known(np.take(value.array, index, axis))
    return i.one("Gather", value, Known(np.array(index, np.int64)), axis=axis)


# sequences and optional values


def _sequence(value: Value, node: onnx.NodeProto) -> TensorSequence:
    if isinstance(value, TensorSequence):
        return value
    raise UnsupportedError("a sequence is wanted here", op=node.op_type)


def _sequence_construct(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [TensorSequence(tuple(_tensor(scope[name], node) for name in node.input))]


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
    items.insert(at, _tensor(scope[node.input[1]], node))
    return [TensorSequence(tuple(items))]


def _sequence_erase(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    items = list(_sequence(scope[node.input[0]], node).items)
    del items[_place(scope[node.input[1]], node, len(items)) if len(node.input) > 1 and node.input[1] else -1]
    return [TensorSequence(tuple(items))]


def _concat_from_sequence(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    items = _sequence(scope[node.input[0]], node).items
    axis = attributes["axis"]
    if attributes.get("new_axis"):
        return [_stack(i, items, onnx.ValueInfoProto(), node, axis % (len(_extents(items[0], node)) + 1))]
    if all(isinstance(item, Known) for item in items):
        return [Known(np.concatenate([known_array(item, "", "") for item in items], axis))]
    return [_concat(i, items, axis)]


def _split_to_sequence(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    value, axis, keep = _tensor(scope[node.input[0]], node), attributes.get("axis", 0), attributes.get("keepdims", 1)
    extent = _extents(value, node)[axis]
    split = scope[node.input[1]] if len(node.input) > 1 else None
    sizes: Array = np.ones(extent, np.int64)
    if split is not None:
        given = known_array(split, "how a tensor is split", node.op_type)
        sizes = given if given.ndim else np.array([min(int(given), extent - at) for at in range(0, extent, int(given))])
    items: list[Tensor] = []
    at = 0
    for size in map(int, sizes):
        if split is None and not keep:
            items.append(_item(i, value, axis, at))
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


def _values_needed(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """Ops whose results have as many elements as the data say: computed now when the data are known."""
    inputs = [scope[name] for name in node.input]
    origins = origins_of(inputs)
    if origins or any(isinstance(value, Computed) for value in inputs):
        raise ValueNeededError(f"the shape of {node.op_type}'s result", node.op_type, origins)
    return i.call(node, inputs, attributes, scope)


HANDLERS: Mapping[str, Handler] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
    "Identity": _identity,
    "CastLike": _cast_like,
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
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
    **dict.fromkeys(("NonZero", "Compress", "Unique", "NonMaxSuppression"), _values_needed),
}
"""Ops of ONNX by name that need more than the op table."""
