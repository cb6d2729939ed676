"""Small models, built in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

Extents = Sequence[int | str | None]
FLOAT = TensorProto.FLOAT


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Extents | None]],
    outputs: Sequence[str],
    weights: Mapping[str, Any] | None = None,
    opset: int = 28,
    domains: Sequence[str] = (),
    rank: int = 1,
) -> onnx.ModelProto:
    """Returns a model whose outputs are stated to be of one rank."""
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, (None,) * rank) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def text(source: str) -> onnx.ModelProto:
    """Returns the model that ONNX's text syntax describes."""
    return parser.parse_model('<ir_version: 10, opset_import: ["" : 28]>\n' + source)


def affine(shape: Extents = ("batch", 3)) -> onnx.ModelProto:
    """Returns relu(x · w + b) of a (batch, 3) float32 x, w from 0 to 0.5."""
    weights = {"w": np.arange(6, dtype=np.float32).reshape(3, 2) / 10, "b": np.array([0.5, -0.25], np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    return model(nodes, {"x": (FLOAT, shape)}, ["y"], weights, rank=2)


def affine_file(folder: Path) -> Path:
    """Writes `affine` into a folder."""
    file = folder / "affine.onnx"
    file.write_bytes(affine().SerializeToString())
    return file
