"""Programs that a server remembers, so that clients may load them by hash."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from umd_core.errors import StaleHandleError

SIZE = 128 << 20


class Programs:
    """The programs of one identity that were used last, by sha256. Callable from any thread."""

    def __init__(self, size: int = SIZE) -> None:
        """Holds at most `size` bytes."""
        self._size, self._used = size, 0
        self._programs: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, program: bytes) -> None:
        """Remembers a program that has been found valid."""
        key = hashlib.sha256(program).digest()
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
                return
            self._programs[key] = program
            self._used += len(program)
            while self._used > self._size:
                _, dropped = self._programs.popitem(last=False)
                self._used -= len(dropped)

    def find(self, sha256: bytes) -> bytes:
        """Returns a program.

        Raises:
            StaleHandleError: it is not, or no longer, known.
        """
        with self._lock:
            program = self._programs.get(sha256)
            if program is None:
                raise StaleHandleError("program", sha256.hex() or "without a hash", "is not known here: send its bytes")
            self._programs.move_to_end(sha256)
            return program
