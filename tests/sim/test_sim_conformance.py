"""The simulator passes the conformance kit, as it is and in strict mode."""

from __future__ import annotations

from umd_core.testing.conformance import DeviceTests


class TestSim(DeviceTests):
    backend = "sim:0"


class TestStrictSim(DeviceTests):
    backend = "sim:0?strict=1"
