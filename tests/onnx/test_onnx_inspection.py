"""`umd inspect`: what a device lacks for a model, named all at once, and the time that it would take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from tests.onnx import small_models
from umd_cli.app import app
from umd_core.device import Caps
from umd_core.dtypes import float64
from umd_core.kernels import BY_NAME
from umd_onnx import load
from umd_onnx.inspection import lacking
from umd_sim.device import SimDevice
from umd_sim.timing_profile import read_profile


def inspected(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["inspect", *(str(a) for a in arguments), "--json"])
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of a sum, a sine, a root and a sine once more."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node("Sin", ["a"], ["b"]),
        helper.make_node("Sqrt", ["b"], ["c"]),
        helper.make_node("Sin", ["c"], ["y"]),
    ]
    made = small_models.model(nodes, {"x": (TensorProto.FLOAT, (4, 8))}, ["y"])
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    return tmp_path / "m.onnx"


def poorer(monkeypatch: pytest.MonkeyPatch, *without: str) -> None:
    """Takes kernels away from sim:1, and leaves them to sim:0."""
    whole = SimDevice.caps

    def caps(self: SimDevice) -> Caps:
        found = whole(self)
        if self.name != "sim:1":
            return found
        return Caps({name: types for name, types in found.kernels.items() if name not in without})

    monkeypatch.setattr(SimDevice, "caps", caps)


def test_every_op_that_a_device_lacks_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poorer(monkeypatch, "elementwise_sin_kernel", "elementwise_sqrt_kernel")
    found = inspected(model, "--device", "sim:1", code=1)
    assert found["missing"] == []  # umd has them all
    assert found["lacks"].keys() == {"Sin", "Sqrt"}
    assert "elementwise_sin_kernel" in found["lacks"]["Sin"]
    text = CliRunner().invoke(app, ["inspect", str(model), "--device", "sim:1"])
    assert text.exit_code == 1
    assert "op that the device lacks" in text.stdout
    assert "elementwise_sqrt_kernel" in text.stdout


def test_a_device_that_lacks_nothing_says_so_by_its_program(model: Path) -> None:
    found = inspected(model, "--device", "sim:1")
    assert "lacks" not in found
    assert found["launches"] >= 1


def test_what_is_lacking_is_found_by_type() -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    made = small_models.model(nodes, {"x": (TensorProto.DOUBLE, (4,))}, ["y"])
    types = {name: None if name != "elementwise_neg_kernel" else frozenset[Any]() for name in BY_NAME}
    with load(made, "sim:0") as session:
        graph = session.imported({"x": np.zeros(4)}).graph
        assert lacking(graph, Caps(dict.fromkeys(BY_NAME))) == {}
        found = lacking(graph, Caps(types))
    assert found.keys() == {"Neg"}
    assert float64.name in found["Neg"]


def test_the_time_is_that_of_the_profile(model: Path) -> None:
    here = inspected(model, "--device", "sim:0")["estimate"]
    there = inspected(model, "--device", "sim:0", "--profile", "h200")["estimate"]
    assert here["profile"] == read_profile("cpu").name
    assert there["profile"] == read_profile("h200").name
    assert there["microseconds"] >= 4  # one launch, at least
    assert sum(row["launches"] for row in here["kernels"]) == inspected(model, "--device", "sim:0")["launches"]
    assert inspected(model, "--device", "sim:0?profile=t4")["estimate"]["profile"] == read_profile("t4").name
    text = CliRunner().invoke(app, ["inspect", str(model), "--device", "sim:0", "--profile", "h200"]).stdout
    assert "estimated" in text
    assert "no estimate was compared with this card" in text


def test_no_time_is_told_by_a_device_that_knows_none(model: Path) -> None:
    assert "estimate" not in inspected(model, "--device", "sim:0,sim:1")
    assert "estimate" in inspected(model, "--device", "sim:0,sim:1", "--profile", "a100")
