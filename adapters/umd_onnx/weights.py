"""Large weights of a model, set aside while it is checked and converted, which would copy them several times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx

from umd_core.ir import MAX_RANK, Array
from umd_onnx.contents import bad_model, graphs_of, tensors_of

HEAVY_BYTES = 4096
"""Bytes of a weight from which on checker and converter do not see it. They look at small tensors only: axes and such.
"""


def set_aside(model: onnx.ModelProto, taken: Mapping[str, memoryview]) -> dict[str, Array]:
    """Takes large weights out of a model and returns them, by name; they become inputs meanwhile.

    Args:
        model: where a tensor's data are in `taken`, its doc_string is their key, and it gets them back if it stays.
        taken: bytes of tensors.
    """
    known = {info.name for info in model.graph.input}
    _hoist(model, taken)
    arrays: dict[str, Array] = {}
    kept: list[onnx.TensorProto] = []
    for tensor in model.graph.initializer:
        array = _heavy(tensor, taken)
        if array is None or tensor.name in arrays:
            kept.append(tensor)
            continue
        arrays[tensor.name] = array
        if tensor.name not in known:
            shell = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(shell)
    _keep(model.graph.initializer, kept)
    for tensor in tensors_of(model):
        if tensor.doc_string in taken:
            tensor.raw_data = bytes(taken[tensor.doc_string])
    return arrays


def _heavy(tensor: onnx.TensorProto, taken: Mapping[str, memoryview]) -> Array | None:
    """Returns the elements of a tensor that is large enough to be set aside; None when it is not."""
    data = taken.get(tensor.doc_string)
    array = array_over(tensor, tensor.raw_data if data is None else data)
    return array if array is not None and array.nbytes > HEAVY_BYTES else None


def array_over(tensor: onnx.TensorProto, data: bytes | memoryview) -> Array | None:
    """Returns bytes as a weight's elements; None when they are not as many as its type and shape say, or are packed."""
    try:
        dtype: Any = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except KeyError:
        return None
    if dtype.kind == "O" or not len(data) or len(tensor.dims) > MAX_RANK or byte_count(tensor) != len(data):
        return None
    return np.frombuffer(data, dtype).reshape(tuple(tensor.dims))


def byte_count(tensor: onnx.TensorProto) -> int:
    """Returns the bytes of a tensor by its type and shape, one element a byte at least.

    Raises:
        DecodeError: it has no such.
    """
    count = 1
    for extent in tensor.dims:
        if extent < 0:
            raise bad_model(f"tensor {tensor.name!r} has extent {extent}")
        count *= extent
    try:
        dtype: Any = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        raise bad_model(f"tensor {tensor.name!r} is of type {tensor.data_type}, which cannot lie in a file") from None
    return count * int(np.dtype(dtype).itemsize)


def _hoist(model: onnx.ModelProto, taken: Mapping[str, memoryview]) -> None:
    """Makes initializers of the model of large ones in inner graphs, and of Constant nodes with large tensors.

    Inner graphs see the names around them, so those whose name nothing else has may lie there.
    """
    outer = model.graph
    graphs = list(graphs_of(outer))
    names = Counter(name for graph in graphs for name in _defined(graph))
    for graph in reversed(graphs):  # inner ones first: what is put back into a field is a copy
        # what an inner graph returns has to be made in it
        fixed = {"", *(() if graph is outer else (output.name for output in graph.output))}
        movable = {name for name, count in names.items() if count == 1} - fixed
        if graph is not outer:
            tensors = [(t, t.name in movable and _heavy(t, taken) is not None) for t in graph.initializer]
            outer.initializer.extend(tensor for tensor, moves in tensors if moves)
            _keep(graph.initializer, [tensor for tensor, moves in tensors if not moves])
        nodes = [(n, _is_heavy_constant(n, taken) and n.output[0] in movable) for n in graph.node]
        for node in (node for node, moves in nodes if moves):
            tensor = outer.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
        _keep(graph.node, [node for node, moves in nodes if not moves])


def _keep(field: Any, kept: list[Any]) -> None:
    """Leaves nothing but these in a repeated field."""
    if len(kept) < len(field):
        del field[:]
        field.extend(kept)


def _defined(graph: onnx.GraphProto) -> Iterable[str]:
    """Yields the names that a graph gives to values."""
    yield from (info.name for info in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from node.output


def _is_heavy_constant(node: onnx.NodeProto, taken: Mapping[str, memoryview]) -> bool:
    is_constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.output) == 1
    named = is_constant and [a.name for a in node.attribute] == ["value"]
    return named and _heavy(node.attribute[0].t, taken) is not None
