"""The standard's own test cases: each does what suite.json says of it, and what does not pass has a reason."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx.backend.test import BackendTest

from tests.onnx.ledger import REASONS, reason_for
from umd_core.device import Device
from umd_core.registry import open_device
from umd_onnx.backend import UmdBackend
from umd_onnx.suite import KINDS, Case, Class, Outcome, cases, outcome

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD: dict[str, Any] = json.loads((ROOT / "tests" / "onnx" / "suite.json").read_text(encoding="utf-8"))
EXPECTED: dict[str, str] = RECORD["not on the device"]
CASES: dict[str, Case] = {case.name: case for kind in KINDS for case in cases(kind)}
ON_CUDA = [name for index, name in enumerate(sorted(CASES)) if name not in EXPECTED and index % 100 == 0]
"""About one case in a hundred: each kernel is compiled for the processor, once."""


@pytest.fixture(scope="module")
def sim() -> Iterator[Device]:
    device = open_device("sim:0")
    yield device
    device.close()


@pytest.fixture(scope="module")
def cuda() -> Iterator[Device]:
    device = open_device("cuda-cpu:0")
    yield device
    device.close()


@functools.cache
def _advice(name: str, expected: str, found: Outcome) -> str:
    return f"{name} was {expected}, is {found.result}: {found.detail[:300]}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # cases overflow and divide by zero on purpose
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, sim: Device) -> None:
    expected, found = EXPECTED.get(name, "device"), outcome(CASES[name], sim)
    assert found.result == expected, _advice(name, expected, found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ON_CUDA)
def test_case_on_the_cuda_kernels(name: str, cuda: Device) -> None:
    found = outcome(CASES[name], cuda)
    assert found.result is Class.DEVICE, _advice(name, "device", found)


@pytest.mark.filterwarnings("ignore")  # the standard makes all of its data first, and overflows on purpose
def test_the_runner_of_the_standard() -> None:
    runner = BackendTest(UmdBackend, "umd").include("^test_(add|softmax_axis_0|tile)_cpu$")
    result = unittest.TestResult()
    runner.test_suite.run(result)
    assert (result.errors, result.failures) == ([], [])
    assert result.testsRun - len(result.skipped) == 3


def test_what_does_not_pass_has_a_reason() -> None:
    without = {Class.REFUSED, Class.WRONG, Class.REFERENCE}
    assert [name for name, result in EXPECTED.items() if result in without and not reason_for(name)] == []


@pytest.mark.parametrize("group", REASONS)
def test_a_reason_still_has_cases(group: str) -> None:
    assert any(reason_for(name) == group for name, result in EXPECTED.items() if result != Class.HOST)


def test_the_record_is_of_this_suite() -> None:
    assert set(EXPECTED) <= set(CASES)
    counts = RECORD["families"].values()
    assert sum(sum(row.values()) for row in counts) == len(CASES)


def test_more_pass_than_the_project_promises() -> None:
    node = [name for name, case in CASES.items() if case.kind == "node"]
    ordinary = [name for name in node if CASES[name].is_ordinary]
    ours = {name for name in CASES if EXPECTED.get(name, "device") in (Class.DEVICE, Class.HOST)}
    assert len(ours & set(node)) >= 1451
    assert len(ours & set(ordinary)) >= 1190


def test_the_document_holds_the_record() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "onnx_docs.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
