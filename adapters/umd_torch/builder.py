"""What an emitter writes with: values of the graph under construction, and the ops that make more of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.errors import UmdError, UnsupportedError
from umd_core.ir import Array, Graph, Node, TensorDesc, row_major
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


class Interned:
    """Numbers of ops and constants by what they are. Builders that share it give equal constants equal names."""

    def __init__(self) -> None:
        self._ops: dict[Any, int] = {}
        self._constants: dict[Any, tuple[Value, Array]] = {}

    def __len__(self) -> int:
        return len(self._ops) + len(self._constants)

    def op(self, signature: Any) -> int:
        """Returns the number of an op: its name, inputs, wanted results and attributes."""
        return self._ops.setdefault(signature, len(self._ops))

    def constant(self, array: Array) -> tuple[Value, Array]:
        """Returns the value of these elements, and the array that holds them: the same for equal ones."""
        dtype = dtypes.dtype(array.dtype)
        key = (dtype.code, array.shape, array.tobytes())
        found = self._constants.get(key)
        if found is None:
            found = Value(f"constant:{len(self._constants)}", dtype, array.shape), array
            self._constants[key] = found
        return found


class Added(NamedTuple):
    """An op that an emitter asked for: its number, its results, and the node that was added for it, if it was new."""

    number: int
    values: tuple[Value, ...]
    node: Node | None


@dataclass(slots=True)
class Record:
    """What one emitter added to a graph.

    Attributes:
        name: the node of the framework's graph.
        constants: what it used of them, by name.
        added: the ops that it asked for, in order.
        is_repeatable: whether that is all, and depends on nothing else that a builder holds.
    """

    name: str
    constants: dict[str, Array] = field(default_factory=dict)
    added: list[Added] = field(default_factory=list)
    is_repeatable: bool = True


class Builder:
    """Adds ops to a graph. The same op on the same values is added once.

    `declare_seed` declares the input that holds the seed; it is called once, when the first random op comes.
    `interned` is shared by builders whose records are repeated by each other.

    Attributes:
        promises: what torch says the node returns that is being lowered, one per result.
        open_sizes: whether the graph has to have the same ops for other sizes.
        row_major: whether the node's first tensor is known to fill its storage in row-major order from the start.
        record: where what is added is noted, None where it is not.
    """

    def __init__(self, graph: Graph, declare_seed: Callable[[], Value], interned: Interned | None = None) -> None:
        self._graph = graph
        self._descs: dict[str, TensorDesc] = {}
        self._declare_seed = declare_seed
        self._seed: Value | None = None
        self._draws = 0
        self._fixed: tuple[Value, Value] | None = None
        self.promises: tuple[Promise, ...] = ()
        self.row_major = self.open_sizes = False
        self._name = ""
        self._source = ""
        self.record: Record | None = None
        self._size = (0, 0, 0)
        self._interned = Interned() if interned is None else interned
        self._seen: dict[int, tuple[Value, ...]] = {}  # by number of the op
        self._ints: dict[tuple[int, ...], tuple[Value, Array]] = {}
        self._counts: dict[str, int] = {}  # of ops, by the node that they belong to

    # the graph; an emitter that looks at it sees what was made of other nodes, and is asked again for other sizes

    @property
    def graph(self) -> Graph:
        """What is being built."""
        self._looks_around()
        return self._graph

    @property
    def descs(self) -> dict[str, TensorDesc]:
        """What the results of its nodes are, by name."""
        self._looks_around()
        return self._descs

    def _looks_around(self) -> None:
        if self.record is not None:
            self.record.is_repeatable = False

    def known(self, value: Value) -> Array | None:
        """Returns a value's elements where the program knows them."""
        return self._graph.constants.get(value.name)

    # the node that is being lowered

    def at(self, name: str, source: str, promises: tuple[Promise, ...], *, row_major: bool = False) -> None:
        """Says which node of the framework's graph the next ops belong to."""
        self._name, self._source, self.promises, self.row_major = name, source, promises, row_major

    def begin(self) -> None:
        """From now on, what is added for the node is noted."""
        self.record = Record(self._name)
        self._size = self._sizes()

    def end(self) -> Record:
        """Returns what was added for the node since `begin`."""
        record, self.record = self.record or Record(self._name), None
        inputs, outputs, nodes = self._size
        noted = (inputs, outputs, nodes + sum(op.node is not None for op in record.added))
        record.is_repeatable = record.is_repeatable and noted == self._sizes()
        return record

    def _sizes(self) -> tuple[int, int, int]:
        return len(self._graph.inputs), len(self._graph.outputs), len(self._graph.nodes)

    def repeat(self, record: Record) -> bool:
        """Adds what an emitter added for the node in another graph; does nothing where it would not add just that.

        The builder of that graph shares `interned` with this one.
        """
        seen, nodes, descs = self._seen, self._graph.nodes, self._descs
        if record.name != self._name or self._counts.get(record.name) or self.open_sizes or not record.is_repeatable:
            return False
        for number, values, node in record.added:
            if seen.get(number) != (values if node is None else None):
                return False
        count = 0
        for number, values, node in record.added:
            if node is None:
                continue
            seen[number] = values
            nodes.append(node)
            count += 1
            for name, dtype, shape in values:
                if name:
                    descs[name] = row_major(dtype, shape)
        self._counts[record.name] = count
        self._graph.constants.update(record.constants)
        return True

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
        self._graph.input(name, desc)
        return Value(name, desc.dtype, desc.shape)

    def constant(self, value: Array) -> Value:
        """Returns a value that is known now and becomes part of the program."""
        array = np.ascontiguousarray(value).reshape(value.shape)
        if self.open_sizes:  # what is equal for these sizes differs for others
            return Value(self._graph.constant(array), dtypes.dtype(array.dtype), array.shape)
        return self._known(self._interned.constant(array))

    def _known(self, found: tuple[Value, Array]) -> Value:
        value, array = found
        self._graph.constants[value.name] = array
        if self.record is not None:
            self.record.constants[value.name] = array
        return value

    def scalar(self, value: object, dtype: DType) -> Value:
        """Returns a 0-d constant."""
        if isinstance(value, complex):
            raise self.unsupported("complex numbers are not there")
        with np.errstate(over="ignore", invalid="ignore"):
            return self.constant(np.asarray(value).astype(dtype.numpy))

    def ints(self, values: Sequence[int]) -> Value:
        """Returns a 1-d int64 constant, as static inputs want it."""
        numbers = tuple(map(int, values))
        if self.open_sizes:
            return self.constant(np.asarray(numbers, np.int64))
        found = self._ints.get(numbers)
        if found is None:
            found = self._ints[numbers] = self._interned.constant(np.asarray(numbers, np.int64))
        return self._known(found)

    def keys(self) -> tuple[Value, Value]:
        """Returns seed and offset of one more random tensor: the call's seed, and an offset that no other has."""
        self._looks_around()
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
        frozen = tuple([(n, _frozen(v)) for n, v in sorted(given.items())]) if given else ()
        number = self._interned.op((op, names, tuple(wanted), frozen))
        found = self._seen.get(number)
        is_new = found is None
        if found is None:
            found = self._seen[number] = self._add(op, inputs, names, tuple(wanted), given)
        if self.record is not None:
            self.record.added.append(Added(number, found, self._graph.nodes[-1] if is_new else None))
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
        descs = [None if v is None else row_major(v.dtype, v.shape) for v in inputs]
        values = [self._graph.constants.get(name) for name in names]
        call = template.call(descs, attributes, values, wanted)
        label = self._name or op
        count = self._counts[label] = self._counts.get(label, 0) + 1
        outputs = tuple([f"{label}:{count}.{i}" if want else "" for i, want in enumerate(wanted)])
        self._graph.add(op, names, attributes, outputs=outputs, name=self._name, source=self._source)
        results = list(zip(outputs, call.outputs, strict=False))
        self._descs.update((name, desc) for name, desc in results if name)
        return tuple([Value(name, desc.dtype, desc.shape) for name, desc in results])

    # what most emitters need

    def cast(self, value: Value, dtype: DType) -> Value:
        """Returns the value with another element type."""
        if value.dtype is dtype:
            return value
        known = self.known(value)
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
