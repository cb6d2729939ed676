"""What a model takes: its inputs as onnxruntime describes them, and whether arrays fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from umd_core.errors import AttributeValueError, DTypeError, ShapeError

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

    def has(self, shape: tuple[int, ...]) -> bool:
        """Returns whether an array of this shape fits."""
        if self.shape is None:
            return True
        pairs = zip(self.shape, shape, strict=False)
        return len(self.shape) == len(shape) and not any(e != extent and type(e) is int for e, extent in pairs)

    def named(self) -> list[tuple[int, str]]:
        """Returns the axes whose extents have names, with these."""
        return [(axis, extent) for axis, extent in enumerate(self.shape or ()) if isinstance(extent, str)]


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
        self._named = {name: named for name, wanted in self._wanted.items() if (named := wanted.named())}

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
        for name, info in self.inputs.items():
            if name in given:
                feeds[name] = self._fitting(name, given[name])
            elif info.type.HasField("optional_type"):
                feeds[name] = None
            else:
                wanted = f"inputs {', '.join(self.inputs)}"
                raise AttributeValueError("run", name, "is missing", value=tuple(given), wanted=wanted)
        feeds |= {name: self._fitting(name, given[name]) for name in self.defaults if name in given}
        self._check_named_extents(feeds)
        return feeds

    def _unknown(self, name: str, given: object = None) -> AttributeValueError:
        wanted = f"inputs {', '.join(self.inputs)}"
        return AttributeValueError("run", name, "is not an input of the model", value=given, wanted=wanted)

    def _fitting(self, name: str, value: Any) -> Any:
        wanted = self._wanted.get(name)
        if wanted is None:
            return value
        array = np.asarray(value)
        if array.dtype != wanted.dtype and not (wanted.dtype.kind == "O" and array.dtype.kind in "US"):
            found = str(array.dtype)
            raise DTypeError("run", f"is {found}", input=name, got=found, allowed=(str(wanted.dtype),))
        if not wanted.has(array.shape):
            detail = f"is {list(array.shape)}; {shown(wanted.shape or ())} would be right"
            raise ShapeError("run", detail, input=name, shapes=[array.shape])
        return array

    def _check_named_extents(self, feeds: Mapping[str, Any]) -> None:
        known: dict[str, int] = {}
        for name, named in self._named.items():
            shape = feeds[name].shape if name in feeds else ()
            for axis, extent in named if shape else ():
                if known.setdefault(extent, shape[axis]) != shape[axis]:
                    detail = f"extent {extent!r} is {shape[axis]} here and {known[extent]} before"
                    raise ShapeError("run", detail, input=name, shapes=[shape])
