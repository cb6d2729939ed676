"""Function bodies of ops that the op table lacks, as ONNX defines them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import onnx
from onnx import defs, helper

from umd_core.ir import TensorDesc
from umd_onnx.values import Known, Tensor

OPSET = 28


@functools.cache
def _schema(op: str, domain: str) -> Any:  # onnx's stubs lack what schemas say of functions
    try:
        return defs.get_schema(op, OPSET if domain == "" else 1, domain)
    except defs.SchemaError:
        return None


def defaults_of(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    """Returns the attributes of an op that have a default, with it."""
    schema = _schema(node.op_type, "" if node.domain == "ai.onnx" else node.domain)
    attributes = schema.attributes.values() if schema is not None else ()
    return [a.default_value for a in attributes if a.default_value.name]


def has_body(node: onnx.NodeProto) -> bool:
    """Returns whether ONNX defines an op by others."""
    schema = _schema(node.op_type, "" if node.domain == "ai.onnx" else node.domain)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def body_of(node: onnx.NodeProto, inputs: Sequence[Tensor | None]) -> onnx.FunctionProto | None:
    """Returns the body of an op for inputs of these types, None when ONNX defines none."""
    schema = _schema(node.op_type, "" if node.domain == "ai.onnx" else node.domain)
    if schema is None:
        return None
    if schema.has_function:
        return _parsed(schema.function_body)
    if schema.has_context_dependent_function:
        types = [_type(value).SerializeToString() for value in inputs]
        versions = schema.context_dependent_function_opset_versions
        newest = max((v for v in versions if v <= OPSET), default=None)
        if newest is None:
            return None
        raw = schema.get_context_dependent_function_with_opset_version(newest, node.SerializeToString(), types)
        return onnx.FunctionProto.FromString(raw) if raw else None
    return None


def _parsed(body: onnx.FunctionProto | bytes) -> onnx.FunctionProto:
    return body if isinstance(body, onnx.FunctionProto) else onnx.FunctionProto.FromString(body)


def _type(value: Tensor | None) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    desc = TensorDesc(value.array.dtype, value.array.shape) if isinstance(value, Known) else value.desc
    return helper.make_tensor_type_proto(desc.dtype.code, desc.shape)
