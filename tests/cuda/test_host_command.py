"""`umd cuda check` and the pytest fixture `cuda_cpu`, as their users meet them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tests.cuda.host_cases import KERNELS, needs_compiler
from umd_core.errors import AttributeValueError, DTypeError
from umd_cuda.host.command import app, read_arguments, read_dimensions

ROOT = Path(__file__).parents[2]
SUM = ["--kernel", "test_sum", "--grid", "3", "--block", "128", "--arg", "f32[300]", "--arg", "f32[300]"]


def _check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", *arguments])


@needs_compiler
def test_a_clean_kernel() -> None:
    result = _check(str(KERNELS / "elementwise.cu"), *SUM, "--arg", "f32[300]=out", "--arg", "300")
    assert (result.exit_code, result.output) == (
        0,
        "test_sum (elementwise.cu): nothing found, 3 further thread orders\n",
    )


@needs_compiler
def test_a_faulty_launch_prints_the_line() -> None:
    result = _check(str(KERNELS / "elementwise.cu"), *SUM, "--arg", "f32[300]=out", "--arg", "u32=310")
    assert result.exit_code == 1
    assert "elementwise.cu:14: out-of-bounds read in 'x1' at byte 1200 (4 bytes): block (2, 0, 0)" in result.output


@needs_compiler
def test_json() -> None:
    result = _check(str(KERNELS / "elementwise.cu"), *SUM, "--arg", "f32[301]=out", "--arg", "300", "--json")
    document = json.loads(result.output)
    assert result.exit_code == 1
    (finding,) = document["findings"]
    assert (finding["kind"], finding["buffer"], finding["offset"]) == ("unwritten output", "y", 1200)


@needs_compiler
def test_the_only_kernel_needs_no_name(tmp_path: Path) -> None:
    file = tmp_path / "one.cu"
    file.write_text(
        '#include "n.h"\nextern "C" __global__ void only(int* x) { if (threadIdx.x < N) x[threadIdx.x] = 1; }'
    )
    (tmp_path / "n.h").write_text("#define N 8\n")
    assert _check(str(file), "--block", "32", "--arg", "i32[8]=out").exit_code == 0
    assert _check(str(file), "--block", "32", "--arg", "i32[9]=out").exit_code == 1
    with pytest.raises(AttributeValueError, match="my_add"):
        app(["check", str(KERNELS / "elementwise.cu")], standalone_mode=False)


@needs_compiler
def test_it_is_a_command_of_umd(tmp_path: Path) -> None:
    """Through the entry-point group, as an installed package brings it."""
    metadata = tmp_path / "umd_cuda_test-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: umd-cuda-test\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[umd.commands]\ncuda = umd_cuda.host.command:app\n")
    path = os.pathsep.join([str(tmp_path), *(part for part in sys.path if part)])
    command = [
        sys.executable,
        "-c",
        "from umd_cli.main import main; main()",
        "cuda",
        "check",
        str(KERNELS / "elementwise.cu"),
        *SUM,
    ]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, env=environment)

    clean = run("--arg", "f32[300]=out", "--arg", "300")
    assert (clean.returncode, clean.stdout[:8]) == (0, "test_sum"), clean.stderr
    assert run("--arg", "f32[300]=out", "--arg", "u32=301").returncode == 1
    refused = run("--arg", "f64[300]=out", "--arg", "300")
    assert refused.returncode not in (0, 1)
    assert "input 'y': points to float32, got an array of float64" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_arguments() -> None:
    texts = ["f32[2,3]", "i32[4x2]=5..7", "f16[3]=out", "300", "1e-5", "u8=7", "f64[2]=1.5", "bf16=2"]
    values, outputs = read_arguments(texts)
    assert outputs == [2]
    described = [(type(v).__name__, getattr(v, "dtype", None), getattr(v, "shape", None)) for v in values]
    assert described[0] == ("ndarray", np.dtype("f4"), (2, 3))
    assert described[1] == ("ndarray", np.dtype("i4"), (4, 2))
    assert set(values[1].ravel().tolist()) <= {5, 6, 7}
    assert values[3:5] == [300, 1e-5]
    assert (values[5], values[5].dtype) == (7, np.dtype("u1"))
    assert values[6].tolist() == [1.5, 1.5]
    assert float(values[7]) == 2
    assert read_dimensions("8,4") == read_dimensions("8x4") == (8, 4)


def test_an_array_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.int32))
    values, _ = read_arguments([f"i64[2,3]={tmp_path / 'x.npy'}"])
    np.testing.assert_array_equal(values[0], np.arange(6).reshape(2, 3))


@pytest.mark.parametrize("text", ["", "f32", "f32[3]=x", "[3]", "f32[3", "f32[3]=1..b"])
def test_what_is_no_argument(text: str) -> None:
    with pytest.raises(AttributeValueError) as raised:
        read_arguments([text])
    assert raised.value.attribute == "--arg"


def test_what_is_no_type() -> None:
    with pytest.raises(DTypeError):
        read_arguments(["q7[3]"])
    with pytest.raises(AttributeValueError):
        read_dimensions("8,b")


def test_entry_points_are_declared() -> None:
    points: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["umd.commands"]["cuda"] == "umd_cuda.host.command:app"
    assert points["pytest11"]["umd_cuda"] == "umd_cuda.pytest_plugin"


TESTS = '''
import numpy as np

CODE = """
extern "C" __global__ void double_it(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i BOUND n) y[i] = 2 * x[i];
}
"""


def test_right(cuda_cpu):
    kernel = cuda_cpu.RawKernel(CODE.replace("BOUND", "<"), "double_it")
    x = np.arange(100, dtype=np.float32)
    y = np.zeros_like(x)
    cuda_cpu.check(kernel, (4,), (32,), (x, y, 100), outputs=["y"])
    np.testing.assert_array_equal(y, 2 * x)


def test_wrong(cuda_cpu):
    kernel = cuda_cpu.RawKernel(CODE.replace("BOUND", "<="), "double_it")
    x = np.arange(100, dtype=np.float32)
    cuda_cpu.check(kernel, (4,), (32,), (x, np.zeros_like(x), 100))
'''


def _pytest(folder: Path, **environment: str) -> str:
    (folder / "test_mine.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:umd_cuda",
        "-p",
        "umd_cuda.pytest_plugin",
        "-rs",
        str(folder),
    ]
    path = os.pathsep.join(part for part in sys.path if part)
    answer = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    return answer.stdout


@needs_compiler
def test_the_fixture_fails_a_test_with_the_report(tmp_path: Path) -> None:
    output = _pytest(tmp_path)
    assert "1 failed, 1 passed" in output
    assert "kernel.cu:4: out-of-bounds read in 'x' at byte 400 (4 bytes): block (3, 0, 0) thread (4, 0, 0)" in output


def test_the_fixture_skips_without_a_compiler(tmp_path: Path) -> None:
    output = _pytest(tmp_path, PATH=str(tmp_path))
    if "ziglang" in sys.modules:
        assert "passed" in output
    else:
        assert "2 skipped" in output
        assert "no C++ compiler" in output
