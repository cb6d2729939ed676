"""From an ONNX model to a Graph of the core's ops, for one binding of shapes and of the values that decide shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from umd_core.errors import DTypeError, UmdError, UnsupportedError
from umd_core.ir import Array, Graph, TensorDesc
from umd_core.ops import OPS, op_template
from umd_onnx.functions import body_of, defaults_of
from umd_onnx.host import evaluate, foldable
from umd_onnx.values import Computed, Known, Tensor, TensorSequence, Value, ValueNeededError, origins_of

CONSTANT_LIMIT = 1 << 16
"""Bytes up to which a known tensor becomes part of the program; larger ones are arguments, on the device once."""


@dataclass(slots=True)
class Imported:
    """A model for one binding.

    Attributes:
        graph: its inputs are `inputs`, then `weights`.
        inputs: names of the model's inputs that the program takes, in order.
        weights: known tensors that the program takes, by a key that is the same for the same bytes.
        outputs: for each output of the model the number of the graph's result, or the value itself (a list for a
            sequence).
        referenced: ops that ONNX's reference computed while importing, because umd has none such.
    """

    graph: Graph
    inputs: list[str] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    referenced: set[str] = field(default_factory=set)


class Scope:
    """Names and what they stand for: the model's graph, a branch of it or a function's body."""

    def __init__(self, outer: Scope | None = None) -> None:
        self._outer = outer
        self._values: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if not name:
            return None
        scope: Scope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            scope = scope._outer
        raise UnsupportedError(f"value {name!r} is used before it is there")

    def __setitem__(self, name: str, value: Value) -> None:
        if name:
            self._values[name] = value


Attributes = dict[str, Any]
Handler = Callable[["Importer", Scope, onnx.NodeProto, Attributes], Sequence[Value]]


class Importer:
    """Imports one model for one binding."""

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, TensorDesc], known: Mapping[str, Any]) -> None:
        """`shapes` describe the inputs of this binding; `known` are those whose values are part of it, lists too."""
        self._model, self._shapes, self._given = model, shapes, known
        self.imported = Imported(Graph(model.graph.name))
        self.graph = self.imported.graph
        self._weights: dict[str, str] = {}
        self._constants: dict[bytes, str] = {}
        self._source = ""

    def run(self) -> Imported:
        """Returns the imported model.

        Raises:
            ValueNeededError: the values of inputs decide shapes; it says which.
            UnsupportedError: ops that are not there, all of them.
            UmdError: a node is wrong; the error names it.
        """
        scope = Scope()
        for tensor in self._model.graph.initializer:
            scope[tensor.name] = Known(array_of(tensor), tensor.name)
        for name, value in self._given.items():
            scope[name] = _known(value)
        for name, desc in self._shapes.items():
            if name not in self._given:
                self.imported.inputs.append(name)
                scope[name] = Computed(self.graph.input(name, desc), desc, frozenset([name]))
        self.nodes(scope, self._model.graph.node)
        for output in self._model.graph.output:
            self.imported.outputs.append(self._result(scope[output.name]))
        for key, name in self._weights.items():
            assert name in self.graph.inputs, key
        return self.imported

    def _result(self, value: Value) -> Any:
        if isinstance(value, Known):
            return value.array
        if isinstance(value, TensorSequence):
            return [self._result(item) for item in value.items]
        if value is None:
            return None
        self.graph.output(value.name)
        return len(self.graph.outputs) - 1

    # nodes

    def nodes(self, scope: Scope, nodes: Sequence[onnx.NodeProto]) -> None:
        """Imports nodes in order."""
        for node in nodes:
            attributes = {a.name: attribute_of(a) for a in node.attribute}
            self._source = node.name or (node.output[0] if node.output else "")
            try:
                results = self.node(scope, node, attributes)
            except ValueNeededError:
                raise
            except UmdError as error:
                raise error.at(node=self._source, op_type=node.op_type) from None
            for name, value in zip(node.output, results, strict=False):
                scope[name] = value

    def node(self, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
        """Returns the results of one node."""
        handler = HANDLERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if handler is not None:
            return handler(self, scope, node, attributes)
        inputs = [scope[name] for name in node.input]
        return self.call(node, inputs, attributes, scope)

    def call(
        self, node: onnx.NodeProto, inputs: Sequence[Value], attributes: Attributes, scope: Scope
    ) -> Sequence[Value]:
        """Returns the results of an op: computed now, by the op table, or by the op's own function body."""
        tensors = [self._tensor(value, node) for value in inputs]
        if foldable(node, tensors):
            arrays, referenced = evaluate(node, [t.array if isinstance(t, Known) else None for t in tensors])
            if referenced:
                self.imported.referenced.add(node.op_type)
            return [Known(array) for array in arrays]
        if node.domain in ("", "ai.onnx") and node.op_type in OPS:
            return self.op(node.op_type, tensors, attributes, [bool(name) for name in node.output])
        body = body_of(node, tensors)
        if body is None:
            origins = origins_of(tensors)
            if node.op_type in DATA_DEPENDENT and origins:
                raise ValueNeededError(f"the shape of {node.op_type}'s result", node.op_type, origins)
            raise self._missing(node)
        return self._function(body, node, inputs)

    @staticmethod
    def _tensor(value: Value, node: onnx.NodeProto) -> Tensor | None:
        if isinstance(value, TensorSequence):
            raise UnsupportedError("a sequence is no tensor", op=node.op_type)
        return value

    def _function(self, body: onnx.FunctionProto, node: onnx.NodeProto, inputs: Sequence[Value]) -> Sequence[Value]:
        """Returns the results of a function's body; attributes of the call take the place of its references."""
        given = {a.name: a for a in (*defaults_of(node), *body.attribute_proto, *node.attribute)}
        scope = Scope()
        for index, name in enumerate(body.input):
            scope[name] = inputs[index] if index < len(inputs) else None
        self.nodes(scope, [bound(inner, given) for inner in body.node])
        wanted = list(node.output) + [""] * (len(body.output) - len(node.output))
        return [scope[inner] if name else None for inner, name in zip(body.output, wanted, strict=False)]

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
        names = [self._name(value, static=template.input_spec(i).static) for i, value in enumerate(inputs)]
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

    def one(self, op: str, *inputs: Tensor | None, **attributes: Any) -> Tensor:
        """Returns the first result of an op; computed now when all inputs are known and it is small."""
        (value,) = self.op(op, inputs, attributes)
        assert isinstance(value, Computed)  # a wanted result is there
        return value

    def _name(self, value: Tensor | None, *, static: bool) -> str:
        """Returns the graph's name of a value; a known one becomes a constant, or an argument when it is large."""
        if value is None:
            return ""
        if isinstance(value, Computed):
            return value.name
        array = np.ascontiguousarray(value.array).reshape(value.array.shape)
        if static or array.nbytes <= CONSTANT_LIMIT:
            raw = repr((array.dtype, array.shape)).encode() + array.tobytes()
            key = raw if len(raw) < 64 else hashlib.sha256(raw).digest()
            if key not in self._constants:
                self._constants[key] = self.graph.constant(array)
            return self._constants[key]
        return self._argument(array, value.weight)

    def _argument(self, array: Array, weight: str) -> str:
        key = f"weight:{weight}" if weight else f"sha256:{hashlib.sha256(array.tobytes()).hexdigest()}"
        if key not in self._weights:
            self._weights[key] = self.graph.input(key, TensorDesc.of(array))
            self.imported.weights[key] = array
        return self._weights[key]


