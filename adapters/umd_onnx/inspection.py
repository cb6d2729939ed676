"""What is in a model: ops, sizes, and what umd lacks for it, without running anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from umd_core.device import Caps
from umd_core.errors import UnsupportedError
from umd_core.inference import define, known
from umd_core.ir import Graph
from umd_core.ops import OPS
from umd_core.translate import translator
from umd_core.views import View
from umd_onnx.functions import has_body
from umd_onnx.handlers import HANDLERS
from umd_onnx.protos import qualified


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a graph and of the graphs in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from all_nodes(inner)


def how(node: onnx.NodeProto) -> str:
    """Returns what umd makes of an op: "kernels", "while importing", "function" or "missing"."""
    if node.domain in ("", "ai.onnx") and node.op_type in OPS:
        return "kernels"
    if qualified(node) in HANDLERS:
        return "while importing"
    return "function" if has_body(node) else "missing"


def missing_ops(model: onnx.ModelProto) -> list[str]:
    """Returns the ops of a model that umd lacks, each once."""
    return sorted({qualified(node) for node in all_nodes(model.graph) if how(node) == "missing"})


def lacking(graph: Graph, caps: Caps) -> dict[str, str]:
    """Returns the ops of a graph that a device cannot run, each with the first reason: the kernel that it lacks.

    Raises:
        UmdError: an op refuses its inputs.
    """
    recipes = translator(caps).recipes
    descs = known(graph)
    found: dict[str, str] = {}
    for node in graph.nodes:
        define(graph, descs, node)
        inputs = [descs[name] if name else None for name in node.inputs]
        views = [None if d is None else View(i, d.dtype, d.shape, d.strides) for i, d in enumerate(inputs)]
        values = [graph.constants.get(name) for name in node.inputs]
        try:
            recipes.get(node.op, node.attributes, views, values, tuple(bool(name) for name in node.outputs))
        except UnsupportedError as error:
            found.setdefault(node.op, str(error))
    return found


@dataclass(frozen=True, slots=True)
class Contents:
    """What a model is made of.

    Attributes:
        ops: how often each op is there.
        how: what umd makes of each op: "kernels", "while importing", "function" (ONNX's own) or "missing".
        missing: those that umd lacks.
        parameters: elements of the initializers.
        bytes: of the initializers.
    """

    producer: str
    opset: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    ops: Counter[str]
    how: dict[str, str]
    missing: list[str]
    parameters: int
    bytes: int


def inspect(model: onnx.ModelProto) -> Contents:
    """Returns what is in a loaded model."""
    weights = {tensor.name for tensor in model.graph.initializer}
    sizes = [_size(tensor) for tensor in model.graph.initializer]
    return Contents(
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        opset=max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0),
        inputs={i.name: shown(i) for i in model.graph.input if i.name not in weights},
        outputs={o.name: shown(o) for o in model.graph.output},
        ops=Counter(qualified(node) for node in all_nodes(model.graph)),
        how={qualified(node): how(node) for node in all_nodes(model.graph)},
        missing=missing_ops(model),
        parameters=sum(count for count, _ in sizes),
        bytes=sum(count * size for count, size in sizes),
    )


def _size(tensor: onnx.TensorProto) -> tuple[int, int]:
    count = 1
    for extent in tensor.dims:
        count *= extent
    return count, int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def shown(info: onnx.ValueInfoProto) -> str:
    """Returns a value's type as people read it: float32[batch,3,?]."""
    if not info.type.HasField("tensor_type"):
        return str(info.type.WhichOneof("value"))
    kind = info.type.tensor_type
    name = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
    if not kind.HasField("shape"):
        return name
    return (
        f"{name}[{','.join(str(d.dim_param or d.dim_value if d.WhichOneof('value') else '?') for d in kind.shape.dim)}]"
    )
