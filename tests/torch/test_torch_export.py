"""Export to a file: the same results as torch's, other batches too, without torch in the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import umd_torch
from tests.torch.zoo import build
from umd_core.errors import AttributeValueError, UnsupportedError
from umd_model import Session, load

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch about itself
BATCHED = {
    "mlp": "x",
    "resnet18": "x",
    "gpt": "ids",
    "lstm": "ids",
    "unet": "x",
    "llama": "input_ids",
    "bert": "input_ids",
}


def arrays(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", BATCHED)
def test_a_model_of_the_zoo_with_an_open_batch(name: str, tmp_path: Path) -> None:
    case = build(name)
    model = case.model.eval()
    keywords = {n: x for n, x in case.keywords.items() if n != "labels"}
    given = {**dict(zip([BATCHED[name]], case.arguments, strict=False)), **keywords}
    axes = {n: {0: "batch"} for n in given}
    umd_torch.export(model, case.arguments, tmp_path / "m", kwargs=keywords, dynamic=axes)
    with Session(load(tmp_path / "m"), "sim:0") as session:
        for batch in (1, 2, 5):
            inputs = {n: x[:1].repeat(batch, *[1] * (x.dim() - 1)) for n, x in given.items()}
            with torch.no_grad():
                results = model(**inputs)
            wanted = results if isinstance(results, Tensor) else results.logits
            found = next(iter(session.run(arrays(inputs)).values()))
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)


class Counting(nn.Module):
    """A norm that learns while it runs, and several results."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor, scale: Tensor) -> Any:
        y = self.norm(x) * scale
        return {"y": y, "parts": (y.sum(0), x)}


def test_buffers_that_change_and_results_by_name(tmp_path: Path) -> None:
    model, x, scale = Counting().train(), torch.randn(4, 3), torch.tensor(2.0)
    umd_torch.export(model, (x, scale), tmp_path / "m")
    with Session(load(tmp_path / "m"), "sim:0") as session:
        for _ in range(3):
            found = session.run(arrays({"x": x, "scale": scale}))
            wanted = model(x, scale)
        assert list(found) == ["y", "parts_0", "parts_1"]
        np.testing.assert_allclose(found["y"], wanted["y"].detach().numpy(), atol=1e-6)
        np.testing.assert_allclose(found["parts_0"], wanted["parts"][0].detach().numpy(), atol=1e-5)
        np.testing.assert_array_equal(found["parts_1"], x.numpy())
        wanted_mean: Any = model.norm.running_mean
        np.testing.assert_allclose(session._weights["norm.running_mean"].numpy(), wanted_mean.numpy(), atol=1e-6)
        assert session._weights["norm.num_batches_tracked"].numpy() == 3


def test_two_open_sizes(tmp_path: Path) -> None:
    case = build("gpt")
    model = case.model.eval()
    axes, ranges = {"ids": {0: "batch", 1: "tokens"}}, {"tokens": (2, 16)}
    umd_torch.export(model, case.arguments, tmp_path / "m", dynamic=axes, ranges=ranges)
    loaded = load(tmp_path / "m")
    assert loaded.open_axes("ids") == {0: "batch", 1: "tokens"}
    with Session(loaded, "sim:0") as session:
        for shape in ((1, 3), (3, 16), (2, 8)):
            ids = torch.randint(0, 99, shape)
            with torch.no_grad():
                wanted = model(ids).numpy()
            np.testing.assert_allclose(session.run({"ids": ids.numpy()})["output"], wanted, rtol=1e-4, atol=1e-5)


def test_bfloat16_weights(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 3).bfloat16(), torch.randn(2, 4).bfloat16()
    umd_torch.export(model, (x,), tmp_path / "m")
    with Session(load(tmp_path / "m"), "sim:0") as session:
        found = session.run({"input": umd_torch.graphs.to_numpy(x)})["output"]
    np.testing.assert_allclose(found.astype(np.float32), model(x).detach().float().numpy(), rtol=1e-2, atol=1e-2)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    with pytest.raises(UnsupportedError, match=r"model\.eval"):
        umd_torch.export(nn.Dropout(0.5).train(), (x,), tmp_path / "m")
    with pytest.raises(AttributeValueError, match="no input y"):
        umd_torch.export(nn.Linear(4, 3), (x,), tmp_path / "m", dynamic={"y": {0: "batch"}})
    assert list(tmp_path.iterdir()) == []


def test_the_command_runs_a_file_without_torch(tmp_path: Path) -> None:
    case = build("cnn")
    model, (x,) = case.model.eval(), case.arguments
    umd_torch.export(model, (x,), tmp_path / "cnn.umd", dynamic={"x": {0: "batch"}})
    np.save(tmp_path / "x.npy", x.numpy())
    without = "import sys; sys.modules['torch'] = None; from umd_cli.main import main; main()"

    def umd(*arguments: str) -> Any:
        command = [sys.executable, "-c", without, "run", str(tmp_path / "cnn.umd"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    found = umd("--input", str(tmp_path / "x.npy"), "--device", "sim:0", "--output", str(tmp_path / "out"), "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["outputs"]["output"]["shape"] == [2, 10]
    with torch.no_grad():
        np.testing.assert_allclose(np.load(tmp_path / "out" / "output.npy"), model(x).numpy(), rtol=1e-4, atol=1e-5)
    found = umd("--random", "--dim", "batch=7", "--device", "sim:0")
    assert "float32[7,10]" in found.stdout
    found = umd("--device", "sim:0")
    assert found.returncode == 2
    assert "--input x=FILE.npy" in found.stderr
