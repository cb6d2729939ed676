"""Bytes of CPU tensors: copied, sampled, or seen in place."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import torch

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
HASHED = 1 << 16
"""Bytes up to which the whole of a tensor is compared; of larger ones a sample is."""
_SAMPLES = 1024


def byte_count(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements, gaps not counted."""
    return tensor.numel() * tensor.element_size()


def array_at(pointer: int, size: int) -> Bytes:
    """Returns `size` bytes of memory as an array. It does not keep the memory alive: the caller does."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))


def copy_from(tensor: torch.Tensor, target: Bytes, offset: int) -> None:
    """Copies a tensor without gaps into bytes of an array."""
    size = byte_count(tensor)
    if size:
        ctypes.memmove(target.ctypes.data + offset, tensor.data_ptr(), size)


def copy_to(tensor: torch.Tensor, source: Bytes, offset: int) -> None:
    """Fills a tensor without gaps from bytes of an array."""
    size = byte_count(tensor)
    if size:
        ctypes.memmove(tensor.data_ptr(), source.ctypes.data + offset, size)


def note_change(tensor: torch.Tensor) -> None:
    """Counts a change that torch did not see, so that who saved the tensor knows; inference tensors have no count."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def drawn_seed() -> torch.Tensor:
    """Returns a 0-d int64 drawn from torch's generator: `torch.manual_seed` decides it, and each call's is another."""
    return torch.empty((), dtype=torch.int64).random_()


def fingerprint(tensor: torch.Tensor) -> bytes:
    """Returns what a change of a tensor's bytes should change: all of them up to HASHED, else an even sample."""
    size = byte_count(tensor)
    if not size:
        return b""
    pointer = tensor.data_ptr()
    if size <= HASHED:
        return ctypes.string_at(pointer, size)
    return _sampled(pointer, size).tobytes() + ctypes.string_at(pointer + size - 8, 8)


@functools.lru_cache(1 << 12)
def _sampled(pointer: int, size: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Returns the words of a memory that are compared, in place: to be read only while a tensor lies there."""
    words = array_at(pointer, size - size % 8).view(np.uint64)
    return words[:: len(words) // _SAMPLES]
