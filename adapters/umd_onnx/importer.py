"""From an ONNX model to a Graph of the core's ops, for one binding of shapes and of the values that decide shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from umd_core import dtypes
from umd_core.errors import DTypeError, LimitError, UmdError, UnsupportedError
from umd_core.ir import Array, Graph, TensorDesc
from umd_core.ops import OPS, op_template
from umd_onnx.contents import bad_model, last_uses
from umd_onnx.functions import body_of, defaults_of
from umd_onnx.handlers import HANDLERS
from umd_onnx.handlers.common import tensor_of
from umd_onnx.host import evaluate, foldable
from umd_onnx.loading import Loaded
from umd_onnx.protos import array_of, attribute_of, bound, qualified
from umd_onnx.scope import Scope
from umd_onnx.values import (
    Computed,
    Known,
    Narrow,
    NarrowResult,
    Tensor,
    TensorSequence,
    Value,
    ValueNeededError,
    origins_of,
)

EQUAL_BYTES = 1 << 12
"""Bytes up to which equal constants are found and become one."""
BOUND_ELEMENTS = 1024
"""Elements of an integer or truth input up to which its values rather choose a branch than both are computed."""
NODES = 1 << 18
"""Nodes that are imported at most, those of unrolled loops counted each time."""
HOST_BYTES = 4 << 30
"""Bytes that are computed while importing at most."""
SEED = "umd:seed"
"""The program's argument that random ops without a seed draw from: an int64, another one at each run."""


@dataclass(slots=True)
class Imported:
    """A model for one binding.

    Attributes:
        graph: its inputs are `inputs`, then the seed; what is known are constants of it.
        inputs: names of the model's inputs that the program takes, in order.
        weights: empty until `with_arguments` makes arguments of large constants; None once one is on the device.
        outputs: for each output of the model the number of the graph's result (a `NarrowResult` where umd lacks the
            type), or the value itself (a list for a sequence).
        seeded: whether the last argument is SEED.
        referenced: ops that ONNX's reference computed while importing, because umd has none such.
    """

    graph: Graph
    inputs: list[str] = field(default_factory=list)
    weights: dict[str, Array | None] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    seeded: bool = False
    referenced: set[str] = field(default_factory=set)


Attributes = dict[str, Any]
Handler = Callable[["Importer", Scope, onnx.NodeProto, Attributes], Sequence[Value]]


