"""Scratch memory: temporaries that live for one kernel, kept from one kernel to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umd_core.errors import OutOfMemoryError

KEPT = 32 << 20
"""Requests above this many bytes are not kept."""
_LEAST = 4096
_ALIGNMENT = 64


def aligned(size: int, *, zero: bool = True) -> NDArray[np.uint8]:
    """Returns `size` bytes that begin at a multiple of 64, as (size,) uint8."""
    memory = (np.zeros if zero else np.empty)(size + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + size]


class Scratch:
    """Numbered pieces of memory that grow to what was asked of them.

    Fresh pages cost several times what touching warm ones does, and the allocator hands large blocks back to the
    system at once; so temporaries are kept. One device has one Scratch: kernels run one after the other.
    """

    def __init__(self, device: str = "sim", limit: int = 1 << 40) -> None:
        self._device, self._limit = device, limit
        self._pieces: list[NDArray[np.uint8]] = []

    def take(self, slot: int, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns an array whose elements are whatever was left in the slot; it is overwritten by the slot's next use.

        Raises:
            OutOfMemoryError: there is no room for it.
        """
        try:
            return np.ndarray(shape, dtype, self._pieces[slot])
        except (IndexError, TypeError):
            return np.ndarray(shape, dtype, self._piece(slot, math.prod(shape) * dtype.itemsize))

    def _piece(self, slot: int, size: int) -> NDArray[np.uint8]:
        if size > self._limit:
            raise OutOfMemoryError(size, self.used, self._limit, 0, device=f"{self._device} scratch")
        try:
            piece = aligned(size if size > KEPT else 1 << max(size - 1, _LEAST - 1).bit_length(), zero=False)
        except MemoryError as error:
            raise OutOfMemoryError(size, self.used, self._limit, 0, device=f"{self._device} scratch") from error
        if size <= KEPT:
            while len(self._pieces) <= slot:
                self._pieces.append(aligned(_LEAST, zero=False))
            self._pieces[slot] = piece
        return piece

    @property
    def used(self) -> int:
        """Bytes that are kept."""
        return sum(piece.size for piece in self._pieces)

    def trim(self) -> None:
        """Gives the kept memory back."""
        self._pieces.clear()
