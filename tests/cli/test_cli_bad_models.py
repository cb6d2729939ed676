"""Every kind of bad input to `umd run` and `umd inspect`: the exit code, and what the one line says."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from tests.onnx import small_models
from umd_cli.app import app
from umd_core.errors import Status

X = np.array([[1, 2, 3], [-4, 0, 5]], np.float32)


def refused(*arguments: object, status: Status) -> dict[str, Any]:
    """Returns the facts of the error that a command ends with; a person is told the same in one line."""
    words = [str(a) for a in arguments]
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 10 + status, result.output
    found: dict[str, Any] = json.loads(result.stdout)["error"]
    plain = CliRunner().invoke(app, words)
    assert plain.exit_code == 10 + status
    assert plain.stdout == ""
    assert plain.stderr.splitlines()[0].startswith("error: ")
    assert len(plain.stderr.splitlines()) == 1
    return found


def said(command: str, file: Path, *arguments: object, status: Status) -> str:
    options = ["--random"] if command == "run" and "--input" not in arguments else []
    message: str = refused(command, file, *options, *arguments, "--device", "sim:0", status=status)["message"]
    return message


def affine(folder: Path, change: Callable[[onnx.ModelProto], object] = lambda model: None) -> Path:
    """Writes x · w + b, changed."""
    model = small_models.affine()
    change(model)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


BOTH = pytest.mark.parametrize("command", ["run", "inspect"])


@BOTH
@pytest.mark.parametrize("left", [0.99, 0.5, 0.1])
def test_a_truncated_file(tmp_path: Path, command: str, left: float) -> None:
    file = affine(tmp_path)
    raw = file.read_bytes()
    file.write_bytes(raw[: int(len(raw) * left)])
    assert "m.onnx is no ONNX model" in said(command, file, status=Status.BAD_BYTES)


@BOTH
@pytest.mark.parametrize(
    "content", [b"\x93NUMPY\x01\0", b"{}", b"", b"\x89PNG\r\n\x1a\n", b"import torch\n", b"UMDCMD\0\0"]
)
def test_a_file_of_another_type(tmp_path: Path, command: str, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert "m.onnx is no ONNX model" in said(command, tmp_path / "m.onnx", status=Status.BAD_BYTES)


def test_an_archive_that_is_no_model_of_umd(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.umd", "w") as archive:
        archive.writestr("readme.txt", "no model")
    assert "manifest.json is missing" in said("run", tmp_path / "m.umd", status=Status.BAD_BYTES)
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "m.umd")])
    assert result.exit_code == 2
    assert "is no ONNX model" in " ".join(result.output.replace("│", " ").split())


@BOTH
def test_an_opset_that_is_not_known_yet(tmp_path: Path, command: str) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = 99

    message = said(command, affine(tmp_path, change), status=Status.UNSUPPORTED)
    assert "opset 99" in message
    assert "28" in message


@BOTH
def test_a_domain_that_nobody_imports(tmp_path: Path, command: str) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[0].domain = "com.example"

    message = said(command, affine(tmp_path, change), status=Status.UNSUPPORTED)
    assert "domain 'com.example'" in message


def _unknown_ops(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Frobnicate", ["x"], ["f"], domain="com.example"))
    model.graph.node.append(helper.make_node("Twiddle", ["f"], ["g"], domain="com.example"))
    model.opset_import.add(domain="com.example", version=1)
    model.graph.output.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, (1,)))


def test_ops_that_are_not_implemented_are_all_named_at_once(tmp_path: Path) -> None:
    file = affine(tmp_path, _unknown_ops)
    message = said("run", file, status=Status.UNSUPPORTED)
    assert "com.example.Frobnicate, com.example.Twiddle" in message
    result = CliRunner().invoke(app, ["inspect", str(file), "--device", "sim:0", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["missing"] == ["com.example.Frobnicate", "com.example.Twiddle"]


def external(folder: Path, location: str) -> Path:
    """Writes a model whose weight lies in another file."""

    def change(model: onnx.ModelProto) -> None:
        weight = model.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)

    return affine(folder, change)


@BOTH
def test_external_data_that_are_missing(tmp_path: Path, command: str) -> None:
    message = said(command, external(tmp_path, "weights.bin"), status=Status.BAD_BYTES)
    assert "weights.bin" in message
    assert "'w'" in message or " w " in message


@BOTH
@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "sub/../../secret.bin"])
def test_external_data_that_leave_the_folder(tmp_path: Path, command: str, location: str) -> None:
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(b"x" * 24)
    message = said(command, external(tmp_path / "model", location), status=Status.BAD_BYTES)
    assert "not below the model's folder" in message
    assert location in message


@pytest.mark.parametrize(
    ("name", "array", "status", "words"),
    [
        ("q", X, Status.ATTRIBUTE, ["'q'", "is not an input of the model", "inputs x would be right"]),
        ("x", X.astype("f8"), Status.DTYPE, ["'x'", "float64", "float32 would be right"]),
        ("x", X[0], Status.SHAPE, ["'x'", "[3]", "[batch, 3] would be right"]),
        ("x", X.T, Status.SHAPE, ["'x'", "[3, 2]", "[batch, 3] would be right"]),
    ],
    ids=["name", "dtype", "rank", "extent"],
)
def test_inputs_that_do_not_fit_say_which_would(
    tmp_path: Path, name: str, array: Any, status: Status, words: list[str]
) -> None:
    np.save(tmp_path / "given.npy", array)
    random = ["--random"] if name == "q" else []
    given = f"{name}={tmp_path / 'given.npy'}"
    message = said("run", affine(tmp_path), "--input", given, *random, status=status)
    assert all(word in message for word in words), message


def test_a_model_that_is_larger_than_the_device_says_how_much(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 20

    found = refused(
        "run", affine(tmp_path, change), "--random", "--device", "sim:0?memory=1MiB", status=Status.OUT_OF_MEMORY
    )
    assert found["asked"] >= 4 * (3 + 2) * (1 << 20)
    assert (found["capacity"], found["used"]) == (1 << 20, 0)
    assert f"{found['asked']} bytes asked, 0 of 1048576 in use" in found["message"]
