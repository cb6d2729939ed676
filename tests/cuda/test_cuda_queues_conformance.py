"""The conformance kit over a device whose work runs late and side by side."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cuda.lazy_driver import LazyDriver
from umd_core import dtypes
from umd_core.device import Caps
from umd_core.kernels import BY_NAME
from umd_core.testing.checks import commands, failures, memory, submissions
from umd_core.testing.conformance import PATCHABLE, check_kernel, check_patches
from umd_core.testing.launches import type_arguments
from umd_cuda.device import CudaDevice
from umd_cuda.host_driver import HostDriver


class OneType(CudaDevice):
    """A device that runs each kernel with one combination of types, the usual one."""

    def caps(self) -> Caps:
        caps = super().caps()
        return replace(caps, kernels={name: frozenset((usual(name),)) for name in caps.kernels})


def usual(kernel: str) -> tuple[dtypes.DType, ...]:
    usual = (dtypes.float32, dtypes.int64)
    return min(type_arguments(BY_NAME[kernel]), key=lambda types: [t not in usual for t in types])


SOME = ("elementwise_add_kernel", "gather_kernel", "gemm_kernel", "reduce_sum_kernel", "softmax_kernel")
"""Kernels of unlike kinds; all of them run in test_cuda_conformance.py."""
CHECKS = {
    f"{kind.__name__.rpartition('.')[2]} {name}": check
    for kind in (commands, submissions, memory, failures)
    for name, check in kind.CHECKS.items()
}


@pytest.fixture(scope="module")
def processor() -> Iterator[CudaDevice]:
    """A device of real kernels that run late and side by side, and as a whole when they run again."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no C++ compiler")
    device = OneType(LazyDriver(HostDriver(("-O1",)), 7), "cuda-cpu:0")
    yield device
    device.close()


@pytest.mark.parametrize("name", CHECKS)
def test_the_kit_s_checks(processor: CudaDevice, name: str) -> None:
    CHECKS[name](processor)


@pytest.mark.parametrize("at", range(failures.COUNT))
def test_the_kit_s_failures(processor: CudaDevice, at: int) -> None:
    failures.check_error_at(processor, at)


@pytest.mark.parametrize("kernel", SOME)
def test_the_kit_s_launches_direct_and_replayed(processor: CudaDevice, kernel: str) -> None:
    check_kernel(processor, BY_NAME[kernel])


@pytest.mark.parametrize("kernel", PATCHABLE)
def test_the_kit_s_launches_patched(processor: CudaDevice, kernel: str) -> None:
    check_patches(processor, BY_NAME[kernel])
