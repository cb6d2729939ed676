"""`umd run` and `umd inspect` of ONNX models: what they print, and their exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.cli.calling import document, umd_command
from tests.onnx import small_models
from tests.onnx.test_onnx_session import X, Y
from umd_core.errors import Status


@pytest.fixture
def affine(tmp_path: Path) -> Path:
    return small_models.affine_file(tmp_path)


@pytest.fixture
def x(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def test_run_gives_the_results_for_an_input(affine: Path, x: Path) -> None:
    for given in (x, f"x={x}"):
        found = document("run", affine, "--input", given, "--device", "sim:0")
        assert found["device"] == "sim:0"
        assert set(found["steps"]) == {"load", "translate", "upload", "first run"}
        np.testing.assert_allclose(found["outputs"]["y"]["values"], Y, rtol=1e-6)


def test_run_writes_results(affine: Path, x: Path, tmp_path: Path) -> None:
    assert umd_command("run", affine, "--input", x, "--device", "sim:0", "--output", tmp_path / "out").exit_code == 0
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), Y, rtol=1e-6)


def test_names_of_results_do_not_leave_the_folder(tmp_path: Path, x: Path) -> None:
    model = small_models.affine()
    model.graph.output[0].name = model.graph.node[2].output[0] = "../../y"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    folder = tmp_path / "a" / "out"
    assert umd_command("run", tmp_path / "m.onnx", "--input", x, "--device", "sim:0", "--output", folder).exit_code == 0
    assert [file.name for file in folder.iterdir()] == [".._.._y.npy"]


def test_random_inputs_have_the_sizes_asked_for(affine: Path) -> None:
    found = document("run", affine, "--random", "--dim", "batch=5", "--device", "sim:0", "--repeat", 3)
    assert found["outputs"]["y"]["shape"] == [5, 2]
    other = document("run", affine, "--random", "--shape", "x=7,3", "--device", "sim:0")
    assert other["outputs"]["y"]["shape"] == [7, 2]


def test_results_are_compared_with_those_of_onnxruntime(affine: Path) -> None:
    found = document("run", affine, "--random", "--device", "sim:0", "--compare", "onnxruntime")
    row = found["compared"]["outputs"]["y"]
    assert row["within"]
    assert row["absolute"] < 1e-6
    assert "next runs" in found["steps"]  # both times are of runs that have nothing to make ready
    text = umd_command("run", affine, "--random", "--device", "sim:0", "--compare", "onnxruntime")
    assert text.exit_code == 0
    assert "onnxruntime, one thread" in text.stdout


def test_relative_differences_are_those_of_values_that_are_not_near_zero(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sin", ["x"], ["y"])]
    made = small_models.model(nodes, {"x": (TensorProto.FLOAT, (2,))}, ["y"])
    made.opset_import[0].version = 21
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    np.save(tmp_path / "x.npy", np.array([1, 1e3 * np.pi], np.float32))
    arguments = ("run", tmp_path / "m.onnx", "--input", tmp_path / "x.npy", "--device", "sim:0")
    found = document(*arguments, "--compare", "onnxruntime", "--atol", 1e-2)
    assert found["compared"]["outputs"]["y"]["relative"] < 1e-6
    assert found["compared"]["outputs"]["y"]["within"]


def test_numbers_that_are_not_finite_are_compared_by_where_they_are(tmp_path: Path) -> None:
    made = small_models.model([helper.make_node("Log", ["x"], ["y"])], {"x": (TensorProto.FLOAT, (4,))}, ["y"])
    made.opset_import[0].version = 21
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    np.save(tmp_path / "x.npy", np.array([-1, 0, np.inf, 2], np.float32))
    arguments = ("run", tmp_path / "m.onnx", "--input", tmp_path / "x.npy", "--device", "sim:0")
    found = document(*arguments, "--compare", "onnxruntime")
    assert found["compared"]["outputs"]["y"]["within"]
    assert found["compared"]["outputs"]["y"]["absolute"] < 1e-6
    assert found["outputs"]["y"]["values"][:3] == ["NaN", "-Infinity", "Infinity"]  # JSON has no such numbers


def test_a_model_that_onnxruntime_does_not_run_is_no_fault_of_umd(tmp_path: Path) -> None:
    made = small_models.text("agraph (float[4] x) => (bfloat16[4] y) { y = Cast<to=16>(x) }")
    made.opset_import[0].version = 21
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    arguments = ("run", tmp_path / "m.onnx", "--random", "--device", "sim:0", "--compare", "onnxruntime")
    found = document(*arguments, code=10 + Status.UNSUPPORTED)
    assert "onnxruntime does not run this model" in found["error"]["message"]


def test_a_difference_ends_with_code_1(tmp_path: Path) -> None:
    nodes = [helper.make_node("RandomUniformLike", ["x"], ["y"])]
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (8,))}, ["y"])
    model.opset_import[0].version = 21  # the newest that onnxruntime has for sure
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    found = document("run", tmp_path / "m.onnx", "--random", "--device", "sim:0", "--compare", "onnxruntime", code=1)
    assert not found["compared"]["outputs"]["y"]["within"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--input x=FILE.npy, or --random"),
        (("--random", "--dim", "size=3"), "the open sizes are batch"),
        (("--random", "--dim", "batch"), "write it as NAME=SIZE"),
        (("--random", "--shape", "x=a"), "write it as NAME=1,3,224,224"),
        (("--random", "--compare", "torch"), "onnxruntime"),
    ],
)
def test_wrong_options(affine: Path, options: tuple[str, ...], said: str) -> None:
    result = umd_command("run", affine, "--device", "sim:0", *options)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


def test_wrong_inputs_say_what_would_be_right(affine: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "f8.npy", X.astype("f8"))
    (tmp_path / "text.npy").write_text("no array")
    wrong = document("run", affine, "--input", tmp_path / "f8.npy", "--device", "sim:0", code=10 + Status.DTYPE)
    assert "float32 would be right" in wrong["error"]["message"]
    broken = document("run", affine, "--input", tmp_path / "text.npy", "--device", "sim:0", code=10 + Status.BAD_BYTES)
    assert "no .npy file" in broken["error"]["message"]
    unknown = document(
        "run",
        affine,
        "--input",
        f"q={tmp_path / 'f8.npy'}",
        "--random",
        "--device",
        "sim:0",
        code=10 + Status.ATTRIBUTE,
    )
    assert "inputs x" in unknown["error"]["message"]
    named = document(
        "run", affine, "--input", f"q={tmp_path / 'f8.npy'}", "--device", "sim:0", code=10 + Status.ATTRIBUTE
    )
    assert named["error"]["message"] == unknown["error"]["message"]


def test_inspect_shows_what_a_model_is_made_of(affine: Path) -> None:
    found = document("inspect", affine, "--device", "sim:0", "--dim", "batch=4")
    assert found["inputs"] == {"x": "float[batch,3]"}
    assert found["for"] == {"x": "float32[4,3]"}
    assert found["ops"] == {op: {"count": 1, "how": "kernels"} for op in ("Add", "MatMul", "Relu")}
    assert (found["parameters"], found["parameter_bytes"], found["missing"]) == (8, 32, [])
    assert found["memory"]["weights, inputs, outputs"] == 4 * 3 * 4 + 4 * 2 * 4  # small weights are in the program
    assert found["launches"] >= 1
    assert "MatMul" in umd_command("inspect", affine, "--device", "sim:0").stdout


def test_inspect_names_every_op_that_is_missing(tmp_path: Path) -> None:
    nodes = [helper.make_node(op, ["x"], [op], domain="com.example") for op in ("Foo", "Bar")]
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (1,))}, ["Foo", "Bar"], domains=["com.example"])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    found = document("inspect", tmp_path / "m.onnx", "--device", "sim:0", code=1)
    assert found["missing"] == ["com.example.Bar", "com.example.Foo"]


def test_inspect_says_why_there_is_no_program(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E8M0)]
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (1,))}, ["y"])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    found = document("inspect", tmp_path / "m.onnx", "--device", "sim:0", code=1)
    assert "float8_e8m0fnu" in found["refused"]


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_files_that_are_no_models(tmp_path: Path, command: str) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x93NUMPY\x01\0 no model at all")
    random = ["--random"] if command == "run" else []
    document(command, tmp_path / "m.onnx", *random, "--device", "sim:0", code=10 + Status.BAD_BYTES)
    assert umd_command(command, tmp_path / "missing.onnx").exit_code == 2
