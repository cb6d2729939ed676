"""A region of memory that the server shares with one client on the same host."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np

SEALS: int = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)
"""What nobody may do to a region any more: shrink it, which would end whoever reads beyond its end; grow, unseal it."""


class Region:
    """A memfd, mapped. It has no name: it is gone when both sides have let go of it, however they end.

    Attributes:
        descriptor: to be passed on.
        size: bytes.
        data: the bytes, (size,) uint8. The client may change them at any time.
    """

    def __init__(self, size: int) -> None:
        """Makes `size` zero bytes; they take memory when they are first touched.

        Raises:
            OSError: the system gives none.
        """
        self.size = size
        self.descriptor = os.memfd_create("umd-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
            self.data: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)
        except BaseException:
            self.close_descriptor()
            raise

    def close_descriptor(self) -> None:
        """Gives the descriptor back: it was passed on."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def close(self) -> None:
        """Gives everything back. The memory goes with the last copy that is under way."""
        self.close_descriptor()
        self.data = np.empty(0, np.uint8)


def supported() -> bool:
    """Returns whether this system has what regions need."""
    return bool(SEALS) and hasattr(os, "memfd_create")
