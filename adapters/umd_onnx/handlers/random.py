"""Random ops without a seed: other numbers at each run, from a seed that the program takes as an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx

from umd_onnx.handlers.common import Attributes, extents_of, tensor_of
from umd_onnx.scope import Scope
from umd_onnx.values import Known, Tensor, Value

if TYPE_CHECKING:
    from umd_onnx.importer import Handler, Importer


def _drawn(
    i: Importer, op: str, inputs: Sequence[Tensor], attributes: Attributes, node: onnx.NodeProto
) -> Sequence[Value]:
    return i.op(f"umd.{op}", [*inputs, *i.random_keys()], attributes, [bool(name) for name in node.output])


def _shaped(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    if "seed" in attributes:
        return i.op(node.op_type, [], attributes)
    return _drawn(i, node.op_type, [], attributes, node)


def _like(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    like = tensor_of(scope[node.input[0]], node)
    if "seed" in attributes:
        return i.op(node.op_type, [like], attributes)
    dtype = attributes.get("dtype") or i.desc(like).dtype.code
    wanted = {**attributes, "dtype": dtype, "shape": extents_of(like, node)}
    return _drawn(i, node.op_type.removesuffix("Like"), [], wanted, node)


def _bernoulli(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    chances = tensor_of(scope[node.input[0]], node)
    if "seed" in attributes:
        return i.op(node.op_type, [chances], attributes)
    return _drawn(i, node.op_type, [chances], attributes, node)


def _dropout(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    inputs = [scope[name] for name in node.input]
    ratio, training = (inputs[n] if n < len(inputs) else None for n in (1, 2))
    trains = isinstance(training, Known) and bool(training.array.reshape(-1)[0])
    known = ratio is None or isinstance(ratio, Known)
    if not trains or "seed" in attributes or not known:
        return i.call(node, inputs, attributes)
    chance = 0.5 if not isinstance(ratio, Known) else float(ratio.array.reshape(-1)[0])
    if chance == 0:
        return i.call(node, inputs, attributes)
    return _drawn(i, "Dropout", [tensor_of(inputs[0], node)], {"ratio": chance}, node)


HANDLERS: Mapping[str, Handler] = {
    "RandomNormal": _shaped,
    "RandomUniform": _shaped,
    "RandomNormalLike": _like,
    "RandomUniformLike": _like,
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
}
