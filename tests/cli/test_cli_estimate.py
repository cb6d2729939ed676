"""`umd estimate` and `umd calibrate`: what they print and write, and their exit codes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import umd_core as umd
from tests.cli.calling import document, umd_command
from tests.model.test_model_file import model
from tests.onnx import small_models
from umd_core.encoding import decode
from umd_core.errors import Status
from umd_model import save
from umd_sim.device import SimDevice
from umd_sim.timing import estimate
from umd_sim.timing_profile import read_profile, write_profile


@pytest.fixture
def affine(tmp_path: Path) -> Path:
    return small_models.affine_file(tmp_path)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    graph = umd.Graph()
    x = graph.input("x", umd.TensorDesc("f32", (512, 512)))
    product = graph.add("MatMul", [x, x], name="product")
    graph.output(graph.add("Softmax", [product], name="weights"))
    file = tmp_path / "program.umdcmd"
    file.write_bytes(bytes(umd.translate(graph)))
    return file


def test_a_program_is_estimated_kernel_by_kernel(program: Path) -> None:
    found = document("estimate", program, "--profile", "h200")
    timeline = estimate(decode(program.read_bytes()), read_profile("h200"))
    assert found["microseconds"] == pytest.approx(timeline.seconds * 1e6, abs=1e-3)
    assert {row["kernel"]: row["launches"] for row in found["kernels"]} == {"gemm_kernel": 1, "softmax_kernel": 1}
    assert found["kernels"][0]["operations"] == 2 * 512**3
    assert sum(row["share"] for row in found["kernels"]) == pytest.approx(1, abs=1e-3)
    assert found["memory"] == {"needed": 3 * 512 * 512 * 4, "of": 141 * 10**9}
    assert "H200" in found["profile"]
    assert "no estimate was compared with this card" in found["error"]
    text = umd_command("estimate", program, "--profile", "h200").stdout
    assert "gemm_kernel" in text
    assert "no estimate was compared with this card" in text


def test_a_trace_is_written(program: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    found = document("estimate", program, "--profile", "t4", "--trace", trace)
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in events] == ["gemm_kernel", "softmax_kernel"]
    assert sum(event["dur"] for event in events) == pytest.approx(found["microseconds"], abs=1e-2)


def test_models_are_estimated(affine: Path, tmp_path: Path) -> None:
    small, large = (document("estimate", affine, "--profile", "a100", "--dim", f"batch={n}") for n in (1, 1_000_000))
    assert small["microseconds"] < large["microseconds"]
    assert document("estimate", affine)["profile"] == read_profile("cpu").name
    save(model(), tmp_path / "layer.umd")
    saved = document("estimate", tmp_path / "layer.umd", "--profile", "t4")
    assert "gemm_kernel" in {row["kernel"] for row in saved["kernels"]}


def test_a_device_that_does_not_estimate_needs_a_profile(affine: Path) -> None:
    found = document("estimate", affine, "--device", "sim:0,sim:0", code=10 + Status.UNSUPPORTED)
    assert "name a --profile" in found["error"]["message"]
    assert document("estimate", affine, "--device", "sim:0,sim:0", "--profile", "t4")["kernels"]


def test_profiles_that_there_are_not(program: Path, tmp_path: Path) -> None:
    unknown = document("estimate", program, "--profile", "b300", code=10 + Status.ATTRIBUTE)
    assert "a100, cpu, h200, t4 or the path of a .toml file" in unknown["error"]["message"]
    (tmp_path / "wrong.toml").write_text('name = "wrong"\nsource = "nobody"\n')
    wrong = document("estimate", program, "--profile", tmp_path / "wrong.toml", code=10 + Status.ATTRIBUTE)
    assert "memory.bandwidth is missing: a number above 0 would be right" in wrong["error"]["message"]
    nothing = document("estimate", program, "--profile", tmp_path / "missing.toml", code=10 + Status.UNSUPPORTED)
    assert "No such file" in nothing["error"]["message"]
    assert "missing.toml" in nothing["error"]["message"]


@pytest.mark.parametrize("command", ["estimate", "inspect", "run"])
def test_a_model_that_is_larger_than_the_device_is_refused_before_it_is_uploaded(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"w": np.zeros((1000, 1000), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    made = small_models.model(nodes, {"x": (TensorProto.FLOAT, (1, 1000))}, ["y"], weights)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    small = dataclasses.replace(read_profile("t4"), memory=3_000_000)
    (tmp_path / "small.toml").write_text(write_profile(small))
    device = f"sim:0?profile={tmp_path / 'small.toml'}"
    options: dict[str, list[object]] = {
        "estimate": ["--profile", tmp_path / "small.toml"],
        "inspect": ["--device", device],
        "run": ["--random", "--device", device],
    }
    allocated: list[int] = []
    monkeypatch.setattr(SimDevice, "allocate_memory", lambda self, size: allocated.append(size))
    needed = 4 * (1000 * 1000 + 1000 + 1000)
    if command == "inspect":
        found = document(command, tmp_path / "m.onnx", *options[command], code=1)
        said = found["refused"]
    else:
        found = document(command, tmp_path / "m.onnx", *options[command], code=10 + Status.OUT_OF_MEMORY)
        said = found["error"]["message"]
        assert (found["error"]["asked"], found["error"]["capacity"]) == (needed, 3_000_000)
    assert f"{needed} bytes asked, 0 of 3000000 in use" in said
    assert allocated == []


def test_a_model_is_inspected_for_a_card_with_more_memory_than_this_machine(tmp_path: Path) -> None:
    weights = {"shape": np.array([1 << 20, 1 << 19], np.int64)}
    nodes = [helper.make_node("Expand", ["x", "shape"], ["wide"]), helper.make_node("Exp", ["wide"], ["y"])]
    made = small_models.model(nodes, {"x": (TensorProto.FLOAT, (1, 1))}, ["y"], weights, rank=2)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    (tmp_path / "large.toml").write_text(write_profile(dataclasses.replace(read_profile("h200"), memory=1 << 42)))
    found = document("inspect", tmp_path / "m.onnx", "--profile", tmp_path / "large.toml")
    assert found["estimate"]["memory"] == {"needed": (1 << 41) + 4, "of": 1 << 42}
    assert found["memory"]["of"] == 1 << 42
    here = document("inspect", tmp_path / "m.onnx", "--profile", tmp_path / "large.toml", "--device", "sim:0", code=1)
    assert f"{(1 << 41) + 4} bytes asked" in here["refused"]


def test_a_saved_model_that_is_larger_than_the_device_is_refused(tmp_path: Path) -> None:
    save(model(), tmp_path / "layer.umd")
    arguments = ("run", tmp_path / "layer.umd", "--random", "--device")
    weights = document(*arguments, "sim:0?memory=16", code=10 + Status.OUT_OF_MEMORY)
    assert weights["error"]["asked"] == 6 * 4 + 8
    everything = document(*arguments, "sim:0?memory=32", code=10 + Status.OUT_OF_MEMORY)
    assert everything["error"]["asked"] > 32


def test_a_device_is_calibrated(program: Path, tmp_path: Path) -> None:
    """The figures are the machine's: that they are a profile, and one that is used, is what can be asserted."""
    file = tmp_path / "mine.toml"
    found = document("calibrate", "--output", file, "--patience", 0, "--name", "mine", "--cpu-time")
    assert found["name"] == "mine"
    profile = read_profile(str(file))
    assert profile.products["float32"] == pytest.approx(found["products"]["float32"], rel=1e-3)
    assert profile.source.startswith("measured on sim:0 by umd calibrate")
    assert document("estimate", program, "--profile", file)["profile"] == "mine"


def test_a_calibration_that_cannot_be_made(tmp_path: Path) -> None:
    result = umd_command("calibrate", "--output", tmp_path / "mine.txt")
    assert result.exit_code == 10 + Status.ATTRIBUTE
    assert "is no .toml file" in result.output
    result = umd_command("calibrate", "--output", tmp_path / "mine.toml", "--device", "nothing:0")
    assert result.exit_code == 10 + Status.UNSUPPORTED
    assert not (tmp_path / "mine.toml").exists()
