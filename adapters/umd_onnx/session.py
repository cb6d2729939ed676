"""Running ONNX models: a session shaped like onnxruntime's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from umd_core.commands import CommandBuffer
from umd_core.device import Device
from umd_core.device.tensor import Tensor
from umd_core.errors import AttributeValueError, DTypeError, ShapeError
from umd_core.ir import Array, TensorDesc
from umd_core.registry import default_device, open_device
from umd_core.translate import translator
from umd_onnx.importer import Imported, Importer
from umd_onnx.loading import Source, load_model
from umd_onnx.values import ValueNeededError

PROGRAMS = 32
"""Bindings whose programs are kept."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, as onnxruntime describes it: `type` is "tensor(float)", unknown extents are names or None."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(slots=True)
class _Program:
    imported: Imported
    buffer: CommandBuffer | None


class InferenceSession:
    """A model on a device; a context manager.

    Example:
        >>> session = umd_onnx.load("model.onnx", device="sim:0")
        >>> (scores,) = session.run(None, {"x": x})
    """

    def __init__(self, source: Source, device: str | Device = "", *, dims: Mapping[str, int] | None = None) -> None:
        """Loads a model.

        Args:
            source: path, bytes or model.
            device: by name or opened; by default the available one of highest priority.
            dims: sizes of named extents, for inputs whose description leaves them open.

        Raises:
            OSError, DecodeError, LimitError, UnsupportedError: see `load_model`.
        """
        self.model = load_model(source)
        self._owned = isinstance(device, str)
        self.device = open_device(device or default_device()) if isinstance(device, str) else device
        self._dims = dict(dims or {})
        weights = {tensor.name for tensor in self.model.graph.initializer}
        self._inputs = {info.name: info for info in self.model.graph.input if info.name not in weights}
        self._defaults = {info.name: info for info in self.model.graph.input if info.name in weights}
        self._bound: set[str] = set()
        self._programs: OrderedDict[Any, _Program] = OrderedDict()
        self._weights: dict[str, Tensor] = {}
        self._translator = translator(self.device.caps())

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the weights, and the device when the session opened it."""
        self._programs.clear()
        self._weights.clear()
        if self._owned:
            self.device.close()

    def get_inputs(self) -> list[NodeArg]:
        """Returns the inputs that `run` wants."""
        return [_argument(info) for info in self._inputs.values()]

    def get_outputs(self) -> list[NodeArg]:
        """Returns the outputs."""
        return [_argument(info) for info in self.model.graph.output]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """Returns the outputs that are named, all of them for None; a sequence is a list.

        Raises:
            AttributeValueError: an input is missing or unknown, or an output is unknown.
            DTypeError, ShapeError: an input is not what the model takes.
            UnsupportedError: the model has ops that umd lacks, all of them named.
            UmdError: a node is wrong, or the device could not run it.
        """
        wanted = self._wanted(output_names)
        feeds = self._checked(input_feed)
        program = self._program(feeds)
        results: list[Array] = []
        if program.buffer is not None:
            arguments: list[Any] = [feeds[name] for name in program.imported.inputs]
            arguments += [self._weight(key, array) for key, array in program.imported.weights.items()]
            results = [tensor.numpy() for tensor in self.device.run(program.buffer, arguments)]
        return [_resolved(program.imported.outputs[index], results) for index in wanted]

    def prepare(self, input_feed: Mapping[str, Any]) -> CommandBuffer | None:
        """Returns the program for inputs of these shapes, without running it; None when nothing is left to run."""
        return self._program(self._checked(input_feed)).buffer

    # inputs

    def _wanted(self, names: Sequence[str] | None) -> list[int]:
        known = [output.name for output in self.model.graph.output]
        for name in names or ():
            if name not in known:
                raise AttributeValueError("run", name, "is not an output", wanted=f"outputs {', '.join(known)}")
        return [known.index(name) for name in names] if names else list(range(len(known)))

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the inputs as arrays, in the model's order; sequences as lists."""
        for name in given:
            if name not in self._inputs and name not in self._defaults:
                wanted = f"inputs {', '.join(self._inputs)}"
                raise AttributeValueError("run", name, "is not an input", value=tuple(given), wanted=wanted)
        feeds: dict[str, Any] = {}
        for name, info in {**self._inputs, **{n: self._defaults[n] for n in given if n in self._defaults}}.items():
            optional = info.type.HasField("optional_type")
            if name not in given and not optional:
                wanted = f"inputs {', '.join(self._inputs)}"
                raise AttributeValueError("run", name, "is missing", value=tuple(given), wanted=wanted)
            value = given.get(name)
            feeds[name] = self._fitting(info, value) if info.type.HasField("tensor_type") else value
        self._check_named_extents(feeds)
        return feeds

    def _fitting(self, info: onnx.ValueInfoProto, value: Any) -> Array:
        array, kind = np.asarray(value), info.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if array.dtype != dtype:
            found = str(array.dtype)
            raise DTypeError("run", f"is {found}", input=info.name, got=found, allowed=(str(dtype),))
        if kind.HasField("shape"):
            shape = _argument(info).shape
            pairs = zip(shape, array.shape, strict=False)
            if len(shape) != array.ndim or any(isinstance(e, int) and e != given for e, given in pairs):
                detail = (
                    f"is {list(array.shape)}; [{', '.join('?' if e is None else str(e) for e in shape)}] would be right"
                )
                raise ShapeError("run", detail, input=info.name, shapes=[array.shape])
        return array

    def _check_named_extents(self, feeds: Mapping[str, Any]) -> None:
        known = dict(self._dims)
        for name, array in feeds.items():
            if not isinstance(array, np.ndarray):
                continue
            for extent, given in zip(_argument(self._info(name)).shape, array.shape, strict=False):
                if isinstance(extent, str) and known.setdefault(extent, given) != given:
                    detail = f"extent {extent!r} is {given} here and {known[extent]} before"
                    raise ShapeError("run", detail, input=name, shapes=[array.shape])

    def _info(self, name: str) -> onnx.ValueInfoProto:
        return self._inputs.get(name) or self._defaults[name]

    # programs

    def _program(self, feeds: Mapping[str, Any]) -> _Program:
        """Returns the program for a binding; inputs whose values decide shapes are part of the binding."""
        while True:
            key = tuple(_binding(value, name in self._bound) for name, value in feeds.items())
            program = self._programs.get(key)
            if program is not None:
                self._programs.move_to_end(key)
                return program
            try:
                program = self._programs[key] = self._import(feeds)
            except ValueNeededError as error:
                missing = error.origins - self._bound
                if not missing:
                    raise
                self._bound |= missing
                continue
            if len(self._programs) > PROGRAMS:
                self._programs.popitem(last=False)
            return program

    def _import(self, feeds: Mapping[str, Any]) -> _Program:
        shapes = {n: TensorDesc(a.dtype, a.shape) for n, a in feeds.items() if _is_tensor(a)}
        known = {n: a for n, a in feeds.items() if n in self._bound or n not in shapes}
        imported = Importer(self.model, shapes, known).run()
        if not imported.graph.outputs:
            return _Program(imported, None)
        _drop_unused(imported)
        return _Program(imported, self._translator.graph(imported.graph))

    def _weight(self, key: str, array: Array) -> Tensor:
        tensor = self._weights.get(key)
        if tensor is None:
            tensor = self._weights[key] = self.device.tensor(array)
        return tensor


