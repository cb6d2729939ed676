"""A remote device passes the conformance kit, as the device behind it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from umd_core.device import Device
from umd_core.testing.conformance import DeviceTests
from umd_grpc.client.remote import RemoteDevice

SAMPLE = ("elementwise_add_kernel", "gather_kernel", "reduce_mean_kernel", "gemm_kernel")


class TestRemote(DeviceTests):
    """Kernels are the same behind the service: one of a few families each."""

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, server: Any) -> Iterator[Device]:
        device = RemoteDevice(server.address, "sim:0")
        yield device
        device.close()

    @pytest.mark.parametrize("kernel", SAMPLE)
    def test_kernel(self, device: Device, kernel: str) -> None:
        super().test_kernel(device, kernel)
