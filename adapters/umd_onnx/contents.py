"""What lies in a model, and whether the parts that nothing else checks are what the format says."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from umd_core.errors import DecodeError

_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}


def bad_model(detail: str) -> DecodeError:
    """Returns the error for a model that is none."""
    return DecodeError("onnx-model", detail, section="ONNX")


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yields a graph and the graphs in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in _inner(attribute):
                yield from graphs_of(inner)


def _inner(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yields the tensors of a model, wherever they are."""
    for graph in graphs_of(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    nodes = [node for graph in graphs_of(model.graph) for node in graph.node]
    for node in nodes + [node for function in model.functions for node in function.node]:
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.HasField("t") else []
            yield from attribute.tensors


def last_uses(graph: onnx.GraphProto) -> dict[int, list[str]]:
    """Returns, for each node by its number, the names that no node after it uses, nor the graph's outputs."""
    last: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        inner = [n for a in node.attribute for g in _inner(a) for part in graphs_of(g) for n in part.node]
        ends = [o.name for a in node.attribute for g in _inner(a) for part in graphs_of(g) for o in part.output]
        for name in (*node.input, *node.output, *(name for n in inner for name in n.input), *ends):
            last[name] = index
    for output in graph.output:
        last.pop(output.name, None)
    found: dict[int, list[str]] = {}
    for name, index in last.items():
        found.setdefault(index, []).append(name)
    return found


def check_contents(model: onnx.ModelProto) -> None:
    """Checks texts, element types and extents, which the parser takes as they come.

    Raises:
        DecodeError: one is not what the format says.
    """
    _check_texts(model)
    for tensor in tensors_of(model):
        if tensor.data_type not in _TYPES:
            raise bad_model(f"tensor {tensor.name!r} is of type {tensor.data_type}, which ONNX does not have")
        if any(extent < 0 for extent in tensor.dims):
            raise bad_model(f"tensor {tensor.name!r} has extents {list(tensor.dims)}")
    for graph in graphs_of(model.graph):
        for info in (*graph.input, *graph.output):
            kind = info.type.tensor_type.elem_type
            if info.type.HasField("tensor_type") and kind not in _TYPES:
                raise bad_model(f"value {info.name!r} is of type {kind}, which ONNX does not have")


def _check_texts(message: Message) -> None:
    """Checks that every text of a message is UTF-8; the elements of tensors are no texts."""
    try:
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING:
                texts = [value] if isinstance(value, (str, bytes)) else value
                if not all(isinstance(text, str) for text in texts):
                    raise bad_model(f"{field.full_name} is no UTF-8")
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                for inner in [value] if isinstance(value, Message) else value:
                    _check_texts(inner)
    except UnicodeDecodeError as error:
        raise bad_model(f"a text of {message.DESCRIPTOR.full_name} is no UTF-8") from error
