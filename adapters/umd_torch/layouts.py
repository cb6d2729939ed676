"""How torch wants tensors to lie, and how programs have them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from umd_core.errors import UnsupportedError
from umd_core.ir import TensorDesc, contiguous_strides
from umd_torch.builder import from_torch
from umd_torch.symbols import Bound, evaluate


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


def shape_of(value: torch.Tensor, bound: Bound) -> tuple[int, ...]:
    """Returns the shape of a tensor that tracing saw.

    Raises:
        UnsupportedError: it is no strided tensor of the CPU or of the device `umd`.
    """
    if value.layout is not torch.strided or value.is_quantized:
        raise UnsupportedError(f"{value.layout} tensors are not there")
    if value.device.type not in ("cpu", "umd"):
        raise UnsupportedError(f"it works with a tensor on {value.device}")
    return tuple([evaluate(extent, bound) for extent in value.shape])


def layout_of(value: torch.Tensor, bound: Bound) -> Layout:
    """Returns the layout of a tensor that tracing saw."""
    shape = shape_of(value, bound)
    return Layout(value.dtype, shape, tuple([evaluate(stride, bound) for stride in value.stride()]))
