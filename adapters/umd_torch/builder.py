"""What an emitter writes with: values of the graph under construction, and the ops that make more of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.errors import UmdError, UnsupportedError
from umd_core.ir import Array, Graph, TensorDesc
from umd_core.ops import op_template

Shape = tuple[int, ...]
SEED = "random:seed"
"""Name of the input that holds the seed of a call's random numbers; no node and no parameter has such a name."""
_DTYPES: dict[torch.dtype, DType] = {}


def from_torch(dtype: torch.dtype) -> DType:
    """Returns umd's element type for torch's.

    Raises:
        DTypeError: umd has none (complex, quantised).
    """
    found = _DTYPES.get(dtype)
    if found is None:
        found = _DTYPES[dtype] = dtypes.dtype(dtype)
    return found


class Value(NamedTuple):
    """A tensor in the graph: its name, element type and shape. It has no layout; only inputs and outputs have."""

    name: str
    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


class Promise(NamedTuple):
    """What torch says that a node returns."""

    dtype: DType
    shape: Shape


class Builder:
    """Adds ops to a graph. The same op on the same values is added once.

    `declare_seed` declares the input that holds the seed; it is called once, when the first random op comes.

    Attributes:
        graph: what is being built.
        descs: what the results of its nodes are, by name.
        promises: what torch says the node returns that is being lowered, one per result.
        open_sizes: whether the graph has to have the same ops for other sizes.
        row_major: whether the node's first tensor is known to fill its storage in row-major order from the start.
    """

    def __init__(self, graph: Graph, declare_seed: Callable[[], Value]) -> None:
        self.graph = graph
        self.descs: dict[str, TensorDesc] = {}
        self._declare_seed = declare_seed
        self._seed: Value | None = None
        self._draws = 0
        self._fixed: tuple[Value, Value] | None = None
        self.promises: tuple[Promise, ...] = ()
        self.row_major = self.open_sizes = False
        self._name = ""
        self._source = ""
        self._seen: dict[Any, tuple[Value, ...]] = {}
        self._scalars: dict[Any, Value] = {}

    # the node that is being lowered

    def at(self, name: str, source: str, promises: tuple[Promise, ...], *, row_major: bool = False) -> None:
        """Says which node of the framework's graph the next ops belong to."""
        self._name, self._source, self.promises, self.row_major = name, source, promises, row_major

    @property
    def dtype(self) -> DType:
        """Element type of the node's first result."""
        return self.promises[0].dtype

    @property
    def shape(self) -> Shape:
        """Shape of the node's first result."""
        return self.promises[0].shape

    def unsupported(self, reason: str) -> UnsupportedError:
        """Returns the error that says why the node cannot be lowered."""
        return UnsupportedError(reason)

    # values

    def input(self, name: str, desc: TensorDesc) -> Value:
        """Declares an argument of the program."""
        self.graph.input(name, desc)
        return Value(name, desc.dtype, desc.shape)

    def constant(self, value: Array) -> Value:
        """Returns a value that is known now and becomes part of the program."""
        array = np.ascontiguousarray(value).reshape(value.shape)
        dtype = dtypes.dtype(array.dtype)
        if self.open_sizes and array.ndim:  # lists that are equal for these sizes differ for others
            return Value(self.graph.constant(array), dtype, array.shape)
        key = (dtype.code, array.shape, array.tobytes())
        found = self._scalars.get(key)
        if found is None:
            found = self._scalars[key] = Value(self.graph.constant(array), dtype, array.shape)
        return found

    def scalar(self, value: object, dtype: DType) -> Value:
        """Returns a 0-d constant."""
        if isinstance(value, complex):
            raise self.unsupported("complex numbers are not there")
        with np.errstate(over="ignore", invalid="ignore"):
            return self.constant(np.asarray(value).astype(dtype.numpy))

    def ints(self, values: Sequence[int]) -> Value:
        """Returns a 1-d int64 constant, as static inputs want it."""
        return self.constant(np.asarray([int(v) for v in values], np.int64))

    def keys(self) -> tuple[Value, Value]:
        """Returns seed and offset of one more random tensor: the call's seed, and an offset that no other has."""
        if self._fixed is not None:
            return self._fixed
        if self._seed is None:
            self._seed = self._declare_seed()
        offset = self.scalar(self._draws, dtypes.int64)
        self._draws += 1
        return self._seed, offset

    @contextlib.contextmanager
    def drawing(self, keys: tuple[Value, Value], promises: tuple[Promise, ...]) -> Generator[None]:
        """Within the block one random tensor is made by these keys, and torch promises this of it."""
        before, self._fixed, self.promises = self.promises, keys, promises
        try:
            yield
        finally:
            self._fixed, self.promises = None, before

    # ops

    def op(self, op: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Adds an op and returns its first result."""
        return self.ops(op, inputs, (True,), attributes)[0]

    def ops(
        self,
        op: str,
        inputs: Sequence[Value | None],
        wanted: Sequence[bool],
        attributes: dict[str, Any] | None = None,
    ) -> tuple[Value, ...]:
        """Adds an op and returns a value per result; those that are not `wanted` are not computed.

        Raises:
            UmdError: the op refuses its inputs or attributes.
        """
        given = {name: value for name, value in (attributes or {}).items() if value is not None}
        names = tuple("" if v is None else v.name for v in inputs)
        key = (op, names, tuple(wanted), tuple((n, _frozen(v)) for n, v in sorted(given.items())))
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = self._add(op, inputs, names, tuple(wanted), given)
        return found

    def _add(
        self,
        op: str,
        inputs: Sequence[Value | None],
        names: tuple[str, ...],
        wanted: tuple[bool, ...],
        attributes: dict[str, Any],
    ) -> tuple[Value, ...]:
        template = op_template(op)
        descs = [None if v is None else TensorDesc(v.dtype, v.shape) for v in inputs]
        values = [self.graph.constants.get(name) for name in names]
        call = template.call(descs, attributes, values, wanted)
        prefix = f"{self._name or op}:{len(self.graph.nodes)}"
        outputs = tuple(f"{prefix}.{i}" if want else "" for i, want in enumerate(wanted))
        self.graph.add(op, names, attributes, outputs=outputs, name=self._name, source=self._source)
        self.descs.update((n, desc) for n, desc in zip(outputs, call.outputs, strict=False) if n)
        return tuple(Value(name, desc.dtype, desc.shape) for name, desc in zip(outputs, call.outputs, strict=False))

    # what most emitters need

    def cast(self, value: Value, dtype: DType) -> Value:
        """Returns the value with another element type."""
        if value.dtype is dtype:
            return value
        known = self.graph.constants.get(value.name)
        if known is not None and known.ndim == 0:
            return self.scalar(known, dtype)
        return self.op("Cast", value, to=dtype)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Returns the elements, row-major, in another shape."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        if math.prod(value.shape) != math.prod(shape):
            raise self.unsupported(f"{list(value.shape)} does not reshape to {list(shape)}")
        return self.op("Reshape", value, self.ints(shape), allowzero=1 if 0 in shape else None)

    def transpose(self, value: Value, axes: Sequence[int]) -> Value:
        """Returns the value with its axes in another order."""
        if list(axes) == list(range(value.rank)):
            return value
        return self.op("Transpose", value, perm=tuple(axes))

    def expand(self, value: Value, shape: Sequence[int]) -> Value:
        """Returns the value broadcast to a shape."""
        return value if value.shape == tuple(shape) else self.op("Expand", value, self.ints(shape))

    def slice(self, value: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """Returns the elements [start:stop:step] along an axis; start and stop lie within the extent."""
        if (start, stop, step) == (0, value.shape[axis], 1):
            return value
        return self.op("Slice", value, self.ints([start]), self.ints([stop]), self.ints([axis]), self.ints([step]))

    def full(self, value: object, dtype: DType, shape: Sequence[int]) -> Value:
        """Returns a tensor whose every element is `value`."""
        return self.expand(self.scalar(value, dtype), shape)

    def squeeze(self, value: Value, axis: int) -> Value:
        """Returns the value without an axis of extent 1."""
        return self.reshape(value, value.shape[:axis] + value.shape[axis + 1 :])

    def unsqueeze(self, value: Value, axis: int) -> Value:
        """Returns the value with an axis of extent 1 before `axis`."""
        return self.reshape(value, (*value.shape[:axis], 1, *value.shape[axis:]))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def axis_of(axis: int, rank: int) -> int:
    """Returns an axis counted from the front; torch allows 0 and -1 for 0-d tensors."""
    return axis % rank if rank else 0


__all__ = ["SEED", "Builder", "Promise", "Shape", "UmdError", "Value", "axis_of", "from_torch"]