def load(source: Source, device: str | Device = "", *, dims: Mapping[str, int] | None = None) -> InferenceSession:
    """Returns a session for a model; see `InferenceSession`."""
    return InferenceSession(source, device, dims=dims)


def _is_tensor(value: Any) -> bool:
    """Returns whether an input is one that the program can take; others have to be known."""
    if not isinstance(value, np.ndarray):
        return False
    try:
        TensorDesc(value.dtype, value.shape)
    except DTypeError:
        return False
    return True


def _drop_unused(imported: Imported) -> None:
    """Takes out arguments that no node needs."""
    used = {name for node in imported.graph.nodes for name in node.inputs}
    used |= {output.value for output in imported.graph.outputs}
    for name in [name for name in imported.graph.inputs if name not in used]:
        del imported.graph.inputs[name]
        imported.weights.pop(name, None)
    imported.inputs = [name for name in imported.inputs if name in used]
    for key in list(imported.graph.inputs):
        if key in imported.weights:  # the program's arguments are the inputs, then the weights
            imported.graph.inputs[key] = imported.graph.inputs.pop(key)


def _binding(value: Any, with_value: bool) -> Any:
    if isinstance(value, np.ndarray):
        base = (value.dtype.str, value.shape)
        return (
            (*base, value.tobytes())
            if with_value and value.dtype != object
            else (*base, repr(value))
            if value.dtype == object
            else base
        )
    if isinstance(value, (list, tuple)):
        return tuple(_binding(item, True) for item in value)
    return value


def _resolved(output: Any, results: Sequence[Array]) -> Any:
    if isinstance(output, int):
        return results[output]
    if isinstance(output, list):
        return [_resolved(item, results) for item in output]
    return output


def _argument(info: onnx.ValueInfoProto) -> NodeArg:
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return NodeArg(info.name, str(info.type.WhichOneof("value")), [])
    shape = [d.dim_param or (d.dim_value if d.HasField("dim_value") else None) for d in kind.shape.dim]
    name = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
    return NodeArg(info.name, f"tensor({name})", list(shape))
