"""The worked example of docs/backends.md, installed as a package of its own, passes the conformance kit."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from tests.core.device_samples import EXAMPLE, example_device

RUN_KIT = """
import json
from umd_core.testing.conformance import run
print(json.dumps(run("example:0").as_dict()))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder that the example was installed into by pip."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "example_backend"
    source.mkdir()
    for name in ("pyproject.toml", "umd_example.py"):
        (source / name).write_bytes((EXAMPLE / name).read_bytes())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True, capture_output=True, text=True)
    return target


def run(installed: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )


def test_it_is_found_and_passes_the_kit(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "-c", RUN_KIT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    failed = [result for result in report["results"] if result["outcome"] == "failed"]
    assert failed == []
    assert report["ok"]
    assert report["counts"]["passed"] > 90
    reasons = {result["detail"] for result in report["results"] if result["outcome"] == "skipped"}
    assert all("level 1: decomposed where it is missing" in reason for reason in reasons)


def test_the_kit_runs_in_ones_own_test_module(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from umd_core.testing.conformance import DeviceTests\n"
        "class TestMine(DeviceTests):\n"
        "    backend = 'example'\n"
        "    expected_failures = {'gemm_kernel': 'not written yet'}\n"
        "    unsupported = {'iota_kernel': 'no need'}\n"
    )
    select = "test_caps or gemm or test_memory or relu"
    plain = [part for name in ("cacheprovider", "asyncio", "timeout") for part in ("-p", f"no:{name}")]
    done = run(installed, "-m", "pytest", "-q", *plain, "-k", select, "test_mine.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "TestMine::test_kernel[gemm_kernel]" in done.stdout
    assert "XPASS(strict)" in done.stdout
    assert "listed as unsupported, but caps has them: iota_kernel" in done.stdout
    assert "2 failed" in done.stdout


def test_the_plugin_opens_the_device_that_the_option_names(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_fixture.py").write_text("def test_name(umd_device):\n    assert umd_device.name == 'example:3'\n")
    known = any(point.value == "umd_core.testing.plugin" for point in metadata.entry_points(group="pytest11"))
    plugin = [] if known else ["-p", "umd_core.testing.plugin"]
    plain = [part for name in ("cacheprovider", "asyncio", "timeout") for part in ("-p", f"no:{name}")]
    with_option = run(
        installed, "-m", "pytest", "-q", *plugin, *plain, "test_fixture.py", "--umd-device", "example:3", cwd=tmp_path
    )
    assert "1 passed" in with_option.stdout
    without = run(installed, "-m", "pytest", "-q", "-rs", *plugin, *plain, "test_fixture.py", cwd=tmp_path)
    assert "needs --umd-device NAME" in without.stdout


def code_lines(source: str) -> int:
    """Returns the number of lines that are neither blank, comment nor docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for number, line in lines if line.split("#")[0].strip() and number not in documented)


def test_its_size_is_what_the_guide_says() -> None:
    count = code_lines((EXAMPLE / "umd_example.py").read_text(encoding="utf-8"))
    assert f"{count} lines of code in one file" in (EXAMPLE.parent / "backends.md").read_text(encoding="utf-8")
    assert count <= 120


def test_its_own_arithmetic() -> None:
    """A few numbers worked out by hand, so that example and reference do not only agree with each other."""
    import umd_core as umd

    device = example_device()

    def one(op: str, *arrays: np.ndarray) -> list[object]:
        command_buffer = umd.translate(op, list(arrays), caps=device.caps())
        numbers: list[object] = device.run(command_buffer, list(arrays))[0].numpy().tolist()
        return numbers

    assert one("Div", np.array([7, -7, 5, -128], np.int8), np.array([2, 2, 0, -1], np.int8)) == [3, -3, 0, -128]
    assert one("Add", np.array([[1.5], [2.0]], np.float32), np.array([1, 2], np.float32)) == [[2.5, 3.5], [3.0, 4.0]]
    assert one("MatMul", np.array([[1, 2]], np.float64), np.array([[3], [4]], np.float64)) == [[11.0]]
