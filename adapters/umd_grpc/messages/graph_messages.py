"""Between the core's Graph and the messages of graph.proto, both ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError as ProtobufDecodeError

from umd_core.dtypes import DType
from umd_core.dtypes import dtype as to_dtype
from umd_core.errors import AttributeValueError, DecodeError, InputCountError, LimitError, ShapeError
from umd_core.ir import Array, Graph, Node, TensorDesc, contiguous_strides
from umd_grpc._pb.umd import graph_pb2 as pb

GRAPH_LIMIT = 32 << 20
NODES_LIMIT = 1 << 20
_INT64 = (-(2**63), 2**63 - 1)


def write_graph(graph: Graph) -> pb.Graph:
    """Returns a graph as a message.

    Raises:
        AttributeValueError: an attribute has no form on the wire.
    """
    message = pb.Graph(name=graph.name, fuses=graph.fuses)
    for name, desc in graph.inputs.items():
        message.inputs.add(name=name, desc=write_desc(desc))
    for name, value in graph.constants.items():
        message.constants.add(name=name, value=write_tensor(value))
    for node in graph.nodes:
        _write_node(node, message.nodes.add())
    for output in graph.outputs:
        layout = None if output.desc is None else write_desc(output.desc)
        message.outputs.add(value=output.value, desc=layout, alias=output.alias or "")
    return message


def _write_node(node: Node, message: pb.Node) -> None:
    message.op, message.name, message.source = node.op, node.name, node.source
    message.inputs.extend(node.inputs)
    message.outputs.extend(node.outputs)
    for name, value in node.attributes.items():
        if value is not None:
            _write_attribute(node.op, name, value, message.attributes[name])


def write_desc(desc: TensorDesc) -> pb.TensorDesc:
    """Returns a description as a message."""
    strides = () if desc.strides == contiguous_strides(desc.shape) else desc.strides
    return pb.TensorDesc(dtype=desc.dtype.code, shape=desc.shape, strides=strides, element_offset=desc.element_offset)


def write_tensor(value: Array) -> pb.Tensor:
    """Returns an array as a message."""
    array = np.ascontiguousarray(value)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return pb.Tensor(dtype=to_dtype(array.dtype).code, shape=np.shape(value), data=little.tobytes())


def _write_attribute(op: str, name: str, value: Any, message: pb.Attribute) -> None:
    if isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, (int, np.integer)):
        message.int_value = _int64(op, name, int(value))
    elif isinstance(value, (float, np.floating)):
        message.float_value = float(value)
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, bytes):
        message.bytes_value = value
    elif isinstance(value, np.ndarray):
        message.tensor.CopyFrom(write_tensor(value))
    elif isinstance(value, DType):
        message.dtype = value.code
    elif isinstance(value, Sequence):
        _write_list(op, name, value, message)
    else:
        raise _no_form(op, name, value)


def _write_list(op: str, name: str, value: Sequence[Any], message: pb.Attribute) -> None:
    if all(isinstance(item, str) for item in value) and value:
        message.strings.values.extend(value)
    elif all(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in value):
        message.ints.SetInParent()
        message.ints.values.extend(_int64(op, name, int(item)) for item in value)
    elif all(isinstance(item, (int, float, np.number)) and not isinstance(item, bool) for item in value):
        message.floats.values.extend(float(item) for item in value)
    else:
        raise _no_form(op, name, value)


def _int64(op: str, name: str, value: int) -> int:
    if not _INT64[0] <= value <= _INT64[1]:
        raise AttributeValueError(op, name, f"{value} does not fit in 64 bits", value=value, wanted="an int64")
    return value


def _no_form(op: str, name: str, value: Any) -> AttributeValueError:
    detail = f"a {type(value).__name__} has no form on the wire"
    wanted = "a number, text, bytes, an array, an element type or a list of numbers or texts"
    return AttributeValueError(op, name, detail, value=value, wanted=wanted)


def parse_request(raw: bytes) -> pb.TranslateGraphRequest:
    """Returns the request that the bytes hold.

    Raises:
        LimitError, DecodeError: they are too many, or no request.
    """
    if len(raw) > GRAPH_LIMIT:
        raise LimitError("bytes of a graph", len(raw), GRAPH_LIMIT)
    try:
        return pb.TranslateGraphRequest.FromString(raw)
    except ProtobufDecodeError as error:
        raise DecodeError("protobuf", f"not a TranslateGraphRequest: {error}", section="MESSAGE") from error


def read_graph(message: pb.Graph) -> Graph:
    """Returns the graph that a message describes. Names and ops are checked when it is translated.

    Raises:
        UmdError: a description, tensor or attribute is not well-formed.
    """
    if len(message.nodes) > NODES_LIMIT:
        raise LimitError("nodes of a graph", len(message.nodes), NODES_LIMIT)
    graph = Graph(message.name)
    graph.fuses = message.fuses
    for value in message.inputs:
        graph.input(value.name, read_desc(value.desc))
    for constant in message.constants:
        if constant.name in graph.constants or not constant.name:
            raise InputCountError(f"graph {graph.name!r}", 2, 1, 1, f"definitions of constant {constant.name!r}")
        graph.constant(read_tensor(constant.value), constant.name)
    for node in message.nodes:
        attributes = {name: _read_attribute(node.op, name, value) for name, value in node.attributes.items()}
        if not node.outputs:
            raise InputCountError(node.op, 0, 1, len(node.inputs) + 1, "outputs")
        graph.add(node.op, node.inputs, attributes, outputs=node.outputs, name=node.name, source=node.source)
    for output in message.outputs:
        desc = read_desc(output.desc) if output.HasField("desc") else None
        graph.output(output.value, desc, alias=output.alias or None)
    return graph


def read_desc(message: pb.TensorDesc) -> TensorDesc:
    """Returns a description."""
    return TensorDesc(message.dtype, message.shape, message.strides or None, message.element_offset)


def read_tensor(message: pb.Tensor) -> Array:
    """Returns an array, read-only, over the message's bytes.

    Raises:
        ShapeError: it has other bytes than its shape says.
    """
    desc = TensorDesc(message.dtype, message.shape)
    size = math.prod(desc.shape) * desc.dtype.size
    if size != len(message.data):
        raise ShapeError("Tensor", f"has {len(message.data)} bytes, its shape takes {size}", shapes=[desc.shape])
    return np.frombuffer(message.data, desc.dtype.numpy).reshape(desc.shape)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "int_value": int,
    "float_value": float,
    "bool_value": bool,
    "string_value": str,
    "bytes_value": bytes,
    "ints": lambda message: tuple(message.values),
    "floats": lambda message: tuple(message.values),
    "strings": lambda message: tuple(message.values),
    "tensor": read_tensor,
    "dtype": to_dtype,
}


def _read_attribute(op: str, name: str, message: pb.Attribute) -> Any:
    kind = message.WhichOneof("value")
    if kind is None:
        raise AttributeValueError(op, name, "has no value", wanted="one of the kinds of graph.proto")
    return _READ[kind](getattr(message, kind))