def _known(value: Any) -> Value:
    """Returns what an input's value stands for: an array, a list of them, or nothing."""
    if isinstance(value, (list, tuple)):
        return TensorSequence(tuple(Known(np.asarray(item)) for item in value))
    return None if value is None else Known(np.asarray(value))


DATA_DEPENDENT = frozenset({"NonZero", "Compress", "Unique", "NonMaxSuppression", "TfIdfVectorizer"})


def qualified(node: onnx.NodeProto) -> str:
    """Returns "domain.Op", the domain left out where it is ONNX's."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def desc_of(value: Tensor) -> TensorDesc:
    """Returns the description of a value, row-major."""
    return value.desc if isinstance(value, Computed) else TensorDesc(value.array.dtype, value.array.shape)


def array_of(tensor: onnx.TensorProto) -> Array:
    """Returns a tensor's elements. Types that umd lacks are refused where they are used."""
    return np.asarray(numpy_helper.to_array(tensor))


def attribute_of(attribute: onnx.AttributeProto) -> Any:
    """Returns an attribute's value: texts as str, tensors as arrays."""
    value = onnx.helper.get_attribute_value(attribute)
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


def check_type(name: str, dtype: object) -> None:
    """Raises DTypeError when umd has no such element type."""
    try:
        TensorDesc(dtype, ())
    except DTypeError as error:
        raise DTypeError("import", f"is {dtype}, which umd does not have", input=name, got=str(dtype)) from error


from umd_onnx.handlers import HANDLERS  # noqa: E402  # handlers and the importer call each other
