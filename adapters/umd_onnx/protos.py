"""Reading ONNX's messages: names of ops, tensors, attributes, and a function's references to its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from umd_core.ir import Array
from umd_onnx.contents import bad_model


def qualified(node: onnx.NodeProto) -> str:
    """Returns "domain.Op", the domain left out where it is ONNX's."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def array_of(tensor: onnx.TensorProto) -> Array:
    """Returns a tensor's elements. Types that umd lacks are refused where they are used.

    Raises:
        DecodeError: its bytes are not those of its type and shape.
    """
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise bad_model(f"tensor {tensor.name!r} of extents {list(tensor.dims)}: {error}") from error


def attribute_of(attribute: onnx.AttributeProto) -> Any:
    """Returns an attribute's value: texts as str, tensors as arrays.

    Raises:
        DecodeError: it has no type that ONNX knows.
    """
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError as error:
        raise bad_model(f"attribute {attribute.name!r}: {error}") from error
    if isinstance(value, onnx.TensorProto):
        return array_of(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value


def bound(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Returns a node of a function with references to the function's attributes replaced; absent ones are left out."""
    if not any(a.ref_attr_name or a.HasField("g") for a in node.attribute):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                found = copy.attribute.add()
                found.CopyFrom(given[attribute.ref_attr_name])
                found.name = attribute.name
            continue
        found = copy.attribute.add()
        found.CopyFrom(attribute)
        if attribute.HasField("g"):
            inner = [bound(n, given) for n in attribute.g.node]
            del found.g.node[:]
            found.g.node.extend(inner)
    return copy
