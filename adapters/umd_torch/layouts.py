"""How torch wants tensors to lie, and how programs have them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from umd_core.errors import UnsupportedError
from umd_core.ir import TensorDesc, contiguous_strides
from umd_torch.builder import from_torch
from umd_torch.symbols import Bound, Open, evaluate, is_symbolic


@dataclass(frozen=True, slots=True)
class Layout:
    """How torch wants a tensor to lie: shape and strides in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def desc(self) -> TensorDesc:
        """The description that the program uses: these strides where they leave no gaps, else row-major ones."""
        return _description(self.dtype, self.shape, self.strides)

    @property
    def dense(self) -> bool:
        """Whether the strides leave no gaps and no element lies twice."""
        return is_dense(self.shape, self.strides)


@functools.lru_cache(1 << 14)
def _description(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> TensorDesc:
    if not is_dense(shape, strides):
        return TensorDesc(from_torch(dtype), shape)
    plain = contiguous_strides(shape)
    normal = tuple(p if e == 1 else s for e, s, p in zip(shape, strides, plain, strict=True))
    return TensorDesc(from_torch(dtype), shape, normal)


@functools.lru_cache(1 << 14)
def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Returns whether the elements fill a range without gaps, in any order of axes."""
    if 0 in shape:
        return True
    expected = 1
    for stride, extent in sorted((s, e) for e, s in zip(shape, strides, strict=True) if e != 1):
        if stride != expected:
            return False
        expected *= extent
    return True


def open_shape(value: torch.Tensor) -> tuple[Any, ...]:
    """Returns the shape of a tensor that tracing saw; extents that torch left open are `Open`.

    Raises:
        UnsupportedError: it is no strided tensor of the CPU or of the device `umd`.
    """
    if value.layout is not torch.strided or value.is_quantized:
        raise UnsupportedError(f"{value.layout} tensors are not there")
    if value.device.type not in ("cpu", "umd"):
        raise UnsupportedError(f"it works with a tensor on {value.device}")
    return _opened(value.shape)


def _opened(numbers: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([Open(number) if is_symbolic(number) else number for number in numbers])


class OpenLayout:
    """The layout of a tensor that tracing saw, for any sizes.

    Attributes:
        value: the tensor.
    """

    __slots__ = ("_closed", "_shape", "_strides", "value")

    def __init__(self, value: torch.Tensor) -> None:
        """Looks at the tensor.

        Raises:
            UnsupportedError: it is no strided tensor of the CPU or of the device `umd`.
        """
        self.value = value
        self._shape, self._strides = open_shape(value), _opened(value.stride())
        is_open = any(type(number) is Open for number in (*self._shape, *self._strides))
        self._closed = None if is_open else Layout(value.dtype, self._shape, self._strides)

    def closed(self, bound: Bound) -> Layout:
        """Returns the layout in this call."""
        if self._closed is not None:
            return self._closed
        shape, strides = (tuple([evaluate(n, bound) for n in numbers]) for numbers in (self._shape, self._strides))
        return Layout(self.value.dtype, shape, strides)


def shape_of(value: torch.Tensor, bound: Bound) -> tuple[int, ...]:
    """Returns the shape of a tensor that tracing saw, as it is in this call.

    Raises:
        UnsupportedError: it is no strided tensor of the CPU or of the device `umd`.
    """
    return tuple([evaluate(extent, bound) for extent in open_shape(value)])


def layout_of(value: torch.Tensor, bound: Bound) -> Layout:
    """Returns the layout of a tensor that tracing saw."""
    return OpenLayout(value).closed(bound)
