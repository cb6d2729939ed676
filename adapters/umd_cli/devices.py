"""What commands ask of a device without running anything on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umd_core.device import Caps


def device_caps(name: str) -> Caps:
    """Returns what a device can do.

    Raises:
        UnsupportedError: there is no such device.
    """
    from umd_core.registry import open_device

    device = open_device(name)
    try:
        return device.caps()
    finally:
        device.close()
