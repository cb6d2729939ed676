"""What a model takes: its inputs as onnxruntime describes them, and whether arrays fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from umd_core.errors import AttributeValueError, DTypeError, ShapeError
from umd_core.ir import Array

Extent = int | str | None


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, as onnxruntime describes it: `type` is "tensor(float)", unknown extents are names or None."""

    name: str
    type: str
    shape: list[Extent]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What an input has to be; `shape` is None where every shape is right, named extents that are known are numbers."""

    dtype: np.dtype[Any]
    shape: list[Extent] | None


def argument(info: onnx.ValueInfoProto) -> NodeArg:
    """Returns the description of an input or output."""
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return NodeArg(info.name, str(info.type.WhichOneof("value")), [])
    name = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
    return NodeArg(info.name, f"tensor({name})", [extent_of(dim) for dim in kind.shape.dim])


def extent_of(dim: onnx.TensorShapeProto.Dimension) -> Extent:
    """Returns an extent: a number, a name, or None; some exporters write -1 or "?" for that."""
    if dim.dim_param:
        return dim.dim_param if dim.dim_param != "?" else None
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def shown(shape: Iterable[Extent]) -> str:
    """Returns a shape as people read it: [batch, 3, ?]."""
    return f"[{', '.join('?' if extent is None else str(extent) for extent in shape)}]"


class Feeds:
    """The inputs of a model.

    Attributes:
        inputs: those that a run has to give, by name.
        defaults: those that have a value in the model, and may be given.
    """

    def __init__(
        self, graph: onnx.GraphProto, dims: Mapping[str, int], shapes: Mapping[str, Sequence[Extent]] | None = None
    ) -> None:
        """`dims` are sizes of named extents; `shapes` take the place of the shapes that the model states.

        Raises:
            AttributeValueError: `shapes` names no input.
        """
        weights = {tensor.name for tensor in graph.initializer}
        self.inputs = {info.name: info for info in graph.input if info.name not in weights}
        self.defaults = {info.name: info for info in graph.input if info.name in weights}
        self._dims, self._shapes = dict(dims), {name: list(shape) for name, shape in (shapes or {}).items()}
        for name in self._shapes:
            if name not in self.inputs:
                raise self._unknown(name)
        everything = {**self.inputs, **self.defaults}
        self._wanted = {n: self._want(info) for n, info in everything.items() if info.type.HasField("tensor_type")}

    def arguments(self) -> list[NodeArg]:
        """Returns the inputs that a run has to give."""
        return [self._argument(info) for info in self.inputs.values()]

    def _want(self, info: onnx.ValueInfoProto) -> _Wanted:
        shape = [self._dims.get(e, e) if isinstance(e, str) else e for e in self._argument(info).shape]
        fixed = info.type.tensor_type.HasField("shape") or info.name in self._shapes
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        return _Wanted(dtype, shape if fixed else None)

    def _argument(self, info: onnx.ValueInfoProto) -> NodeArg:
        found = argument(info)
        return NodeArg(found.name, found.type, self._shapes.get(found.name, found.shape))

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the inputs as arrays, in the model's order; sequences as lists.

        Raises:
            AttributeValueError: one is missing or unknown.
            DTypeError, ShapeError: one is not what the model takes.
        """
        for name in given:
            if name not in self.inputs and name not in self.defaults:
                raise self._unknown(name, tuple(given))
        feeds: dict[str, Any] = {}
        for name, info in {**self.inputs, **{n: self.defaults[n] for n in given if n in self.defaults}}.items():
            if name not in given and not info.type.HasField("optional_type"):
                wanted = f"inputs {', '.join(self.inputs)}"
                raise AttributeValueError("run", name, "is missing", value=tuple(given), wanted=wanted)
            value = given.get(name)
            feeds[name] = self._fitting(name, value) if name in self._wanted else value
        self._check_named_extents(feeds)
        return feeds

    def _unknown(self, name: str, given: object = None) -> AttributeValueError:
        wanted = f"inputs {', '.join(self.inputs)}"
        return AttributeValueError("run", name, "is not an input of the model", value=given, wanted=wanted)

    def _fitting(self, name: str, value: Any) -> Array:
        array, wanted = np.asarray(value), self._wanted[name]
        if array.dtype != wanted.dtype and not (wanted.dtype.kind == "O" and array.dtype.kind in "US"):
            found = str(array.dtype)
            raise DTypeError("run", f"is {found}", input=name, got=found, allowed=(str(wanted.dtype),))
        shape = wanted.shape
        if shape is not None:
            pairs = zip(shape, array.shape, strict=False)
            if len(shape) != array.ndim or any(isinstance(e, int) and e != extent for e, extent in pairs):
                detail = f"is {list(array.shape)}; {shown(shape)} would be right"
                raise ShapeError("run", detail, input=name, shapes=[array.shape])
        return array

    def _check_named_extents(self, feeds: Mapping[str, Any]) -> None:
        known: dict[str, int] = {}
        for name, wanted in self._wanted.items():
            if name not in feeds:
                continue
            for extent, given in zip(wanted.shape or (), feeds[name].shape, strict=False):
                if isinstance(extent, str) and known.setdefault(extent, given) != given:
                    detail = f"extent {extent!r} is {given} here and {known[extent]} before"
                    raise ShapeError("run", detail, input=name, shapes=[feeds[name].shape])
