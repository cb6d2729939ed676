"""Between the messages of translator.proto and the core's values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from umd_core.dtypes import dtype as to_dtype
from umd_core.errors import AttributeValueError, DTypeError, LimitError, ShapeError, UmdError
from umd_core.ir import Array, TensorDesc, contiguous_strides
from umd_grpc._pb.umd import translator_pb2 as pb
from umd_grpc.messages import convolutions

if TYPE_CHECKING:
    from google.protobuf.struct_pb2 import Struct, Value

VALUE_LIMIT = 64 << 10
MESSAGE_LIMIT, FACTS_LIMIT = 2_000, 8_000
_EXACT = 2**53


class OpCall(NamedTuple):
    """One op, as `umd_core.translate` takes it."""

    op: str
    inputs: list[TensorDesc | Array | None]
    attributes: dict[str, Any]


def read_request(request: pb.TranslateRequest) -> OpCall:
    """Returns the op that a request asks for.

    Raises:
        UmdError: it is not well-formed.
    """
    op = request.op_type
    inputs = [_read_input(op, index, desc) for index, desc in enumerate(request.inputs)]
    attributes: dict[str, Any] = dict(request.attributes)
    for name, value in read_struct(op, request.typed_attributes).items():
        if name in attributes:
            raise AttributeValueError(op, name, "is given twice, as text and typed", value=value, wanted="one of them")
        attributes[name] = value
    if op in convolutions.NAMES:
        first = inputs[0] if inputs else None
        attributes = convolutions.as_onnx(op, attributes, 0 if first is None else len(first.shape) - 2)
        op = "Conv"
    return OpCall(op, inputs, attributes)


def _read_input(op: str, index: int, desc: pb.TensorDesc) -> TensorDesc | Array | None:
    if not (desc.dtype or desc.shape or desc.value):
        return None
    try:
        described = TensorDesc(desc.dtype, desc.shape, desc.strides or None, desc.element_offset)
    except UmdError as error:
        raise error.at(input=desc.name or str(index)) from None
    return _read_value(op, desc, described) if desc.value else described


def _read_value(op: str, desc: pb.TensorDesc, described: TensorDesc) -> Array:
    if len(desc.value) > VALUE_LIMIT:
        raise LimitError(f"value of input {desc.name!r} in bytes", len(desc.value), VALUE_LIMIT, op=op)
    size = described.element_count * described.dtype.size
    if size != len(desc.value) or not described.is_contiguous:
        detail = f"its value has {len(desc.value)} bytes, row-major it has {size}"
        raise ShapeError(op, detail, input=desc.name, shapes=[described.shape])
    return np.frombuffer(desc.value, described.dtype.numpy).reshape(described.shape)


def read_struct(op: str, struct: Struct) -> dict[str, Any]:
    """Returns typed attributes by name; whole numbers as int.

    Raises:
        AttributeValueError: a value is an object, or a list in a list.
    """
    return {name: _read_value_of(op, name, value) for name, value in struct.fields.items()}


def _read_value_of(op: str, name: str, value: Value, in_list: bool = False) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= _EXACT else number
    if kind == "list_value" and not in_list:
        return [_read_value_of(op, name, item, in_list=True) for item in value.list_value.values]
    if kind in ("string_value", "bool_value"):
        return getattr(value, kind)
    if kind in (None, "null_value"):
        return None
    wanted = "a number, text, a truth value or a list of them"
    raise AttributeValueError(op, name, "is nested", value=kind, wanted=wanted)


def write_struct(op: str, attributes: Mapping[str, Any], struct: Struct) -> None:
    """Fills a Struct with attributes. Integers that a double cannot hold become decimal strings."""
    for name, value in attributes.items():
        if value is not None:
            struct[name] = _plain(op, name, value)


def _plain(op: str, name: str, value: Any) -> Any:
    if isinstance(value, (bool, str, float)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value) if abs(int(value)) <= _EXACT else str(int(value))
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist()
    if isinstance(value, Iterable):
        return [_plain(op, name, item) for item in value]
    try:
        return to_dtype(value).name
    except DTypeError:
        wanted = "a number, text, a truth value, an element type or a list of them"
        raise AttributeValueError(op, name, "has no form on the wire", value=value, wanted=wanted) from None


def write_desc(value: Any, desc: pb.TensorDesc) -> None:
    """Fills the description of an input: a TensorDesc, something like an array, or None for one left out."""
    if value is None:
        return
    described = TensorDesc.of(value)
    desc.dtype = described.dtype.name
    desc.shape.extend(described.shape)
    desc.element_offset = described.element_offset
    if described.strides != contiguous_strides(described.shape):
        desc.strides.extend(described.strides)


def write_value(value: Array, desc: pb.TensorDesc) -> None:
    """Fills the description of an input whose value must be known."""
    array = np.ascontiguousarray(value)
    desc.dtype = to_dtype(array.dtype).name
    desc.shape.extend(np.shape(value))
    desc.value = array.tobytes()


def read_desc(desc: pb.TensorDesc) -> TensorDesc:
    """Returns the description that a response holds."""
    return TensorDesc(desc.dtype, desc.shape, desc.strides or None, desc.element_offset)


def facts_text(error: UmdError) -> str:
    """Returns an error's facts as a JSON object; "" when they are too long to send."""
    text = json.dumps(error.facts(), default=str)
    return text if len(text) <= FACTS_LIMIT else ""


def error_text(error: BaseException) -> str:
    """Returns an error's message, shortened when it is very long."""
    text = str(error)
    return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}…"


def read_error(status: int, message: str, facts: str) -> UmdError:
    """Returns the error that another process described."""
    try:
        found = json.loads(facts) if facts else {}
    except json.JSONDecodeError:
        found = {}
    return UmdError.from_facts(status, message, found if isinstance(found, dict) else {})
