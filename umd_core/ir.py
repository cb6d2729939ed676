"""What a framework hands over: TensorDesc, Node, Graph."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umd_core.dtypes import DType
from umd_core.dtypes import dtype as to_dtype
from umd_core.errors import InputCountError, LimitError, ShapeError

Array = NDArray[Any]
Attributes = Mapping[str, Any]

MAX_RANK = 8
MAX_ELEMENTS = 2**63 - 1
MAX_BYTES = 2**62 - 1


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the row-major strides of `shape`, in elements."""
    strides = []
    step = 1
    for extent in shape[::-1]:
        strides.append(step)
        if extent > 1:
            step *= extent
    return tuple(strides[::-1])


class TensorDesc:
    """Shape, element type and layout of a tensor. Hashable: never change one.

    Attributes:
        dtype: element type.
        shape: extents; () is a 0-d tensor.
        strides: in elements, possibly negative; row-major when not given.
        element_offset: where element (0, …, 0) lies in the buffer, in elements.
        key: everything that translation depends on, as one hashable tuple.
    """

    __slots__ = ("dtype", "element_offset", "key", "shape", "strides")
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_offset: int
    key: tuple[Any, ...]

    def __init__(
        self, dtype: object, shape: Sequence[int], strides: Sequence[int] | None = None, element_offset: int = 0
    ) -> None:
        """Checks and builds the description.

        Raises:
            DTypeError: unknown element type.
            ShapeError: a negative extent, or strides of another rank.
            LimitError: rank above 8, 2^63 elements or more, or 2^62 bytes or more.
        """
        self.dtype = dtype if type(dtype) is DType else to_dtype(dtype)
        self.shape = extents = tuple(map(int, shape))
        if strides is None:
            self.strides = contiguous_strides(extents)
        else:
            self.strides = tuple(map(int, strides))
            self._check_layout(element_offset)
        self.element_offset = element_offset
        if len(extents) > MAX_RANK:
            raise LimitError("rank", len(extents), MAX_RANK)
        if extents and min(extents) < 0:
            raise ShapeError("TensorDesc", f"negative extent in {list(extents)}", shapes=[extents])
        count = math.prod(extents)
        if count > MAX_ELEMENTS:
            raise LimitError("element count", count, MAX_ELEMENTS)
        if count * self.dtype.size > MAX_BYTES:
            raise LimitError("tensor size in bytes", count * self.dtype.size, MAX_BYTES)
        self.key = (self.dtype.code, extents, self.strides, element_offset)

    def _check_layout(self, element_offset: int) -> None:
        extents, steps = self.shape, self.strides
        if len(steps) != len(extents):
            raise ShapeError("TensorDesc", f"{len(steps)} strides for rank {len(extents)}", shapes=[extents, steps])
        low = sum((e - 1) * s for e, s in zip(extents, steps, strict=True) if s < 0 < e)
        if element_offset + low < 0:
            raise ShapeError("TensorDesc", "strides and element_offset reach below the buffer", shapes=[extents, steps])

    @classmethod
    def of(cls, value: object) -> TensorDesc:
        """Returns the description of a TensorDesc, a NumPy array, or anything with dtype and shape.

        A NumPy array's own strides are kept; element (0, …, 0) of a reversed view has a positive element_offset.
        """
        if isinstance(value, TensorDesc):
            return value
        if isinstance(value, np.ndarray):
            size = value.itemsize
            if value.size == 0 or any(s % size for s in value.strides):
                return cls(value.dtype, value.shape)
            strides = tuple(s // size for s in value.strides)
            offset = sum((1 - e) * s for e, s in zip(value.shape, strides, strict=True) if s < 0 < e)
            return cls(value.dtype, value.shape, strides, offset)
        desc = getattr(value, "desc", None)
        if isinstance(desc, TensorDesc):
            return desc
        array: Any = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
        return cls(array.dtype, array.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorDesc, (self.dtype.name, self.shape, self.strides, self.element_offset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorDesc) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        layout = "" if self.is_contiguous else f", strides={self.strides}, element_offset={self.element_offset}"
        return f"TensorDesc({self.dtype.name}[{','.join(map(str, self.shape))}]{layout})"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def element_count(self) -> int:
        """Number of elements; 1 for a 0-d tensor."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie row-major from offset 0 on, without gaps."""
        if self.element_offset:
            return False
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return self.element_count == 0
            expected *= extent
        return True

    @property
    def byte_size(self) -> int:
        """Bytes of buffer that the tensor needs, from the buffer's start to its last element."""
        return self.span()[1]

    def span(self) -> tuple[int, int]:
        """Returns the range of buffer bytes that the elements lie in: first byte, one past the last."""
        low = high = self.element_offset
        for extent, stride in zip(self.shape, self.strides, strict=True):
            if extent == 0:
                return (0, 0)
            if stride < 0:
                low += (extent - 1) * stride
            else:
                high += (extent - 1) * stride
        return (low * self.dtype.size, (high + 1) * self.dtype.size)


@functools.lru_cache(1 << 14)
def row_major(dtype: DType, shape: tuple[int, ...]) -> TensorDesc:
    """Returns the description of a tensor without gaps, the same object for the same type and shape.

    Raises:
        ShapeError, LimitError: as `TensorDesc` does.
    """
    return TensorDesc(dtype, shape)


@dataclass(slots=True)
class Node:
    """One op of a graph. Inputs and outputs are value names; "" stands for an optional input left out."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    source: str = ""


@dataclass(slots=True)
class Output:
    """A graph output: the value, the layout it is wanted in (None: contiguous), the input it replaces in place."""

    value: str
    desc: TensorDesc | None = None
    alias: str | None = None


class Graph:
    """Ops on named values, in program order.

    Attributes:
        fuses: whether elementwise launches that follow each other become one when it is translated.
        kin: shared by graphs that are alike: what translating one leaves to the next. Their nodes are never changed.

    Example:
        >>> g = Graph()
        >>> x = g.input("x", TensorDesc("f32", (2, 3)))
        >>> g.output(g.add("Relu", [x]))
    """

    __slots__ = ("_serial", "constants", "fuses", "inputs", "kin", "name", "nodes", "outputs")

    def __init__(self, name: str = "") -> None:
        self.name: str = name
        self.inputs: dict[str, TensorDesc] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.outputs: list[Output] = []
        self.fuses: bool = False
        self.kin: dict[Any, Any] | None = None
        self._serial = 0

    def _fresh(self, prefix: str) -> str:
        self._serial += 1
        return f"{prefix}_{self._serial}"

    def input(self, name: str, desc: TensorDesc) -> str:
        """Declares an argument and returns its name."""
        if name in self.inputs:
            raise InputCountError(f"graph {self.name!r}", 2, 1, 1, f"definitions of input {name!r}")
        self.inputs[name] = desc
        return name

    def constant(self, value: object, name: str = "") -> str:
        """Adds a value that is known now and becomes part of the program; returns its name."""
        name = name or self._fresh("constant")
        self.constants[name] = np.asarray(value)
        return name

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Attributes | None = None,
        *,
        outputs: Sequence[str] | None = None,
        name: str = "",
        source: str = "",
    ) -> str:
        """Appends a node and returns its first output's name."""
        names = tuple(outputs) if outputs else (self._fresh(op.rpartition(".")[2]),)
        self.nodes.append(Node(op, tuple(inputs), names, dict(attributes or {}), name, source))
        return names[0]

    def add_many(
        self,
        op: str,
        inputs: Sequence[str],
        count: int,
        attributes: Attributes | None = None,
        *,
        name: str = "",
        source: str = "",
    ) -> tuple[str, ...]:
        """Appends a node with `count` outputs and returns their names."""
        names = tuple(self._fresh(op.rpartition(".")[2]) for _ in range(count))
        self.nodes.append(Node(op, tuple(inputs), names, dict(attributes or {}), name, source))
        return names

    def output(self, value: str, desc: TensorDesc | None = None, *, alias: str | None = None) -> None:
        """Declares a result. `desc` fixes its layout; `alias` names the input whose buffer it overwrites."""
        self.outputs.append(Output(value, desc, alias))
