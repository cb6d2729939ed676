"""What handlers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from umd_core.errors import UnsupportedError
from umd_onnx.values import Computed, Known, Tensor, Value

if TYPE_CHECKING:
    from umd_onnx.importer import Importer

Attributes = dict[str, Any]


def tensor_of(value: Value, node: onnx.NodeProto) -> Tensor:
    """Returns a value as a tensor.

    Raises:
        UnsupportedError: it is a sequence, or not there.
    """
    if isinstance(value, (Known, Computed)):
        return value
    raise UnsupportedError("a tensor is wanted here", op=node.op_type)


def extents_of(value: Value, node: onnx.NodeProto) -> tuple[int, ...]:
    """Returns the shape of a tensor."""
    tensor = tensor_of(value, node)
    return tuple(tensor.array.shape) if isinstance(tensor, Known) else tensor.desc.shape


def item_of(i: Importer, value: Tensor, axis: int, index: int) -> Tensor:
    """Returns one step of a tensor along an axis, which goes away."""
    if isinstance(value, Known):
        return Known(np.take(value.array, index, axis))
    return i.one("Gather", value, Known(np.array(index, np.int64)), axis=axis)


def stacked(i: Importer, parts: list[Tensor], axis: int) -> Tensor:
    """Returns tensors of one shape along a new axis."""
    if all(isinstance(part, Known) for part in parts):
        return Known(np.stack([part.array for part in parts if isinstance(part, Known)], axis))
    axes = Known(np.array([axis], np.int64))
    return joined(i, [i.one("Unsqueeze", part, axes) for part in parts], axis)


def joined(i: Importer, parts: list[Tensor], axis: int) -> Tensor:
    """Returns tensors one after the other along an axis."""
    if all(isinstance(part, Known) for part in parts):
        return Known(np.concatenate([part.array for part in parts if isinstance(part, Known)], axis))
    return i.one("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
