"""What a name of the model stands for while it is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from umd_core.errors import UnsupportedError
from umd_core.ir import Array, TensorDesc

_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor that is known now. `weight` is the initializer's name when it is one, unchanged."""

    array: Array
    weight: str = ""


@dataclass(frozen=True, slots=True)
class Computed:
    """A tensor that the program computes.

    Attributes:
        name: in the graph.
        origins: inputs of the model that it depends on.
    """

    name: str
    desc: TensorDesc
    origins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Narrow(Computed):
    """A computed tensor of an element type that umd lacks: a wider type holds its numbers, each exactly.

    Attributes:
        dtype: the narrow type, as NumPy knows it.
    """

    dtype: np.dtype[Any] = _FLOAT32

    def wide(self) -> Computed:
        """Returns the tensor of the wider type."""
        return Computed(self.name, self.desc, self.origins)


class NarrowResult(NamedTuple):
    """A result of a program that becomes a narrow type when it leaves it: the result's number, and the type."""

    number: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class TensorSequence:
    """A sequence of tensors, whose length is known."""

    items: tuple[Tensor, ...]


Tensor = Known | Computed
Value = Tensor | TensorSequence | None
"""None is an optional value that is not there."""


class ValueNeededError(UnsupportedError):
    """The program depends on what tensors hold. Attribute `origins`: inputs whose values would settle it."""

    def __init__(self, what: str, op: str, origins: frozenset[str], detail: str = "") -> None:
        """`detail` says why the values cannot become part of the program."""
        names = ", ".join(sorted(origins)) or "random numbers"
        super().__init__(f"{what} depends on the values of {names}{detail and f': {detail}'}", op=op)
        self.what, self.origins = what, origins


def origins_of(values: Sequence[Value]) -> frozenset[str]:
    """Returns the inputs of the model that values depend on."""
    found: frozenset[str] = frozenset()
    for value in values:
        if isinstance(value, Computed):
            found |= value.origins
        elif isinstance(value, TensorSequence):
            found |= origins_of(value.items)
    return found


def known_array(value: Value, what: str, op: str) -> Any:
    """Returns the array of a value.

    Raises:
        ValueNeededError: it is not known.
    """
    if isinstance(value, Known):
        return value.array
    raise ValueNeededError(what, op, origins_of([value]))
