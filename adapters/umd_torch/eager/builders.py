"""Builds the graph of a call: arguments as inputs, in the layout that they have; results in torch's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from umd_core.dtypes import DType, int64
from umd_core.errors import UnsupportedError
from umd_core.ir import Graph, TensorDesc, contiguous_strides
from umd_torch.builder import SEED, Builder, Value, from_torch
from umd_torch.eager.slots import Draft, Geometry, Made, Slot, Source, Varying, meets_itself
from umd_torch.eager.tensors import extent
from umd_torch.layouts import Layout, is_dense
from umd_torch.lowering.layout import MAX_INDEXED


class EagerBuilder(Builder):
    """A builder that knows the arguments of a call.

    Attributes:
        sources: what is bound to each input.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, self._declare)
        self.sources: dict[str, Source] = {}

    def _declare(self) -> Value:
        self.sources[SEED] = Source("seed", 0, int64)
        return self.input(SEED, TensorDesc(int64, ()))

    def argument(self, slot: Slot) -> Value:
        """Returns the value of an argument."""
        return self._bound("number" if slot.on_host else "tensor", slot.index, slot.geometry.desc)

    def _bound(self, kind: str, index: int, desc: TensorDesc) -> Value:
        name = argument_name(index) if kind == "tensor" else f"{kind}:{index}:{desc.dtype}"
        if name not in self.sources:
            self.sources[name] = Source(kind, index, desc.dtype)
            return self.input(name, desc)
        return Value(name, desc.dtype, desc.shape)

    def scalar(self, value: object, dtype: DType) -> Value:
        """Returns a 0-d constant, or the input that a varying number comes by."""
        if isinstance(value, Varying):
            return self._bound("number", value.index, TensorDesc(dtype, ()))
        return super().scalar(value, dtype)


def argument_name(index: int) -> str:
    """Returns the name of the input that is a tensor argument."""
    return f"tensor:{index}"


class Finish:
    """Declares the outputs of a graph: first what overwrites arguments, then new tensors.

    `written` says what tensor arguments become, `geometries` how they lie.
    """

    def __init__(self, builder: EagerBuilder, written: Mapping[int, Value], geometries: Mapping[int, Geometry]) -> None:
        self._builder, self._graph = builder, builder.graph
        self._made: list[Made] = []
        self._returns: list[tuple[str, Any]] = []
        for target, value in written.items():
            geometry = geometries[target]
            value = builder.expand(builder.cast(value, from_torch(geometry.dtype)), geometry.shape)
            self._made.append(Made(target, Layout(*geometry)))
            self._graph.output(value.name, geometry.desc, alias=argument_name(target))

    def target(self, index: int) -> None:
        """Returns an argument that was written."""
        self._returns.append(("target", index))

    def value(self, value: Any) -> None:
        """Returns something that is no tensor of the program."""
        self._returns.append(("value", value))

    def tensor(self, value: Value, layout: Layout) -> None:
        """Returns a new tensor in this layout, gaps and repetitions included."""
        self._returns.append(("made", len(self._made)))
        self._made.append(Made(-1, layout))
        stored, desc = _stored(self._builder, value, layout)
        self._graph.output(stored.name, desc)

    def result(self, value: Any, promised: Any) -> None:
        """Returns a new tensor as torch promised it, or what is none."""
        if isinstance(value, Value) and isinstance(promised, torch.Tensor):
            self.tensor(value, own_layout(tuple(promised.shape), promised.stride(), promised.dtype))
        else:
            self.value(None if isinstance(value, Value) else value)

    def draft(self, *, single: bool) -> Draft:
        """Returns the whole. Inputs that nothing reads are left out: results may go where they lie."""
        graph = self._graph
        read = {name for node in graph.nodes for name in node.inputs} | {o.value for o in graph.outputs}
        for name in [name for name in graph.inputs if name not in read]:
            del graph.inputs[name]
        for output in graph.outputs:
            if output.alias is not None and output.alias not in graph.inputs:
                output.alias = None
        sources = [self._builder.sources[name] for name in graph.inputs]
        return Draft(graph, sources, self._made, self._returns, single)


def _stored(builder: Builder, value: Value, layout: Layout) -> tuple[Value, TensorDesc]:
    """Returns the value that fills the bytes of a layout, and how it lies there: programs write no byte twice."""
    if layout.dense:
        return value, layout.desc
    for axis, stride in enumerate(layout.strides):
        if stride == 0:
            value = builder.slice(value, axis, 0, 1)
    if not meets_itself(value.shape, layout.strides):
        return value, Geometry(layout.dtype, value.shape, layout.strides).desc
    places = _places(value.shape, layout.strides)
    flat = builder.reshape(value, (math.prod(value.shape),))
    return builder.op("Gather", flat, builder.constant(places), axis=0), TensorDesc(value.dtype, places.shape)


def _places(shape: Sequence[int], strides: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns, for each element of a storage, which element of a tensor over it lies there; 0 in gaps.

    Raises:
        UnsupportedError: there are too many for a constant of a program.
    """
    size = extent(shape, strides)
    if size > MAX_INDEXED:
        raise UnsupportedError(f"a result whose elements overlap in {size} places is not there")
    storage = np.arange(size, dtype=np.int64)
    seen = np.lib.stride_tricks.as_strided(storage, shape, [stride * storage.itemsize for stride in strides])
    places = np.zeros_like(storage)
    places[seen.ravel()] = np.arange(seen.size)
    return places


def kept_layout(layout: Layout) -> Layout:
    """Returns how a tensor that only programs need is best kept: without gaps, repeated elements once."""
    if layout.dense:
        return layout
    repeated = [stride == 0 for stride in layout.strides]
    plain = contiguous_strides([1 if again else e for e, again in zip(layout.shape, repeated, strict=True)])
    strides = tuple([0 if again else step for step, again in zip(plain, repeated, strict=True)])
    return Layout(layout.dtype, layout.shape, strides)


def own_layout(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Layout:
    """Returns the layout of a new tensor: these strides where they leave no gaps, else row-major ones."""
    plain = strides if is_dense(shape, strides) else contiguous_strides(shape)
    return Layout(dtype, tuple(shape), tuple(plain))
