"""Calibration of a device whose times are known: it runs nothing, and a clock goes on as a profile says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from umd_core.device import Caps
from umd_core.encoding import verify
from umd_core.errors import UnsupportedError
from umd_sim.device import SimDevice
from umd_sim.timing import estimate
from umd_sim.timing_calibration import Calibration, calibrate
from umd_sim.timing_cases import CASES, FUNCTION_OPS, HELD_OUT, repeated
from umd_sim.timing_profile import Cache, Profile, parse_profile, read_profile, write_profile

TRUTH = Profile(
    name="known",
    source="made up",
    memory=1 << 33,
    bandwidth=1e11,
    caches=(Cache(1 << 20, 2e12),),
    launch=2e-7,
    processors=4,
    workgroups=8,
    invocations=2048,
    workgroup_memory=1 << 16,
    products={"float32": 2e12, "float64": 5e11, "float16": 8e12, "bfloat16": 7e12, "int32": 1e12},
    arithmetic={"float32": 4e11, "float64": 1e11},
    functions={"any": 1e10, "exp": 2e9, "erf": 4e8, "tanh": 1e9},
    launches={"rows": 2e-5, "sort": 5e-5, "gemm": 6e-6},
    efficiency={"rows": 0.25, "reduce": 0.5, "conv": 0.8, "sort": 0.1},
)


class Done:
    """A ticket of work that has ended."""

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Returns."""


class Clockwork(SimDevice):
    """A device that does nothing but take the time that a profile says."""

    def __init__(self, truth: Profile, without: Sequence[str] = ()) -> None:
        self.truth, self.without, self.now = truth, without, 0.0
        super().__init__()

    def caps(self) -> Caps:
        found = super().caps()
        kept = {name: types for name, types in found.kernels.items() if name not in self.without}
        return dataclasses.replace(found, kernels=kept)

    def submit(self, program: Any, bindings: Any, *rest: Any, **named: Any) -> Any:
        self.now += estimate(program.command_buffer, self.truth).seconds
        return Done()

    def clock(self) -> float:
        return self.now


def calibrated(device: Clockwork, base: Profile) -> Profile:
    return calibrate(device, base, patience=0.0, clock=device.clock)


@pytest.fixture(scope="module")
def found() -> Profile:
    """Returns what a calibration finds, from a base that knows the processors only."""
    device = Clockwork(TRUTH)
    base = dataclasses.replace(TRUTH, bandwidth=1.0, launch=1.0, products={"float32": 1.0}, caches=())
    calibration = Calibration(device, base, patience=0.0, clock=device.clock)
    steps = list(calibration.run())
    assert [step.done for step in steps] == list(range(len(steps)))
    assert {step.steps for step in steps} == {len(steps) - 1}
    return calibration.profile


def test_launches_and_bandwidths_are_found(found: Profile) -> None:
    assert found.launch == pytest.approx(TRUTH.launch, rel=0.02)
    assert found.bandwidth == pytest.approx(TRUTH.bandwidth, rel=0.02)
    assert found.caches[-1].size == pytest.approx(1 << 19, rel=0.01)  # the largest of the sweep that fits into it
    assert found.caches[-1].bandwidth == pytest.approx(TRUTH.caches[0].bandwidth, rel=0.1)


def test_rates_are_found(found: Profile) -> None:
    assert found.products == pytest.approx(TRUTH.products, rel=0.02)
    assert found.arithmetic == pytest.approx(TRUTH.arithmetic, rel=0.02)
    assert found.functions["erf"] == pytest.approx(TRUTH.functions["erf"], rel=0.02)
    assert found.functions["exp"] == pytest.approx(TRUTH.functions["exp"], rel=0.02)
    assert found.functions.keys() == {"any", *FUNCTION_OPS}


def test_families_are_found(found: Profile) -> None:
    assert found.efficiency.keys() == {case.family for case in CASES}
    for family, efficiency in TRUTH.efficiency.items():
        assert found.efficiency[family] == pytest.approx(efficiency, rel=0.1), family
    for family, launch in TRUTH.launches.items():
        assert found.launches[family] == pytest.approx(launch, rel=0.05), family


def test_programs_that_nothing_was_fitted_to_are_estimated_well(found: Profile) -> None:
    for make in HELD_OUT:
        graph, _ = make()
        buffer = umd.translate(graph)
        assert estimate(buffer, found).seconds == pytest.approx(estimate(buffer, TRUTH).seconds, rel=0.1)
    assert found.error.startswith("estimate by measured time of programs that nothing was fitted to: perceptron ")


def test_a_calibrated_profile_can_be_written_and_read(found: Profile) -> None:
    again = parse_profile(write_profile(found), "found.toml")
    assert again.products == pytest.approx(found.products, rel=1e-3)
    assert [cache.size for cache in again.caches] == [cache.size for cache in found.caches]
    assert (again.processors, again.workgroup_memory) == (TRUTH.processors, TRUTH.workgroup_memory)


def test_what_a_device_lacks_is_left_to_the_others() -> None:
    device = Clockwork(TRUTH, without=["softmax_kernel", "elementwise_erf_kernel", "elementwise_chain_kernel"])
    found = calibrated(device, TRUTH)
    assert "rows" not in found.efficiency
    assert "erf" not in found.functions
    assert TRUTH.arithmetic["float32"] / 4 < found.arithmetic["float32"] <= TRUTH.arithmetic["float32"]  # of sums


def test_work_is_told_from_long_launches() -> None:
    slow = dataclasses.replace(TRUTH, launch=5e-6, launches={}, functions={"any": 5e9})
    found = calibrated(Clockwork(slow), TRUTH)
    assert found.launch == pytest.approx(5e-6, rel=0.02)
    assert found.functions["exp"] == pytest.approx(5e9, rel=0.1)
    assert found.products["float32"] == pytest.approx(slow.products["float32"], rel=0.05)
    assert found.launches["rows"] == pytest.approx(5e-6, rel=0.1)


def test_a_device_without_a_negation_cannot_be_calibrated() -> None:
    device = Clockwork(TRUTH, without=["elementwise_neg_kernel"])
    with pytest.raises(UnsupportedError):
        calibrated(device, TRUTH)


def test_a_repeated_program_is_valid_and_gives_the_same() -> None:
    buffer = repeated(umd.translate("Softmax", [np.ones((2, 3), np.float32)]), 5)
    assert verify(bytes(buffer)).ok
    device = umd.open_device("sim:0")
    (y,) = device.run(buffer, [np.ones((2, 3), np.float32)])
    np.testing.assert_allclose(y.numpy(), 1 / 3, rtol=1e-6)


def test_a_real_device_is_measured() -> None:
    """The figures are the machine's; that they are there, and in the right order of things, is what can be asserted."""
    found = calibrate(SimDevice(), read_profile("cpu"), patience=0.0)
    assert 0 < found.launch < 1e-3
    assert found.products["float32"] > found.arithmetic["float32"]  # a BLAS beside one NumPy call an operation
    assert all(rate > 0 for rate in (*found.functions.values(), *found.efficiency.values()))
    assert "perceptron" in found.error
