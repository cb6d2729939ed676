"""What a lowering returns: the views it wants over its bindings' bytes, and the call over them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from umd_core.dtypes import DType, bfloat16, float16
from umd_core.dtypes import bool_ as boolean
from umd_core.kernels import KernelRecord
from umd_sim.scratch import Scratch

Array = NDArray[Any]
Call = Callable[[], Any]
Strides = tuple[int, ...]


class Bytes(Protocol):
    """What a binding's buffer is to a lowering: `memory` is a flat array of bytes."""

    @property
    def memory(self) -> Any:
        """(size,) uint8."""
        ...


Bound = tuple[Bytes, int, int]
"""(buffer, offset, size in bytes): a Binding."""

HALVES = (float16, bfloat16)
FLOAT32 = np.dtype(np.float32)


class View(NamedTuple):
    """An array over the bytes of one binding: strides and offset in bytes."""

    operand: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: Strides
    offset: int


@dataclass(frozen=True, slots=True)
class Executable:
    """A kernel with one parameter block baked in.

    Attributes:
        views: the arrays that `bind` is given.
        bind: (parameter block, arrays, scratch memory) -> the call that runs the kernel over them. Only patchable
            fields are read from the block here.
    """

    views: tuple[View, ...]
    bind: Callable[[bytes, Sequence[Array], Scratch], Call]


def bind(executable: Executable, parameters: bytes, bindings: Sequence[Bound], scratch: Scratch) -> Call:
    """Returns the call that runs an executable over its bindings' bytes, any number of times."""
    arrays = []
    for operand, dtype, shape, strides, offset in executable.views:
        buffer, start, _ = bindings[operand]
        arrays.append(np.ndarray(shape, dtype, buffer.memory, start + offset, strides))
    return executable.bind(parameters, arrays, scratch)


def in_turn(calls: Sequence[Call]) -> Call:
    """Returns the call that makes several."""
    return calls[0] if len(calls) == 1 else functools.partial(_make_all, tuple(calls))


def _make_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def nothing() -> None:
    """Runs a launch that has no element to write."""


Bind = Callable[[bytes, Sequence[Array], Scratch], Call]


def running(function: Callable[..., None], *known: Any) -> Bind:
    """Returns an executable's `bind` that calls `function(*known, *arrays, scratch)`."""

    def bound(parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
        return functools.partial(function, *known, *arrays, scratch)

    return bound


def filling(*values: float) -> Bind:
    """Returns an executable's `bind` that fills each array with a value."""

    def fill(arrays: Sequence[Array]) -> None:
        for array, value in zip(arrays, values, strict=True):
            array.fill(value)

    return lambda parameters, arrays, scratch: functools.partial(fill, arrays)


NOTHING = Executable((), lambda parameters, arrays, scratch: nothing)


def product(extents: Sequence[int]) -> int:
    """Returns the number of elements of a box."""
    return math.prod(extents)


def compute_type(dtype: DType) -> np.dtype[Any]:
    """Returns the NumPy type that arithmetic on `dtype` is done in."""
    return FLOAT32 if dtype in HALVES else dtype.numpy


def storage_type(dtype: DType, *, read: bool = True) -> np.dtype[Any]:
    """Returns the NumPy type of a view: bools are read as bytes, since any non-zero byte is true."""
    return np.dtype(np.uint8) if dtype is boolean and read else dtype.numpy


def patchable_values(record: KernelRecord, parameters: bytes) -> tuple[Any, ...]:
    """Returns the values of the row's patchable fields, in order: read when a launch is bound."""
    flat = record.struct.unpack(parameters)
    return tuple(flat[record.index_of[f.name][0]] for f in record.row.fields if f.patchable)


class Launch:
    """The parameters of one launch, by name.

    Attributes:
        record: the kernel's record.
        values: every parameter by name; arrays as tuples.
    """

    def __init__(self, record: KernelRecord, parameters: bytes) -> None:
        self.record = record
        self.values = record.unpack(parameters)
        self._views = {v.name: (i, v) for i, v in enumerate(record.views(parameters))}

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def size(self, index: int) -> int:
        """Returns the value of the index-th leading array length."""
        return self.record.sizes[index]

    def dtype(self, name: str) -> DType:
        """Returns the element type of an operand."""
        return self._views[name][1].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the extents of an operand's box."""
        return self._views[name][1].shape

    def strides(self, name: str) -> Strides:
        """Returns the strides of an operand's box, in bytes."""
        return self._views[name][1].strides

    def view(
        self,
        name: str,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> View:
        """Returns a view of an operand; its own box when no shape is given."""
        index, box = self._views[name]
        if dtype is None:
            dtype = storage_type(box.dtype, read="w" not in self.record.row.operands[index].access)
        if shape is None or strides is None:
            shape, strides = box.shape, box.strides
        return View(index, dtype, tuple(shape), tuple(strides), box.offset)


def coalesce(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], list[Strides]]:
    """Returns an equal box without extents of 1 and with neighbours merged wherever every operand allows it."""
    extents: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        steps = [s[axis] for s in strides]
        if extents and all(k[-1] == step * extent for k, step in zip(kept, steps, strict=True)):
            extents[-1] *= extent
            for k, step in zip(kept, steps, strict=True):
                k[-1] = step
        else:
            extents.append(extent)
            for k, step in zip(kept, steps, strict=True):
                k.append(step)
    return tuple(extents), [tuple(k) for k in kept]


def narrowed(shape: Sequence[int], strides: Strides) -> tuple[tuple[int, ...], Strides]:
    """Returns a read operand's box with extent 1 where its stride is 0, and () when it is a single element.

    NumPy broadcasts it back, and treats a 0-d operand as a constant.
    """
    if not any(strides):
        return (), ()
    return tuple(1 if step == 0 else extent for extent, step in zip(shape, strides, strict=True)), strides
