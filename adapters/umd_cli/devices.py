"""What commands ask of a device without running anything on it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from umd_core.device import Caps, Device, Explains


def device_caps(name: str) -> Caps:
    """Returns what a device can do.

    Raises:
        UnsupportedError: there is no such device.
    """
    with opened(name) as device:
        return device.caps()


@contextlib.contextmanager
def opened(name: str) -> Generator[Device]:
    """Opens a device for a while.

    Raises:
        UnsupportedError: there is no such device.
    """
    from umd_core.registry import open_device

    device = open_device(name)
    try:
        yield device
    finally:
        device.close()


def explains(device: Device) -> Explains | None:
    """Returns the device as one that says how it makes launches, None when its caps do not offer that."""
    return cast("Explains", device) if "explain" in device.caps().flags else None
