"""A call, or a traced graph, before translation: what stands for its arguments, what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import torch

from umd_core.dtypes import DType
from umd_core.errors import UnsupportedError
from umd_core.ir import Graph, TensorDesc
from umd_torch.builder import from_torch
from umd_torch.layouts import Layout

Number = bool | int | float


class Geometry(NamedTuple):
    """How a tensor argument lies."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def desc(self) -> TensorDesc:
        """The description that a program uses, gaps and repetitions included."""
        return TensorDesc(from_torch(self.dtype), self.shape, None if 0 in self.shape else self.strides)


def meets_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether two elements of a tensor share bytes, as far as its strides in order tell."""
    reach = 0
    for stride, size in sorted((s, e) for e, s in zip(shape, strides, strict=True) if e != 1):
        if size == 0:
            return False
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for an argument: tensor number `index`, or, on the host, number `index`.

    `number` is an example of what comes, by which torch promotes types; None for a tensor without dimensions, which
    is promoted as a tensor.
    """

    index: int
    geometry: Geometry
    on_host: bool = False
    number: Number | None = None


def is_slot(x: object) -> TypeGuard[Slot]:
    """Returns whether something stands for an argument."""
    return isinstance(x, Slot)


class Source(NamedTuple):
    """What is bound to an input of the program: "tensor" or "number" and which, or "seed"; its type there."""

    kind: str
    which: int
    dtype: DType


class Made(NamedTuple):
    """What an output of the program is: a new tensor of a layout, or the tensor argument `target` overwritten."""

    target: int
    layout: Layout


@dataclass(slots=True)
class Draft:
    """A call before translation.

    Attributes:
        graph: the program.
        sources: per input of the program.
        made: per output of the program.
        returns: per result of the call, ("made", output), ("target", tensor argument) or ("value", it).
        single: whether the call returns one result rather than a tuple.
    """

    graph: Graph
    sources: list[Source]
    made: list[Made]
    returns: list[tuple[str, Any]]
    single: bool


class Varying:
    """Marks a number that is an operand of the program: nothing may be computed from it, or decided by it, before."""

    index: int
    varies = True

    def _unknown(self, *_: object) -> Any:
        raise UnsupportedError("a number that may vary decides what is computed")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __float__ = __int__ = __bool__ = _unknown

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return int(self._unknown())


class VaryingFloat(Varying, float):
    """A number with a fraction. Its value, 0.1, is one that no half holds exactly, as has to be expected of any."""


class VaryingInt(Varying, int):
    """A whole number. Its value, 2049, is one that no half holds exactly."""


def varying(slot: Slot) -> Varying:
    """Returns what an emitter gets for a number that is an operand."""
    number = VaryingFloat(0.1) if slot.geometry.dtype.is_floating_point else VaryingInt(2049)
    number.index = slot.index
    return number
