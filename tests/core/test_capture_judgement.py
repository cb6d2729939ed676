"""`compare` judges numbers: what is rounding, which device is wrong, where a NaN or an infinity begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.core.capture_samples import Faulty, Named, Spoil, captured_network, captured_run, negate
from tests.core.op_arrays import Array
from umd_core.capture import Capture, compare
from umd_core.capture.judge import ulps
from umd_core.commands import CommandBuffer
from umd_core.device import Binding
from umd_sim.device import SimDevice

DESC = umd.TensorDesc("f32", (4,))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return captured_network(tmp_path_factory.mktemp("run"))


def _scaled(factor: float) -> Spoil:
    def spoil(box: Array, binding: Binding) -> None:
        box[...] = box * np.float32(1 + factor * np.finfo(np.float32).eps)

    return spoil


@pytest.mark.parametrize(("epsilons", "wrong"), [(0, False), (10, False), (200, True), (1e6, True)])
def test_the_kernels_tolerance_decides(run: Capture, epsilons: float, wrong: bool) -> None:
    """tanh states 16 epsilons."""
    report = compare(run, SimDevice(), Faulty(4, _scaled(epsilons)))
    assert [(found.command, found.tolerance) for found in report.differences] == ([(4, 16.0)] if wrong else [])
    assert report.close == (1 if epsilons == 10 else 0)


def test_rounding_is_not_added_up(run: Capture) -> None:
    """Each tanh is nearly at its tolerance; what follows starts from the same bytes on both devices."""
    report = compare(run, SimDevice(), Named("elementwise_tanh_kernel", _scaled(13)))
    assert (report.ok, report.close, report.equal) == (True, 6, 12)


def test_cancellation_is_judged_by_the_size_of_the_terms(tmp_path: Path) -> None:
    """A sum near zero of large terms: far off in relation to itself, and right."""
    terms = np.array([[1e6, -1e6, 1, 3e5, -3e5, 0.1]], np.float32)
    run = captured_run(tmp_path, umd.translate("ReduceSum", [umd.TensorDesc.of(terms)], keepdims=0), terms)

    def off(box: Array, binding: Binding) -> None:
        box[...] += np.float32(0.5)

    def far_off(box: Array, binding: Binding) -> None:
        box[...] += np.float32(500)

    report = compare(run, SimDevice(), Faulty(0, off))
    assert (report.ok, report.close) == (True, 1)
    (found,) = compare(run, SimDevice(), Faulty(0, far_off)).differences
    assert found.at_fault == ("faulty:0",)
    assert found.expected == pytest.approx(1.1, abs=0.01)


def test_a_launch_too_large_for_the_reference_is_judged_by_its_largest_number(
    run: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("WORK", "PRODUCTS", "WINDOWS"):
        monkeypatch.setattr(f"umd_core.capture.judge.{limit}", 0)
    (found,) = compare(run, SimDevice(), Faulty(6, negate)).differences
    assert (found.command, found.at_fault, found.expected, found.op) == (6, (), None, "MatMul")
    assert compare(run, SimDevice(), Faulty(6, _scaled(10))).ok


@pytest.mark.parametrize(
    ("a", "b", "steps"),
    [
        (np.float32(1), np.nextafter(np.float32(1), np.float32(2)), 1),
        (np.float32(-0.0), np.float32(0.0), 0),
        (np.nextafter(np.float64(0), -1), np.nextafter(np.float64(0), 1), 2),
        (np.float16(1), np.float16(2), 1024),
        (np.float32(np.nan), np.float32(1), None),
        (np.int32(1), np.int32(2), None),
    ],
)
def test_ulps(a: Any, b: Any, steps: int | None) -> None:
    assert ulps(a, b) == ulps(b, a) == steps


# NaN and infinities


def logs(*values: float) -> tuple[CommandBuffer, Array]:
    graph = umd.Graph()
    y = graph.add("Log", [graph.add("Mul", [graph.input("x", DESC), graph.constant(np.float32(1))])], name="log")
    graph.output(graph.add("Exp", [y]))
    return umd.translate(graph), np.array(values, np.float32)


def test_nan_that_both_devices_compute_is_named_where_it_begins(tmp_path: Path) -> None:
    run = captured_run(tmp_path, *logs(1, 2, -3, 4))
    (found,) = compare(run, SimDevice(), SimDevice()).differences
    assert (found.kind, found.command, found.op, found.node, found.element[-1]) == ("nonfinite", 1, "Log", "log", 2)
    assert found.values is not None
    assert np.isnan(found.values).all()
    assert found.at_fault == ()
    assert found.as_dict()["values"] == ["nan", "nan"]
    assert compare(run, SimDevice(), SimDevice(), any_nonfinite=True).ok
    (halved,) = compare(run, SimDevice(), SimDevice(), strategy="bisect").differences
    assert halved.command == 1


def test_nan_and_infinities_that_came_in_are_nobodys_fault(tmp_path: Path) -> None:
    run = captured_run(tmp_path, *logs(1, np.inf, np.nan, 4))
    report = compare(run, SimDevice(), SimDevice())
    assert (report.ok, report.equal) == (True, 3)
