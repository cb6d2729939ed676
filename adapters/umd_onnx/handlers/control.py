"""Control flow: branches that are chosen or merged, loops that are unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

from umd_core.errors import LimitError
from umd_onnx.handlers.common import Attributes, extents_of, item_of, stacked, tensor_of
from umd_onnx.protos import array_of
from umd_onnx.scope import Scope
from umd_onnx.values import Computed, Known, Tensor, TensorSequence, Value, ValueNeededError, known_array

if TYPE_CHECKING:
    from umd_onnx.importer import Importer

TRIPS = 4096
"""Times that a loop is unrolled at most."""


def run_body(i: Importer, scope: Scope, graph: onnx.GraphProto, inputs: Sequence[Value]) -> list[Value]:
    """Returns the results of a graph inside the model, which sees the names around it."""
    inner = Scope(scope)
    for tensor in graph.initializer:
        inner[tensor.name] = Known(array_of(tensor))
    for info, value in zip(graph.input, inputs, strict=False):
        inner[info.name] = value
    i.nodes(inner, graph.node)
    return [inner[output.name] for output in graph.output]


def choose(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """If: one branch where the condition is known, else both, of which the device takes one result."""
    condition = tensor_of(scope[node.input[0]], node)
    if isinstance(condition, Computed) and not i.may_bind(condition.origins):
        return _merged(i, scope, condition, attributes)
    taken = known_array(condition, "which branch is taken", "If")
    branch = attributes["then_branch" if bool(np.asarray(taken).reshape(-1)[0]) else "else_branch"]
    return run_body(i, scope, branch, [])


def _merged(i: Importer, scope: Scope, condition: Computed, attributes: Attributes) -> list[Value]:
    """Returns what `Where` takes of both branches.

    Raises:
        ValueNeededError: the branches give other shapes or types, so the values of inputs would have to be known.
    """
    both = [run_body(i, scope, attributes[name], []) for name in ("then_branch", "else_branch")]
    scalar = i.one("Squeeze", condition) if condition.desc.rank else condition
    return [_either(i, scalar, one, other) for one, other in zip(*both, strict=True)]


def _either(i: Importer, condition: Tensor, one: Value, other: Value) -> Value:
    tensors = [value for value in (one, other) if isinstance(value, (Known, Computed))]
    if len(tensors) < 2 or len({i.desc(tensor) for tensor in tensors}) > 1:
        origins = condition.origins if isinstance(condition, Computed) else frozenset[str]()
        raise ValueNeededError("which branch is taken, and with it the shape of a result,", "If", origins)
    return i.one("Where", condition, *tensors)


def loop(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """Loop: unrolled, when the number of trips is known."""
    most, goes_on, *carried = (scope[name] for name in node.input)
    trips = None if most is None else int(np.asarray(known_array(most, "how often a loop runs", "Loop")).reshape(-1)[0])
    body: onnx.GraphProto = attributes["body"]
    scanned: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    trip = 0
    while (trips is None or trip < trips) and _true(goes_on):
        if trip == TRIPS:
            raise LimitError("trips of an unrolled loop", trip + 1, TRIPS)
        goes_on, *results = run_body(i, scope, body, [Known(np.array(trip, np.int64)), goes_on, *carried])
        carried, parts = results[: len(carried)], results[len(carried) :]
        for place, part in zip(scanned, parts, strict=True):
            place.append(tensor_of(part, node))
        trip += 1
    results = [_stack(i, parts, body.output[1 + len(carried) + n]) for n, parts in enumerate(scanned)]
    return [*carried, *results]


def _true(condition: Value) -> bool:
    if condition is None:
        return True
    return bool(np.asarray(known_array(condition, "whether a loop goes on", "Loop")).reshape(-1)[0])


def _stack(i: Importer, parts: list[Tensor], info: onnx.ValueInfoProto, axis: int = 0) -> Tensor:
    """Returns the steps of a result one after the other, along a new axis; none where there was no step."""
    if parts:
        return stacked(i, parts, axis)
    dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
    return Known(np.empty((0, *dims), onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)))


def scan(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """Scan: unrolled over the axes of its inputs."""
    body: onnx.GraphProto = attributes["body"]
    values, count = [scope[name] for name in node.input], attributes["num_scan_inputs"]
    state, scanned = values[: len(values) - count], [tensor_of(v, node) for v in values[len(values) - count :]]
    results = len(body.output) - len(state)
    axes, flips = (attributes.get(f"scan_input_{n}") or [0] * count for n in ("axes", "directions"))
    out_axes, out_flips = (attributes.get(f"scan_output_{n}") or [0] * results for n in ("axes", "directions"))
    axes = [axis % len(extents_of(value, node)) for axis, value in zip(axes, scanned, strict=True)]
    length = extents_of(scanned[0], node)[axes[0]]
    if length > TRIPS:
        raise LimitError("steps of an unrolled scan", length, TRIPS)
    parts: list[list[Tensor]] = [[] for _ in range(results)]
    for step in range(length):
        steps = [length - 1 - step if flip else step for flip in flips]
        items = [item_of(i, *each) for each in zip(scanned, axes, steps, strict=True)]
        found = run_body(i, scope, body, [*state, *items])
        state = found[: len(state)]
        for place, part in zip(parts, found[len(state) :], strict=True):
            place.append(tensor_of(part, node))
    return [*state, *(
        _stack(i, place[::-1] if flip else place, info, axis % (len(extents_of(place[0], node)) + 1 if place else 1))
        for place, flip, axis, info in zip(parts, out_flips, out_axes, body.output[len(state) :], strict=True)
    )]  # fmt: skip


def sequence_map(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """SequenceMap: the body once for each item of a sequence; further sequences go along, tensors are the same."""
    first, *others = (scope[name] for name in node.input)
    body: onnx.GraphProto = attributes["body"]
    count = len(first.items) if isinstance(first, TensorSequence) else 0
    found: list[list[Tensor]] = [[] for _ in body.output]
    for place in range(count):
        items = [v.items[place] if isinstance(v, TensorSequence) else v for v in (first, *others)]
        for results, value in zip(found, run_body(i, scope, body, items), strict=True):
            results.append(tensor_of(value, node))
    return [TensorSequence(tuple(results)) for results in found]


HANDLERS = {"If": choose, "Loop": loop, "Scan": scan, "SequenceMap": sequence_map}
