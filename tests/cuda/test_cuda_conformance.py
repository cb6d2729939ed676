"""The conformance kit on cuda-cpu: our kernels, compiled for the processor, against the kit's own references.

Every kernel runs with one or two of its combinations of types; `umd conformance cuda-cpu:0` runs them all, and takes
its time to compile them.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from umd_core import dtypes
from umd_core.device import Caps, Device
from umd_core.kernels import BY_NAME, KernelRow
from umd_core.testing.conformance import DeviceTests
from umd_core.testing.launches import type_arguments
from umd_cuda import serial
from umd_cuda import sources as gpu_sources
from umd_cuda.device import CudaDevice, Sources
from umd_cuda.host_driver import HostDriver

pytestmark = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)  # fmt: skip


def chosen(row: KernelRow) -> frozenset[tuple[dtypes.DType, ...]]:
    """Returns a combination that depends on the kernel's name; for what is no expression, also the usual one."""
    combinations = list(type_arguments(row))
    some = combinations[zlib.crc32(row.name.encode()) % len(combinations)]
    usual = min(combinations, key=lambda types: [t not in (dtypes.float32, dtypes.int64) for t in types])
    return frozenset((some,) if row.family == "expression" else (some, usual))


class FewTypes(CudaDevice):
    """A device that claims some of its types only."""

    def caps(self) -> Caps:
        caps = super().caps()
        return replace(caps, kernels={name: chosen(BY_NAME[name]) for name in caps.kernels})


class TestCudaCpu(DeviceTests):
    """The whole kit, on kernels compiled quickly rather than well, launched as cuda-cpu launches them."""

    backend = "cuda-cpu:0"
    sources: ClassVar[Sources] = serial

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Iterator[Device]:
        device = FewTypes(HostDriver(("-O1",)), cls.backend, None, cls.sources)
        yield device
        device.close()


class TestLaunchedAsOnAGpu(TestCudaCpu):
    """The whole kit with the geometry that a GPU gets."""

    sources: ClassVar[Sources] = gpu_sources


def test_every_kernel_of_the_table_has_a_source() -> None:
    device = CudaDevice(HostDriver(), "cuda-cpu:0")
    assert set(device.caps().kernels) == set(BY_NAME)
    assert set(device.caps().kernels.values()) == {None}
    device.close()
