"""Nodes whose inputs are all known, computed while the model is imported: shape arithmetic, and weights made ready."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from umd_core.device import Device
from umd_core.errors import UmdError, UnsupportedError
from umd_core.ir import Array, Attributes, Graph, TensorDesc
from umd_core.ops import OPS
from umd_core.registry import open_device
from umd_core.translate import translate
from umd_onnx.protos import attribute_of
from umd_onnx.values import Known, Tensor

LIMIT = 256 << 20
"""Bytes of inputs up to which a node is computed while importing."""
GROWING = frozenset({"Expand", "Tile", "ConstantOfShape", "Range", "OneHot", "EyeLike", "Resize", "Upsample"})
GROWING_LIMIT = 1 << 16
"""Elements of the result up to which an op is computed that makes much of little."""
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


def foldable(node: onnx.NodeProto, inputs: Sequence[Tensor | None]) -> bool:
    """Returns whether a node is to be computed now."""
    if node.op_type in RANDOM or not all(value is None or isinstance(value, Known) for value in inputs):
        return False
    if node.op_type == "Dropout" and len(inputs) > 2:
        return False
    arrays = [value.array for value in inputs if isinstance(value, Known)]
    if sum(array.nbytes for array in arrays) > LIMIT:
        return False
    return node.op_type not in GROWING or _result_size(node, arrays) <= GROWING_LIMIT


def _result_size(node: onnx.NodeProto, arrays: Sequence[Array]) -> int:
    """Returns about how many elements the result of an op in GROWING has."""
    sizes = [a for a in arrays if a.dtype.kind == "i" and a.ndim == 1]
    if node.op_type == "ConstantOfShape":
        return math.prod(int(e) for e in arrays[0])
    if node.op_type == "Range":
        start, limit, step = (float(a.reshape(-1)[0]) for a in arrays)
        return int(abs((limit - start) / step)) + 1 if step else 0
    return max([a.size for a in arrays]) * max([int(np.prod(np.abs(a))) or 1 for a in sizes], default=1)


@functools.cache
def _device() -> Device:
    return open_device("sim:0")


def evaluate(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> tuple[list[Array], bool]:
    """Returns the results of a node, and whether they are those of ONNX's own reference.

    That is asked for what the op table does not have: texts, types that umd lacks, results whose size depends on data.

    Raises:
        UmdError: the node is wrong.
        UnsupportedError: neither knows the op.
    """
    if node.op_type in OPS and node.domain in ("", "ai.onnx"):
        try:
            return _run(node, inputs), False
        except UmdError as error:
            if not isinstance(error, UnsupportedError) and all(array is None or _has(array) for array in inputs):
                raise
    return _reference(node, inputs), True


def _has(array: Array) -> bool:
    try:
        TensorDesc(array.dtype, ())
    except UmdError:
        return False
    return True


def _run(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> list[Array]:
    attributes = {a.name: attribute_of(a) for a in node.attribute}
    return computed(node.op_type, inputs, attributes, [bool(name) for name in node.output])


def evaluated(op: str, inputs: Sequence[Array | None], attributes: Attributes) -> list[Array]:
    """Returns the results of an op of the table that are not optional: for passes that fold constants."""
    return computed(op, inputs, attributes, [True for result in OPS[op].results if not result.optional])


def computed(op: str, inputs: Sequence[Array | None], attributes: Attributes, wanted: Sequence[bool]) -> list[Array]:
    """Returns the results of an op of the table; empty where one is not wanted."""
    graph = Graph(op)
    given = list(inputs)
    while given and given[-1] is None:
        given.pop()
    template = OPS[op]
    names, arguments = [], []
    for index, array in enumerate(given):
        if array is None:
            names.append("")
        elif template.input_spec(index).static:
            names.append(graph.constant(array))
        else:
            names.append(graph.input(f"x{index}", TensorDesc(array.dtype, array.shape)))
            arguments.append(np.ascontiguousarray(array).reshape(array.shape))
    outputs = tuple(f"y{i}" if want else "" for i, want in enumerate(wanted))
    graph.add(op, names, attributes, outputs=outputs)
    for name in outputs:
        if name:
            graph.output(name)
    results = iter(_device().run(translate(graph), arguments))
    return [next(results).numpy() if name else np.empty(0) for name in outputs]


def _reference(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> list[Array]:
    """Returns what ONNX's reference computes for one node."""
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(inputs)]
    outputs = [f"y{i}" if name else "" for i, name in enumerate(node.output)]
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:], copy.output[:]
    copy.input.extend(names)
    copy.output.extend(outputs)
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    info = [onnx.helper.make_tensor_value_info(n, _code(a), a.shape) for n, a in feeds.items()]
    wanted = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = onnx.helper.make_graph([copy], "node", info, wanted)
    imports = [
        onnx.helper.make_opsetid("", 28),
        onnx.helper.make_opsetid(node.domain or "", 28 if not node.domain else 1),
    ]
    try:
        evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports[: 2 if node.domain else 1]))
        found: Any = evaluator.run(None, feeds)
    except Exception as error:  # the reference raises whatever comes up
        raise UnsupportedError(f"cannot be computed: {type(error).__name__}: {error}", op=node.op_type) from error
    results = iter(found)
    return [np.asarray(next(results)) if name else np.empty(0) for name in outputs]


def _code(array: Array) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
