"""Element types that umd does not have: read where they are known, refused by name where a program would make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

from umd_core import dtypes
from umd_core.errors import DTypeError
from umd_core.ir import Array
from umd_onnx.handlers.common import Attributes
from umd_onnx.scope import Scope
from umd_onnx.values import Computed, Known, Value

if TYPE_CHECKING:
    from umd_onnx.importer import Handler, Importer

_WIDER = {
    **dict.fromkeys(("int4", "int2"), np.int8),
    **dict.fromkeys(("uint4", "uint2"), np.uint8),
    **dict.fromkeys(
        (
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "float4_e2m1fn",
        ),
        np.float32,
    ),
}
"""What holds every number of a narrow type, exactly."""


def _widened(value: Value) -> Value:
    """Returns a known tensor of a narrow type as one of a type that umd has; other values as they are."""
    if isinstance(value, Known) and value.array.dtype.name in _WIDER:
        wide: Array = value.array.astype(_WIDER[value.array.dtype.name])
        return Known(wide)
    return value


def _cast(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    to, value = attributes.get("to"), scope[node.input[0]]
    if to in dtypes.BY_CODE:
        return i.call(node, [_widened(value)], attributes)
    if isinstance(value, Computed):
        name = onnx.TensorProto.DataType.Name(to).lower() if to in onnx.TensorProto.DataType.values() else str(to)
        raise DTypeError("Cast", f"to {name}, which umd does not have", got=name, allowed=tuple(dtypes.BY_NAME))
    return i.call(node, [value], attributes)


def _dequantize(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """Integers of a narrow type are those of a wider one; floats would be another computation."""
    values = [scope[name] for name in node.input]
    narrow = [v.array.dtype.name for v in values if isinstance(v, Known) and v.array.dtype.name in _WIDER]
    if any(name.startswith("float") for name in narrow):
        allowed = tuple(d.name for d in dtypes.INTEGERS)
        raise DTypeError(node.op_type, f"is {narrow[0]}, which umd does not have", got=narrow[0], allowed=allowed)
    return i.call(node, list(map(_widened, values)), attributes)


HANDLERS: Mapping[str, Handler] = {"Cast": _cast, "DequantizeLinear": _dequantize}
