"""scripts/gpu_check.py, in small, on the processor."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "gpu_check.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_are_measured_and_positive(script: ModuleType) -> None:
    found = script.figures("cuda-cpu:0", 1, 32)
    wanted = ["copy", "Add", "Exp", "Softmax", "MatMul 32 library", "MatMul 32 own", "one launch"]
    assert [name for name in wanted if not any(key.startswith(name) for key in found)] == []
    assert all(value > 0 for value in found.values())


def test_the_report_says_what_failed_and_with_what(script: ModuleType) -> None:
    versions = script.versions()
    assert {"python", "numpy", "umd-runtime", "card"} <= set(versions)
    kit = {"ok": False, "failed": 1, "failures": {"test_kernel[gemm_kernel]": "differs"}}
    page = script.markdown({"device": "cuda:0", "date": "today", "versions": versions, "conformance": kit})
    assert page.startswith("# cuda:0 on today")
    assert "| failures | {'test_kernel[gemm_kernel]': 'differs'} |" in page
    assert "## Figures" not in page
