"""Ops of old opsets whose meaning ONNX's converter does not carry over, moved to a domain of their own on loading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

from umd_onnx.handlers.common import Attributes, extents_of, tensor_of
from umd_onnx.scope import Scope
from umd_onnx.values import Known, Value

if TYPE_CHECKING:
    from umd_onnx.importer import Handler, Importer

DOMAIN = "umd.legacy"


def _prelu(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """Up to opset 6 a slope of one axis is one for each channel, axis 1, where it is not one for all."""
    x, slope = (tensor_of(scope[name], node) for name in node.input)
    rank, extents = len(extents_of(x, node)), extents_of(slope, node)
    if len(extents) == 1 and extents[0] > 1 and rank > 2:
        slope = i.one("Reshape", slope, Known(np.array([extents[0], *[1] * (rank - 2)], np.int64)))
    return i.op("PRelu", [x, slope], {})


HANDLERS: Mapping[str, Handler] = {f"{DOMAIN}.PRelu": _prelu}


def moved(graphs: Sequence[onnx.GraphProto], opset: int) -> None:
    """Moves nodes that mean something else in this opset to `DOMAIN`."""
    for node in (node for graph in graphs for node in graph.node):
        if opset < 7 and node.op_type == "PRelu" and node.domain in ("", "ai.onnx"):
            node.domain = DOMAIN
