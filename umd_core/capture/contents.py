"""What a capture knows of a buffer's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from umd_core.capture.ranges import Ranges
from umd_core.ir import Array


class Contents:
    """The bytes of a buffer that a replay has too, and, on a device whose memory the host sees, their values.

    The host may change visible memory without a word, so what lies there is compared with what lay there before.

    Attributes:
        number: of the buffer, in the order of allocation.
    """

    __slots__ = ("_known", "_pending", "_values", "number")

    def __init__(self, number: int, size: int, visible: bool) -> None:
        self.number: int = number
        self._known, self._pending = Ranges(), Ranges()
        self._values: Array | None = np.zeros(size, np.uint8) if visible else None

    def wrote(self, offset: int, data: Any) -> None:
        """Notes bytes that the host has written."""
        view = memoryview(data)
        end = offset + view.nbytes
        self._known.add(offset, end)
        self._pending.remove(offset, end)
        if self._values is not None and view.nbytes:
            self._values[offset:end] = np.frombuffer(view, np.uint8)

    def will_change(self, offset: int, size: int) -> None:
        """Notes bytes that submitted work writes: a replay makes them anew."""
        self._known.add(offset, offset + size)
        self._pending.add(offset, offset + size)

    def wants(self, offset: int, size: int) -> bool:
        """Returns whether `changed` has to be asked about a range that work is about to read."""
        return bool(size) and (self._values is not None or not self._known.covers(offset, offset + size))

    def changed(self, offset: int, data: Any) -> bool:
        """Returns whether a replay would not have these bytes, which lie there now; from here on it has."""
        now = np.frombuffer(data, np.uint8)
        end = offset + now.size
        same = self._known.covers(offset, end)
        if same and self._values is not None and not self._pending.meets(offset, end):
            same = bool(np.array_equal(now, self._values[offset:end]))
        self.wrote(offset, now)
        return not same
