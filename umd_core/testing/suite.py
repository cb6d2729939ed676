"""The kit as a test module: `pytest --pyargs umd_core.testing.suite --umd-device NAME`."""

from __future__ import annotations

from umd_core.testing.conformance import DeviceTests


class TestDevice(DeviceTests):
    """The device that --umd-device names."""