class Importer:
    """Imports one model for one binding."""

    def __init__(self, loaded: Loaded, shapes: Mapping[str, TensorDesc], known: Mapping[str, Any]) -> None:
        """`shapes` describe the inputs of this binding; `known` are those whose values are part of it, lists too."""
        self._model, self._weights = loaded.model, loaded.weights
        self._shapes, self._given = shapes, known
        self.imported = Imported(Graph(loaded.model.graph.name))
        self.graph = self.imported.graph
        self._constants: dict[object, str] = {}
        self._alive: list[Array] = []
        self._source = ""
        self._nodes = self._host_bytes = self._draws = 0

    def run(self) -> Imported:
        """Returns the imported model.

        Raises:
            ValueNeededError: the values of inputs decide shapes; it says which.
            UnsupportedError: ops that are not there, all of them.
            UmdError: a node is wrong; the error names it.
        """
        scope = Scope()
        for tensor in self._model.graph.initializer:
            array = self._weights.get(tensor.name)
            scope[tensor.name] = Known(array_of(tensor) if array is None else array, tensor.name)
        for name, value in self._given.items():
            scope[name] = _known(value)
        for name, desc in self._shapes.items():
            if name not in self._given:
                self.imported.inputs.append(name)
                scope[name] = Computed(self.graph.input(name, desc), desc, frozenset([name]))
        unused = last_uses(self._model.graph)
        for index, node in enumerate(self._model.graph.node):
            self.nodes(scope, [node])
            scope.forget(unused.get(index, ()))
        for output in self._model.graph.output:
            self.imported.outputs.append(self._result(scope[output.name]))
        if self.imported.seeded:
            self.graph.inputs[SEED] = self.graph.inputs.pop(SEED)  # it comes last
        return self.imported

    def _result(self, value: Value) -> Any:
        if isinstance(value, Known):
            return value.array
        if isinstance(value, TensorSequence):
            return [self._result(item) for item in value.items]
        if value is None:
            return None
        self.graph.output(value.name)
        index = len(self.graph.outputs) - 1
        return NarrowResult(index, value.dtype) if isinstance(value, Narrow) else index

    # nodes

    def nodes(self, scope: Scope, nodes: Sequence[onnx.NodeProto]) -> None:
        """Imports nodes in order."""
        for node in nodes:
            self._nodes += 1
            if self._nodes > NODES:
                raise LimitError("nodes, those of unrolled loops counted each time,", self._nodes, NODES)
            attributes = {a.name: attribute_of(a) for a in node.attribute}
            self._source = source = node.name or (node.output[0] if node.output else "")
            try:
                results = self._node(scope, node, attributes)
            except ValueNeededError:
                raise
            except UmdError as error:
                raise error.at(node=source, op_type=node.op_type) from None
            for name, value in zip(node.output, results, strict=False):
                scope[name] = value

    def _node(self, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
        handler = HANDLERS.get(qualified(node))
        if handler is not None:
            try:
                return handler(self, scope, node, attributes)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                # Handlers rely on what ONNX's checker promises of a node; it does not look at everything.
                raise bad_model(f"node {self._source!r} ({node.op_type}): {error!r}") from error
        return self.call(node, [scope[name] for name in node.input], attributes)

    def call(self, node: onnx.NodeProto, inputs: Sequence[Value], attributes: Attributes) -> Sequence[Value]:
        """Returns the results of an op: computed now, by the op table, or by the op's own function body."""
        tensors = [self._tensor(value, node) for value in inputs]
        own = node.domain in ("", "ai.onnx") and node.op_type in OPS
        now = foldable(node, tensors)
        if own and not now:
            return self.op(node.op_type, tensors, attributes, [bool(name) for name in node.output])
        body = None if own else body_of(node, tensors)
        if body is not None:
            return self.function(body, node, inputs, [bool(name) for name in node.output])
        if now:
            return self._known_now(node, tensors)
        if node.op_type in DATA_DEPENDENT and origins_of(tensors):
            raise ValueNeededError(f"the shape of {node.op_type}'s result", node.op_type, origins_of(tensors))
        raise self._missing(node)

    def _known_now(self, node: onnx.NodeProto, inputs: Sequence[Tensor | None]) -> list[Value]:
        arrays, referenced = evaluate(node, [value.array if isinstance(value, Known) else None for value in inputs])
        self._host_bytes += sum(array.nbytes for array in arrays)
        if self._host_bytes > HOST_BYTES:
            raise LimitError("bytes computed while importing", self._host_bytes, HOST_BYTES)
        if referenced:
            self.imported.referenced.add(node.op_type)
        return [Known(array) for array in arrays]

    @staticmethod
    def _tensor(value: Value, node: onnx.NodeProto) -> Tensor | None:
        if isinstance(value, TensorSequence):
            raise UnsupportedError("a sequence is no tensor", op=node.op_type)
        return value

    def function(
        self, body: onnx.FunctionProto, node: onnx.NodeProto, inputs: Sequence[Value], wanted: Sequence[bool]
    ) -> list[Value]:
        """Returns the results of a function's body; attributes of the call take the place of its references."""
        given = {a.name: a for a in (*defaults_of(node), *body.attribute_proto, *node.attribute)}
        scope = Scope()
        for index, name in enumerate(body.input):
            scope[name] = inputs[index] if index < len(inputs) else None
        self.nodes(scope, [bound(inner, given) for inner in body.node])
        return [scope[name] if want else None for name, want in zip(body.output, wanted, strict=False)]

    def _missing(self, node: onnx.NodeProto) -> UnsupportedError:
        from umd_onnx.inspection import missing_ops  # noqa: PLC0415  # it imports this module

        names = sorted({*missing_ops(self._model), qualified(node)})
        return UnsupportedError(f"ops that umd does not have: {', '.join(names)}", op=node.op_type)

    # ops of the table

    def op(
        self, op: str, inputs: Sequence[Tensor | None], attributes: Attributes, wanted: Sequence[bool] = (True,)
    ) -> list[Value]:
        """Adds an op of the table and returns its results; None where one is not wanted.

        Raises:
            ValueNeededError: an input whose value has to be known depends on the model's inputs.
            UmdError: the op refuses its inputs or attributes.
        """
        template = op_template(op)
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        for index, value in enumerate(inputs):
            spec = template.input_spec(index)
            if spec.static and isinstance(value, Computed):
                raise ValueNeededError(f"input {spec.name}", op, value.origins)
            if isinstance(value, Narrow):
                kind, allowed = value.dtype.name, tuple(dtypes.BY_NAME)
                raise DTypeError(op, f"is {kind}, which umd does not have", input=spec.name, got=kind, allowed=allowed)
        names = [self._name(value) for value in inputs]
        descs = [None if value is None else desc_of(value) for value in inputs]
        arrays = [value.array if isinstance(value, Known) else None for value in inputs]
        call = template.call(descs, attributes, arrays, tuple(wanted))
        prefix = f"{self._source or op}:{len(self.graph.nodes)}"
        outputs = tuple(f"{prefix}.{i}" if want else "" for i, want in enumerate(wanted))
        self.graph.add(op, names, attributes, outputs=outputs, name=self._source)
        origins = origins_of(inputs)
        return [
            Computed(name, TensorDesc(desc.dtype, desc.shape), origins) if name else None
            for name, desc in zip(outputs, call.outputs, strict=False)
        ]

    def node_of(self, node: onnx.NodeProto, inputs: Sequence[Value], attributes: Attributes) -> Sequence[Value]:
        """Returns the results of a node that stands for another one, for inputs that are values already."""
        scope = Scope()
        names = [f"{index}" for index in range(len(inputs))]
        for name, value in zip(names, inputs, strict=True):
            scope[name] = value
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(names)
        return self._node(scope, copy, attributes)

    def random_keys(self) -> list[Tensor]:
        """Returns seed and offset for one more random op: the run's seed, and a number of its own."""
        if not self.imported.seeded:
            self.imported.seeded = True
            self.graph.input(SEED, TensorDesc("int64", ()))
        self._draws += 1
        return [Computed(SEED, TensorDesc("int64", ())), Known(np.array(self._draws, np.int64))]

    def may_bind(self, origins: frozenset[str]) -> bool:
        """Returns whether the values of these inputs are few integers or truths, so that they may choose a branch."""
        descs = [self._shapes[name] for name in origins]
        return bool(descs) and all(not d.dtype.is_float and d.element_count <= BOUND_ELEMENTS for d in descs)

    @staticmethod
    def desc(value: Tensor) -> TensorDesc:
        """Returns the description of a value, row-major."""
        return desc_of(value)

    def one(self, op: str, *inputs: Tensor | None, **attributes: Any) -> Tensor:
        """Returns the only result of an op of the table."""
        (value,) = self.op(op, inputs, attributes)
        return tensor_of(value, onnx.NodeProto(op_type=op))

    def _name(self, value: Tensor | None) -> str:
        """Returns the graph's name of a value; a known one becomes a constant, equal ones the same."""
        if value is None:
            return ""
        if isinstance(value, Computed):
            return value.name
        array = np.ascontiguousarray(value.array).reshape(value.array.shape)
        key = _identity(array, value)
        if key not in self._constants:
            self._constants[key] = self.graph.constant(array, f"weight:{value.weight}" if value.weight else "")
            self._alive.append(value.array)  # so that no other array gets its id
        return self._constants[key]


def _identity(array: Array, value: Known) -> object:
    """Returns what tells whether two known tensors are the same constant: small ones by their bytes."""
    if value.weight:
        return value.weight
    return (array.dtype, array.shape, array.tobytes()) if array.nbytes <= EQUAL_BYTES else id(value.array)


def _known(value: Any) -> Value:
    """Returns what an input's value stands for: an array, a list of them, or nothing."""
    if isinstance(value, (list, tuple)):
        return TensorSequence(tuple(Known(np.asarray(item)) for item in value))
    return None if value is None else Known(np.asarray(value))


DATA_DEPENDENT = frozenset({"NonZero", "Compress", "Unique", "NonMaxSuppression", "TfIdfVectorizer"})


def desc_of(value: Tensor) -> TensorDesc:
    """Returns the description of a value, row-major."""
    return value.desc if isinstance(value, Computed) else TensorDesc(value.array.dtype, value.array.shape)
