"""The same bytes three times: on either device of a comparison, and here."""

from __future__ import annotations

from typing import Any

import numpy as np

from umd_core.device import Buffer, Device
from umd_core.errors import OutOfMemoryError, UmdError
from umd_core.ir import Array

Pair = tuple[Device, Device]


class Twins:
    """A buffer on each of two devices, and on the host what both should hold: zeros at first.

    Raises:
        OutOfMemoryError: a device, or the host, has no room for it.

    Attributes:
        buffers: one on each device.
        host: (size,) uint8.
    """

    __slots__ = ("_devices", "buffers", "host")

    def __init__(self, devices: Pair, size: int) -> None:
        self._devices = devices
        first = devices[0].allocate(size)
        try:
            self.buffers: tuple[Buffer, Buffer] = (first, devices[1].allocate(size))
        except UmdError:
            devices[0].free(first)
            raise
        try:
            self.host: Array = np.zeros(size, np.uint8)
        except MemoryError as error:
            self.free()
            raise OutOfMemoryError(size, 0, 0, 0, device="host") from error
        for which in (0, 1):
            self.restore(which, 0, size)

    def write(self, offset: int, data: Any) -> None:
        """Writes bytes everywhere."""
        view = np.frombuffer(data, np.uint8)
        self.host[offset : offset + view.size] = view
        for which in (0, 1):
            self.restore(which, offset, view.size)

    def read(self, which: int, offset: int, size: int) -> Array:
        """Returns a copy of what a device holds, (size,) uint8."""
        data = self._devices[which].read(self.buffers[which], offset, size)
        return np.frombuffer(data, np.uint8).copy() if size else np.empty(0, np.uint8)

    def restore(self, which: int, offset: int, size: int) -> None:
        """Gives a device the bytes that it should hold."""
        if size:
            self._devices[which].write(self.buffers[which], offset, self.host[offset : offset + size])

    def stray(self, which: int) -> int:
        """Returns the first byte at which a device holds something else than it should, -1 when there is none."""
        now = self.read(which, 0, self.host.size)
        return -1 if np.array_equal(now, self.host) else int(np.argmax(now != self.host))

    def free(self) -> None:
        """Frees the buffers."""
        for device, buffer in zip(self._devices, self.buffers, strict=True):
            device.free(buffer)
