"""Constants, and ops that ask for shapes or types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from umd_core.errors import UnsupportedError
from umd_onnx.handlers.common import Attributes, extents_of, tensor_of
from umd_onnx.scope import Scope
from umd_onnx.values import Known, Value

if TYPE_CHECKING:
    from umd_onnx.importer import Handler, Importer


def _constant(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    (name, value), *rest = attributes.items()
    if rest or name.startswith("sparse"):
        raise UnsupportedError(f"Constant with attributes {', '.join(attributes)}", op="Constant")
    dtypes: Mapping[str, Any] = {
        "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
        "value_string": object, "value_strings": object,
    }  # fmt: skip
    return [Known(np.asarray(value, dtypes.get(name)))]


def _shape(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    extents = extents_of(scope[node.input[0]], node)
    return [Known(np.array(extents[attributes.get("start", 0) : attributes.get("end")], np.int64))]


def _size(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [Known(np.array(int(np.prod(extents_of(scope[node.input[0]], node), dtype=np.int64)), np.int64))]


def _identity(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    return [scope[node.input[0]]]


def _cast_like(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    value, like = (tensor_of(scope[name], node) for name in node.input)
    code = onnx.helper.np_dtype_to_tensor_dtype(like.array.dtype) if isinstance(like, Known) else like.desc.dtype.code
    cast = onnx.helper.make_node("Cast", node.input[:1], node.output, to=code, **attributes)
    return i.node_of(cast, [value], {"to": code, **attributes})


HANDLERS: Mapping[str, Handler] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
    "Identity": _identity,
    "CastLike": _cast_like,
}
