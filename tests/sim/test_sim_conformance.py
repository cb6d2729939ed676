"""The simulator passes the conformance kit, as it is and in strict mode."""

from __future__ import annotations

import pytest

from umd_core.device import Device
from umd_core.testing.conformance import DeviceTests

SAMPLE = ("elementwise_select_kernel", "gather_kernel", "reduce_mean_kernel", "scatter_add_kernel", "normalize_kernel")


class TestSim(DeviceTests):
    backend = "sim:0"


class TestStrictSim(DeviceTests):
    """Kernels are the same in strict mode: one of a few families each."""

    backend = "sim:0?strict=1"

    @pytest.mark.parametrize("kernel", SAMPLE)
    def test_kernel(self, device: Device, kernel: str) -> None:
        super().test_kernel(device, kernel)
