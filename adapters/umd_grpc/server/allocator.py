"""The C library's memory: kept while messages pass, given back when they stop.

A message of 1 MiB is taken apart into buffers of that size. By default each of them comes from the system as fresh
pages and goes back at once, which costs more than everything else that is done with its bytes.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The numbers of these parameters in <malloc.h>."""
KEPT, LARGEST = 64 << 20, 8 << 20
"""Bytes that stay at the end of a heap; bytes of one piece of memory above which it is the system's own."""


def _library() -> Any:
    """Returns the C library of this process, None when it is not the one (glibc) that has these calls."""
    try:
        found = ctypes.CDLL(None)
    except OSError:
        return None
    return found if hasattr(found, "mallopt") and hasattr(found, "malloc_trim") else None


class Allocator:
    """What a server's process does about freed memory. Only a process of its own may do so: it concerns all threads."""

    def __init__(self, library: Any = None) -> None:
        """`library` stands for the C library of this process."""
        self._library = library or _library()
        self._seen = self._trimmed = 0

    def keep(self) -> None:
        """Keeps freed memory from now on, until `look` gives it back."""
        if self._library is not None:
            self._library.mallopt(_MMAP_THRESHOLD, LARGEST)
            self._library.mallopt(_TRIM_THRESHOLD, KEPT)

    async def look(self, passed: int) -> None:
        """Gives freed memory back when nothing has passed since the last look; `passed` are the bytes so far."""
        seen, self._seen = self._seen, passed
        if seen == passed != self._trimmed:
            self._trimmed = passed
            if self._library is not None:
                await asyncio.get_running_loop().run_in_executor(None, self._library.malloc_trim, 0)
