"""The conformance kit: `class TestMine(DeviceTests): backend = "mine"` puts a backend through all of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import pytest

from umd_core.device import Device
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME, KernelRow
from umd_core.registry import open_device
from umd_core.testing.checks import commands, failures, memory, submissions
from umd_core.testing.harness import check_launch, check_patched
from umd_core.testing.launches import Plan, build, type_arguments
from umd_core.testing.report import Report, run

__all__ = ["PLANS", "DeviceTests", "Report", "check_kernel", "run"]

PLANS = (
    Plan("ordinary", "contiguous", special=True),
    Plan("ordinary", "permuted"),
    Plan("ordinary", "negative", special=True, alias=True),
    Plan("odd", "gaps", special=True),
    Plan("ordinary", "overlapping"),
    Plan("ones", "contiguous", alias=True),
    Plan("empty", "permuted"),
    Plan("long", "negative", special=True),
)
"""The launches that every kernel runs with every combination of types."""
FEW_PLANS, MANY_TYPES = PLANS[:3], 30
"""The launches of a kernel with more than `MANY_TYPES` combinations of types."""
PATCHABLE = sorted(row.name for row in BY_NAME.values() if any(item.patchable for item in row.fields))


def supported(device: Device, row: KernelRow) -> list[tuple[DType, ...]]:
    """Returns the type arguments with which a device says it runs a kernel."""
    caps = device.caps()
    return [types for types in type_arguments(row) if caps.supports(row.name, types)]


def check_kernel(device: Device, row: KernelRow) -> None:
    """Runs a kernel with every type it claims and every plan.

    Raises:
        AssertionError: it differs from the reference, by more than the row's tolerance.
    """
    claimed = supported(device, row)
    plans = FEW_PLANS if len(claimed) > MANY_TYPES else PLANS
    for types in claimed:
        for number, plan in enumerate(plans):
            seed = [zlib.crc32(row.name.encode()), *(t.code for t in types), number]
            check_launch(device, build(np.random.default_rng(seed), row, types, plan))


def check_patches(device: Device, row: KernelRow) -> None:
    """Runs a kernel with its patchable fields given by patches."""
    for types in supported(device, row):
        seed = [zlib.crc32(row.name.encode()), *(t.code for t in types)]
        low, high = (
            build(np.random.default_rng(seed), row, types, Plan(fields=patchable_values(row, which)))
            for which in (0, 1)
        )
        check_patched(device, low, high)


def patchable_values(row: KernelRow, which: int) -> dict[str, float]:
    """Returns a value for each patchable field: two sets that differ in all of them."""
    return {
        item.name: (0.25, 0.5)[which] / (8 * (index + 1)) for index, item in enumerate(row.fields) if item.patchable
    }


class DeviceTests:
    """Subclass it in a test module and set `backend`.

    Attributes:
        backend: what `open_device` gets; when empty, the option --umd-device.
        unsupported: kernels of level 0 that the backend does not have, and why. They must really be missing.
        expected_failures: tests (name, or what stands in its brackets) that fail for now, and why; a pass is a failure.
    """

    backend: ClassVar[str] = ""
    unsupported: ClassVar[Mapping[str, str]] = {}
    expected_failures: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, request: pytest.FixtureRequest) -> Iterator[Device]:
        """Returns the device under test, opened once for the class."""
        name = cls.backend or request.config.getoption("--umd-device")
        if not name:
            pytest.fail("no device: set `backend` in the class, or give --umd-device NAME")
        device = open_device(str(name))
        yield device
        device.close()

    @pytest.fixture(autouse=True)
    def _expectation(self, request: pytest.FixtureRequest) -> None:
        name = request.node.name
        bracket = name.partition("[")[2].rstrip("]")
        for key in (name, bracket):
            if key and key in self.expected_failures:
                reason = self.expected_failures[key]
                request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
                return

    # kernels

    def test_caps(self, device: Device) -> None:
        """The device names kernels and types of the table only, and lacks at level 0 what `unsupported` says."""
        memory.check_caps(device.caps(), self.unsupported)

    @pytest.mark.parametrize("kernel", sorted(BY_NAME))
    def test_kernel(self, device: Device, kernel: str) -> None:
        """Every type that the device claims, in every layout, direct and replayed."""
        row = BY_NAME[kernel]
        self._need(device, row)
        check_kernel(device, row)

    @pytest.mark.parametrize("kernel", PATCHABLE)
    def test_patched(self, device: Device, kernel: str) -> None:
        """Fields that come with the submission."""
        row = BY_NAME[kernel]
        self._need(device, row)
        check_patches(device, row)

    def test_refusal(self, device: Device) -> None:
        """A program with a kernel that `caps` does not name is refused when it is loaded."""
        memory.check_refusal(device)

    def _need(self, device: Device, row: KernelRow) -> None:
        if not supported(device, row):
            why = self.unsupported.get(row.name) or f"level {row.level}: decomposed where it is missing"
            pytest.skip(f"{row.name} is not supported: {why}")

    # commands

    @pytest.mark.parametrize("name", sorted(commands.CHECKS))
    def test_command(self, device: Device, name: str) -> None:
        """Copies, fills, updates, marks and barriers; arena and constants; legal orders."""
        commands.CHECKS[name](device)

    # submissions

    @pytest.mark.parametrize("name", sorted(submissions.CHECKS))
    def test_submission(self, device: Device, name: str) -> None:
        """Replay, ONE_SHOT, fences, queues, events, and the rules of bindings."""
        submissions.CHECKS[name](device)

    # memory

    @pytest.mark.parametrize("name", sorted(memory.CHECKS))
    def test_memory(self, device: Device, name: str) -> None:
        """Buffers, tensors, errors about them."""
        memory.CHECKS[name](device)

    # failures

    @pytest.mark.parametrize("at", range(failures.COUNT))
    def test_failure(self, device: Device, at: int) -> None:
        """An error in command `at`: what it touched is poisoned, the rest goes on."""
        failures.check_error_at(device, at)

    @pytest.mark.parametrize("name", sorted(failures.CHECKS))
    def test_poison(self, device: Device, name: str) -> None:
        """What depends on failed work fails with the root cause, until it is rewritten."""
        failures.CHECKS[name](device)
