"""Element types that umd does not have: their numbers are held by a wider type, which has all of them.

What is known is read as it is; what a program computes is rounded on the device (`narrowing`) and becomes the narrow
type when it leaves the program. Cast, CastLike, QuantizeLinear and DequantizeLinear are what such tensors may be given
to; any other op refuses them by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from umd_core import dtypes
from umd_core.errors import DTypeError
from umd_core.ir import Array
from umd_onnx.handlers.common import Attributes, tensor_of
from umd_onnx.handlers.narrowing import FLOATS, INTEGERS, clipped, computed, narrowed
from umd_onnx.scope import Scope
from umd_onnx.values import Computed, Known, Narrow, Tensor, Value

if TYPE_CHECKING:
    from umd_onnx.importer import Handler, Importer

_WIDER: Mapping[str, np.dtype[Any]] = {
    **{name: holder.numpy for name, holder in INTEGERS.items()},
    **dict.fromkeys((*FLOATS, "float8_e8m0fnu"), np.dtype(np.float32)),
}
"""What holds every number of a narrow type, exactly."""


def _narrow_type(value: Value) -> np.dtype[Any] | None:
    """Returns the narrow type that a tensor is of, None where umd has it."""
    if isinstance(value, Narrow):
        return value.dtype
    return value.array.dtype if isinstance(value, Known) and value.array.dtype.name in _WIDER else None


def _widened(value: Value) -> Value:
    """Returns a tensor of a narrow type as one of the type that holds it; other values as they are."""
    if isinstance(value, Narrow):
        return value.wide()
    if isinstance(value, Known) and value.array.dtype.name in _WIDER:
        wide: Array = value.array.astype(_WIDER[value.array.dtype.name])
        return Known(wide)
    return value


def _type_of(code: int) -> np.dtype[Any] | None:
    """Returns the narrow type of an ONNX number, None for other types."""
    if not code or code in dtypes.BY_CODE or code not in onnx.TensorProto.DataType.values():
        return None
    found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))
    return found if found.name in _WIDER else None


def _cast(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    to, value = attributes.get("to"), scope[node.input[0]]
    if to in dtypes.BY_CODE:
        return i.call(node, [_widened(value)], attributes)
    if isinstance(value, Computed):
        return [_to(i, value, int(to or 0), attributes)]
    return i.call(node, [value], attributes)


def _cast_like(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    value, target = (scope[name] for name in node.input)
    wanted = _narrow_type(target)
    if wanted is not None and isinstance(value, Computed):
        return [narrowed(i, _plain(value), wanted, saturate=bool(attributes.get("saturate", 1)))]
    return i.call(node, [value if wanted is not None else _widened(value), target], attributes)


def _to(i: Importer, value: Computed, code: int, attributes: Attributes) -> Value:
    """Returns a computed tensor as one of the narrow type that an ONNX number means.

    Raises:
        DTypeError: there is no way to it.
    """
    wanted = _type_of(code)
    if wanted is None:
        known = code in onnx.TensorProto.DataType.values()
        name = onnx.TensorProto.DataType.Name(code).lower() if known else str(code)
        raise DTypeError("Cast", f"to {name}, which umd does not have", got=name, allowed=tuple(dtypes.BY_NAME))
    return narrowed(i, _plain(value), wanted, saturate=bool(attributes.get("saturate", 1)))


def _plain(value: Computed) -> Computed:
    return value.wide() if isinstance(value, Narrow) else value


def _quantize(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """Integers of a narrow type are those of a byte, cut off earlier; floats are quotients, rounded to the type."""
    values = [scope[name] if name else None for name in node.input]
    point = values[2] if len(values) > 2 else None
    wanted = _narrow_type(point) or _type_of(int(attributes.get("output_dtype", 0)))
    if wanted is None or not any(isinstance(value, Computed) for value in values):
        return i.call(node, values, attributes)
    if wanted.name in INTEGERS:
        own = {**attributes, "output_dtype": INTEGERS[wanted.name].code}
        (whole,) = i.op("QuantizeLinear", [_tensor(_widened(value)) for value in values], own)
        return [clipped(i, tensor_of(whole, node), wanted)]
    quotient = _quotient(i, tensor_of(values[0], node), tensor_of(values[1], node), attributes)
    return [narrowed(i, quotient, wanted, saturate=bool(attributes.get("saturate", 1)))]


def _quotient(i: Importer, x: Tensor, scale: Tensor, attributes: Attributes) -> Computed:
    precision = dtypes.BY_CODE.get(int(attributes.get("precision", 0)))
    if precision is not None:
        x, scale = (i.one("Cast", value, to=precision) for value in (x, scale))
    return computed(i.one("Div", x, _along(i, scale, x, attributes)))


def _dequantize(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    """Integers of a narrow type are those of a wider one; floats are multiplied, their zero point is 0."""
    values = [scope[name] if name else None for name in node.input]
    kind = _narrow_type(values[0])
    if kind is None or kind.name in INTEGERS or not any(isinstance(value, Computed) for value in values):
        return i.call(node, list(map(_widened, values)), attributes)
    x, scale = tensor_of(_widened(values[0]), node), tensor_of(values[1], node)
    wanted = dtypes.BY_CODE.get(int(attributes.get("output_dtype", 0))) or i.desc(scale).dtype
    factor = _along(i, i.one("Cast", scale, to=dtypes.float32), x, attributes)
    return [i.one("Cast", i.one("Mul", x, factor), to=wanted)]


def _along(i: Importer, scale: Tensor, x: Tensor, attributes: Attributes) -> Tensor:
    """Returns scales of a whole tensor, or of each place of an axis, so that they broadcast.

    Raises:
        DTypeError: there is a scale for each block of an axis.
    """
    count, rank = i.desc(scale).shape, len(i.desc(x).shape)
    if attributes.get("block_size"):
        raise DTypeError("QuantizeLinear", "blocks of 8-bit floats", got="block_size", allowed=("block_size 0",))
    if count in ((), (1,)):
        return scale
    shape = [1] * rank
    shape[int(attributes.get("axis", 1)) % rank] = count[0]
    return i.one("Reshape", scale, Known(np.array(shape, np.int64)))


def _tensor(value: Value) -> Tensor | None:
    return value if isinstance(value, (Known, Computed)) else None


HANDLERS: Mapping[str, Handler] = {
    "Cast": _cast,
    "CastLike": _cast_like,
    "DequantizeLinear": _dequantize,
    "QuantizeLinear": _quantize,
}
"""What a name of the model stands for while it is imported."""
