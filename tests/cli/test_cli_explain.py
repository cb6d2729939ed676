"""`umd kernels --device` and `umd dis --device`: what a device would run, and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import umd_core as umd
from umd_cli.app import app
from umd_core import dtypes
from umd_core.device import Choice, CompositeDevice, SequentialDevice
from umd_core.kernels import BY_NAME
from umd_cuda.device import CudaDevice
from umd_cuda.libraries import ROUTINES
from umd_cuda.options import Options
from umd_cuda.recording import RecordingDriver


def umd_command(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def product(tmp_path: Path) -> Path:
    graph = umd.Graph()
    x = graph.input("x", umd.TensorDesc("f32", (64, 64)))
    graph.output(graph.add("Softmax", [graph.add("MatMul", [x, x])]))
    file = tmp_path / "product.umdcmd"
    file.write_bytes(bytes(umd.translate(graph)))
    return file


def test_each_launch_is_followed_by_what_sim_runs(product: Path) -> None:
    lines = umd_command("dis", "--device", "sim:0", product).splitlines()
    launches = [number for number, line in enumerate(lines) if "DISPATCH" in line]
    assert len(launches) == 2
    assert all(lines[number + 1].startswith("    sim:0: NumPy, ") for number in launches)
    plain = umd_command("dis", product).splitlines()
    assert [line for line in lines if not line.startswith("    sim:0:")] == plain


def test_the_choices_are_in_the_json_of_their_commands(product: Path) -> None:
    data = json.loads(umd_command("dis", "--device", "sim:0", "--json", product))
    found = [command["choices"] for command in data["commands"] if "kernel" in command]
    assert found[0][0]["runs"].startswith("NumPy, gemm.")
    assert all("choices" not in command for command in data["commands"] if "kernel" not in command)
    assert "choices" not in json.dumps(json.loads(umd_command("dis", "--json", product)))


def test_kernels_are_listed_with_what_runs_them() -> None:
    rows: list[dict[str, Any]] = json.loads(umd_command("kernels", "--device", "sim:0", "--json"))
    assert {row["name"] for row in rows if row["runs"].startswith("NumPy, ")} == {r["name"] for r in rows}
    assert "run by NumPy, gemm." in umd_command("kernels", "gemm_kernel", "--device", "sim:0")
    assert all("runs" not in row for row in json.loads(umd_command("kernels", "--json")))


def test_a_device_that_does_not_say_is_refused_by_dis_and_listed_without_by_kernels(product: Path) -> None:
    result = CliRunner().invoke(app, ["dis", "--device", "sim:0,sim:0", str(product)])
    assert result.exit_code == 17
    assert "does not say how it makes launches" in result.output
    rows = json.loads(umd_command("kernels", "--device", "sim:0,sim:0", "--json"))
    assert all("runs" not in row and row["supported"] == "all" for row in rows)


# the CUDA backend


def cuda(*, blas: bool, **options: Any) -> CudaDevice:
    return CudaDevice(RecordingDriver(blas=blas), "cuda:0", Options(**options))


def gemm(dtype: dtypes.DType, size: int, depth: int) -> tuple[Any, bytes]:
    record = BY_NAME["gemm_kernel"].record((dtype,), (1,))
    block = record.pack(
        batch=(1,), rows=size, columns=size, depth=depth, a_offset=0, a_strides=(0, depth, 1),
        b_offset=0, b_strides=(0, size, 1), out_offset=0, out_strides=(0, size, 1),
    )  # fmt: skip
    return record, block


@pytest.mark.parametrize("dtype", ROUTINES, ids=lambda dtype: dtype.name)
def test_a_library_s_function_is_named(dtype: dtypes.DType) -> None:
    assert cuda(blas=True).explain(*gemm(dtype, 64, 64)) == [Choice(f"cuBLAS {ROUTINES[dtype].function}")]
    for device in (cuda(blas=False), cuda(blas=True, libraries=False)):
        (choice,) = device.explain(*gemm(dtype, 64, 64))
        assert (choice.runs, choice.block, choice.workspace) == ("our CUDA C", (256, 1, 1), 0)
    (small,) = cuda(blas=True).explain(*gemm(dtype, 4, 4))
    assert small.runs == "our CUDA C"
    assert str(small) == "our CUDA C, grid 1×1×1, block 256×1×1, 0 bytes shared, 0 bytes of workspace"


def test_passes_and_their_workspace_are_listed() -> None:
    choices = cuda(blas=False).explain(*gemm(dtypes.float32, 8, 8192))
    assert [choice.runs for choice in choices] == ["our CUDA C, pass 1 of 2", "our CUDA C, pass 2 of 2"]
    assert all(choice.workspace > 0 for choice in choices)


def test_which_launches_a_library_gets_is_said_of_the_kernel() -> None:
    row = BY_NAME["gemm_kernel"]
    assert cuda(blas=True).implementation(row).startswith("cuBLAS for float32, float64, float16, bfloat16 from 32768 ")
    assert cuda(blas=False).implementation(row) == "our CUDA C"
    assert cuda(blas=True).implementation(BY_NAME["softmax_kernel"]) == "our CUDA C"


def test_nothing_is_compiled_or_launched_to_explain() -> None:
    device = cuda(blas=True)
    driver = device.driver
    assert isinstance(driver, RecordingDriver)
    device.explain(*gemm(dtypes.float32, 64, 64))
    assert driver.launches == []
    assert driver.sources == []


def test_only_devices_that_say_claim_it() -> None:
    sim = umd.open_device("sim:0")
    assert isinstance(sim, SequentialDevice)
    assert "explain" in sim.caps().flags
    assert "explain" not in CompositeDevice([sim]).caps().flags
    sim.close()
