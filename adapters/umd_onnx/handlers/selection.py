"""Ops whose results have as many elements as the data say: computed while importing, once the data are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from umd_core.errors import UnsupportedError
from umd_core.ir import Array
from umd_onnx.handlers.common import Attributes
from umd_onnx.scope import Scope
from umd_onnx.values import Computed, Known, TensorSequence, Value, ValueNeededError, origins_of

if TYPE_CHECKING:
    from umd_onnx.importer import Handler, Importer

Arrays = Sequence[Any]


def _nonzero(inputs: Arrays, attributes: Attributes) -> list[Array]:
    return [np.array(np.nonzero(np.atleast_1d(inputs[0])), np.int64)]


def _compress(inputs: Arrays, attributes: Attributes) -> list[Array]:
    data, condition = inputs
    return [np.compress(condition.reshape(-1), data, attributes.get("axis"))]


def _unique(inputs: Arrays, attributes: Attributes) -> list[Array]:
    (data,), axis = inputs, attributes.get("axis")
    flat = data.reshape(-1) if axis is None else data
    along = 0 if axis is None else axis
    values, first, inverse, counts = np.unique(flat, True, True, True, axis=along)
    inverse = inverse.reshape(-1)
    if not attributes.get("sorted", 1):
        order = np.argsort(first, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        values, first, inverse, counts = np.take(values, order, along), first[order], places[inverse], counts[order]
    return [values, *(array.astype(np.int64) for array in (first, inverse, counts))]


def _non_max_suppression(inputs: Arrays, attributes: Attributes) -> list[Array]:
    """Returns (batch, class, box) of the boxes that are kept, best first within a class: (kept, 3) int64."""
    boxes, scores = inputs[:2]
    most, overlap, least = (inputs[n].reshape(-1)[0] if len(inputs) > n and inputs[n] is not None else None
                            for n in (2, 3, 4))  # fmt: skip
    kept: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(scores.shape[:2]):
        corners = _corners(boxes[batch].astype(np.float32), center=bool(attributes.get("center_point_box", 0)))
        order = np.argsort(-scores[batch, kind], kind="stable")
        chosen: list[int] = []
        for box in map(int, order):
            if len(chosen) == int(most or 0) or (least is not None and scores[batch, kind, box] <= least):
                break
            if all(_overlap(corners[box], corners[other]) <= (overlap or 0) for other in chosen):
                chosen.append(box)
        kept += [(batch, kind, box) for box in chosen]
    return [np.array(kept, np.int64).reshape(-1, 3)]


def _corners(boxes: Array, *, center: bool) -> Array:
    """Returns (boxes, 4): the lower corner, then the upper one."""
    a, b = boxes[:, :2], boxes[:, 2:]
    low, high = (a - b / 2, a + b / 2) if center else (np.minimum(a, b), np.maximum(a, b))
    return np.concatenate([low, high], 1)


def _overlap(one: Array, other: Array) -> float:
    """Returns the area that two boxes share over the area of both."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = float(np.prod(np.maximum(sides, 0)))
    areas = [float(np.prod(box[2:] - box[:2])) for box in (one, other)]
    return shared / (sum(areas) - shared) if shared else 0.0


_OPS: Mapping[str, Callable[[Arrays, Attributes], list[Array]]] = {
    "NonZero": _nonzero,
    "Compress": _compress,
    "Unique": _unique,
    "NonMaxSuppression": _non_max_suppression,
}


def _select(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    inputs = [scope[name] for name in node.input]
    if any(isinstance(value, Computed) for value in inputs):
        raise ValueNeededError(f"the shape of {node.op_type}'s result", node.op_type, origins_of(inputs))
    if any(isinstance(value, TensorSequence) for value in inputs) or inputs[0] is None:
        raise UnsupportedError("a tensor is wanted here", op=node.op_type)
    try:
        found = _OPS[node.op_type]([v.array if isinstance(v, Known) else None for v in inputs], attributes)
    except (AttributeError, IndexError, TypeError, ValueError) as error:  # inputs or attributes that do not fit
        raise UnsupportedError(f"cannot be computed: {error}", op=node.op_type) from error
    return [Known(array) for array in found]


HANDLERS: Mapping[str, Handler] = dict.fromkeys(_OPS, _select)
