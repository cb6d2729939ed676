"""Large constants of a graph as arguments of the program: they lie on the device once, whatever shapes are bound."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from umd_core.ir import Array, Graph, TensorDesc
from umd_core.ops import OPS
from umd_onnx.importer import SEED, Imported

CONSTANT_LIMIT = 1 << 16
"""Bytes up to which a known tensor becomes part of the program."""


def with_arguments(imported: Imported) -> Imported:
    """Returns the model with inputs that nothing needs left out, and with large constants as arguments.

    The inputs of its graph are `inputs`, then `weights`, then the seed.
    """
    graph = imported.graph
    used = {name for node in graph.nodes for name in node.inputs} | {output.value for output in graph.outputs}
    static = _static(graph)
    large = {n: a for n, a in graph.constants.items() if n in used and n not in static and a.nbytes > CONSTANT_LIMIT}
    keys = {name: _key(name, array) for name, array in large.items()}
    inputs = [name for name in imported.inputs if name in used]
    seeded = imported.seeded and SEED in used
    result = Graph(graph.name)
    result.fuses = graph.fuses
    for name in inputs:
        result.input(name, graph.inputs[name])
    weights: dict[str, Array | None] = {}
    for name, key in keys.items():
        if key not in weights:
            weights[key] = large[name]
            result.input(key, TensorDesc.of(large[name]))
    if seeded:
        result.input(SEED, graph.inputs[SEED])
    for name, array in graph.constants.items():
        if name in used and name not in keys:
            result.constant(array, name)
    for node in graph.nodes:
        named = [keys.get(name, name) for name in node.inputs]
        result.add(node.op, named, node.attributes, outputs=node.outputs, name=node.name, source=node.source)
    for output in graph.outputs:
        result.output(keys.get(output.value, output.value), output.desc, alias=output.alias)
    return replace(imported, graph=result, inputs=inputs, weights=weights, seeded=seeded)


def _static(graph: Graph) -> set[str]:
    """Returns the constants whose value an op has to know while it is translated."""
    return {
        name
        for node in graph.nodes
        for index, name in enumerate(node.inputs)
        if name and OPS[node.op].input_spec(index).static
    }


def _key(name: str, array: Array) -> str:
    """Returns a name that is the same for the same bytes, whatever the binding."""
    if name.startswith("weight:"):
        return name
    content = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"sha256:{content.hexdigest()}:{array.dtype}:{array.shape}"
