"""scripts/gpu_check.py, in small, on the processor."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.cuda.kernel_runs import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
DEVICE = "cuda-cpu:0"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("gpu_check")


def test_every_family_s_bandwidth_is_measured(script: ModuleType) -> None:
    found = script.bandwidths(DEVICE, 1)
    assert set(found) == {"copy", *script.families(1 << 18)}
    assert all(value > 0 for row in found.values() for value in row.values())


def test_products_and_launches_are_measured(script: ModuleType) -> None:
    found = script.products(DEVICE, 32)
    assert set(found) == {"32, float32", "32, float16", "32, bfloat16"}
    assert all(set(row) == {"library TFLOP/s", "own TFLOP/s", "own, share of library"} for row in found.values())
    costs = script.launches(DEVICE)
    assert set(costs) == {"as a graph", "direct"}
    assert all(value > 0 for row in costs.values() for value in row.values())


def test_the_checked_build_finds_what_the_sanitizer_is_asked_for(script: ModuleType) -> None:
    sanitizer = importlib.import_module("gpu_sanitizer")
    found = sanitizer.compared()
    assert set(found) == set(sanitizer.CASES)
    assert [name for name, row in found.items() if not row["ok"]] == []


def test_models_agree_with_torch(script: ModuleType) -> None:
    models = importlib.import_module("gpu_models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "MODELS", dict(list(models.MODELS.items())[:1]))
        patch.setattr(models, "_compiled", lambda model, x: None)
        (row,) = models.models(DEVICE, lambda call: script.fastest(call, 1)).values()
    assert row["ok"]
    assert row["torch eager (cpu) ms"] > 0
    assert row["torch compile (cpu) ms"] == "not available here"


def test_a_whole_run_writes_a_page_and_a_file(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ("launches", "conformance", "compute-sanitizer, our kernels")
    only = [word for part in parts for word in ("--only", part)]
    arguments = ["gpu_check.py", "--device", DEVICE, "--kit", "test_command", "--out", str(tmp_path), *only]
    monkeypatch.setattr(sys, "argv", arguments)
    assert script.main() == 0
    (page,) = tmp_path.glob("*.md")
    (data,) = tmp_path.glob("*.json")
    assert page.read_text("utf-8").strip() in capsys.readouterr().out
    report = json.loads(data.read_text("utf-8"))
    assert {"python", "numpy", "umd-runtime", "card"} <= set(report["versions"])
    assert [name for name in report if name in parts] == ["launches", "compute-sanitizer, our kernels", "conformance"]
    assert report["conformance"]["failed"] == 0
    assert "| direct |" in page.read_text("utf-8")
    assert page.read_text("utf-8").rstrip().endswith("All is well.")


def test_what_design_asks_for_is_there(script: ModuleType) -> None:
    arguments = argparse.Namespace(device=DEVICE, megabytes=1, extent=32, kit="", minutes=1)
    assert list(script.sections(arguments)) == [
        "bandwidth", "matrix products", "launches", "training", "models", "compute-sanitizer, planted faults",
        "compute-sanitizer, our kernels", "conformance",
    ]  # fmt: skip


def test_a_part_that_fails_or_has_no_time_is_named_and_the_others_are_there(script: ModuleType) -> None:
    def broken() -> dict[str, object]:
        raise ValueError("no such card")

    arguments = argparse.Namespace(device=DEVICE)
    report = script.report_of(arguments, {"a": broken, "b": lambda: {"row": {"ok": False}}}, 60)
    assert report["a"] == {"ok": False, "failed": "ValueError: no such card"}
    assert script.wrong(report) == ["a", "b: row"]
    assert script.markdown(report).rstrip().endswith("Not well: a, b: row.")
    late = script.report_of(arguments, {"a": dict}, -1)
    assert late["a"]["left out"] == "-1 seconds were over"


def test_the_kit_stops_at_its_deadline_and_says_what_it_left_out(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    clock = iter(range(10_000))

    def run(device: str, select: str) -> argparse.Namespace:
        asked.append(select)
        one = argparse.Namespace(name=f"test {len(asked)}", outcome="passed", detail="")
        return argparse.Namespace(results=[one])

    monkeypatch.setattr(script, "conformance", argparse.Namespace(run=run))
    monkeypatch.setattr(script, "time", argparse.Namespace(monotonic=lambda: next(clock)))
    found = script.kit(DEVICE, "", deadline=3)
    assert asked[0] == "not test_kernel"
    assert len(asked) == found["passed"] == 3
    assert not found["ok"]
    assert all(name not in select for select in asked for name in found["left out, for time"].split(" or "))
    whole = script.kit(DEVICE, "")
    assert whole["ok"]
    assert "left out, for time" not in whole
