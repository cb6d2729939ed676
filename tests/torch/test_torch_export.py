"""Export to a file: the same results as torch's, other batches too, without torch in the process."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import umd_torch
from tests.torch.zoo import ZOO, Case, build
from umd_core.errors import AttributeValueError, LimitError, UnsupportedError
from umd_model import Session, load

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch about itself
BATCHES = (1, 5)
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
from umd_cli.main import main
for line in sys.stdin:
    sys.argv = ["umd", *json.loads(line)]
    try:
        main()
    except SystemExit as end:
        print(json.dumps({"code": end.code}), flush=True)
"""
"""Runs commands in a process that cannot import torch: arguments on a line, an exit code after each."""
Command = Callable[..., int]


@pytest.fixture(scope="module")
def umd() -> Iterator[Command]:
    """Returns what runs `umd` with arguments, in one process without torch for all tests, and returns the exit code."""
    command = [sys.executable, "-c", WITHOUT_TORCH]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        given, said = process.stdin, process.stdout
        assert given is not None
        assert said is not None

        def call(*arguments: str) -> int:
            print(json.dumps(arguments), file=given, flush=True)
            for line in said:
                if line.startswith('{"code"'):
                    return int(json.loads(line)["code"] or 0)
            raise AssertionError("the process without torch ended")

        yield call
        given.close()


def arrays(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def inputs_of(name: str, case: Case) -> dict[str, Tensor]:
    """Returns a model's inputs by name; labels only where the decoder's input is made of them."""
    bound = inspect.signature(case.model.forward).bind(*case.arguments, **case.keywords).arguments
    return {n: x for n, x in bound.items() if n != "labels" or name in ("t5", "whisper")}


@pytest.mark.parametrize("name", ZOO)
def test_a_model_of_the_zoo_with_an_open_batch(name: str, tmp_path: Path, umd: Command) -> None:
    case = build(name)
    model, given = case.model.eval(), inputs_of(name, case)
    file, results = tmp_path / "m.umd", tmp_path / "results"
    umd_torch.export(model, (), file, kwargs=given, dynamic={n: {0: "batch"} for n in given})
    for batch in BATCHES:
        inputs = {n: x.repeat(batch, *[1] * (x.dim() - 1))[:batch] for n, x in given.items()}
        options = []
        for n, x in inputs.items():
            np.save(tmp_path / f"{n}.npy", x.numpy())
            options += ["--input", f"{n}={tmp_path / n}.npy"]
        assert umd("run", str(file), *options, "--device", "sim:0", "--output", str(results)) == 0
        with torch.no_grad():
            wanted = model(**inputs)
        label, wanted = ("output", wanted) if isinstance(wanted, Tensor) else ("logits", wanted.logits)
        np.testing.assert_allclose(np.load(results / f"{label}.npy"), wanted.numpy(), rtol=1e-4, atol=1e-5)


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


class Applied(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def picked(x: Tensor) -> Tensor:
    """Returns an element of each row; every place is checked against the number of rows."""
    rows = torch.arange(x.shape[0])
    return x[rows, rows % 4]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.var(0),
        lambda x: x / x.shape[0],
        lambda x: (x * 10).clamp(max=x.shape[0]),
        lambda x: torch.arange(x.shape[0]) / x.shape[0],
        lambda x: x.half() * x.shape[0],
        picked,
    ],
    ids=["variance", "quotient", "clamp", "arange", "half", "index"],
)
def test_an_open_size_among_the_numbers(function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    axes, ranges = {"x": {0: "batch"}}, {"batch": (2, 32)}
    umd_torch.export(Applied(function), (torch.randn(4, 4),), tmp_path / "m", dynamic=axes, ranges=ranges)
    with Session(load(tmp_path / "m"), "sim:0") as session:
        for batch in (2, 4, 7, 32):
            x = torch.randn(batch, 4)
            found = session.run({"x": x.numpy()})["output"]
            np.testing.assert_allclose(found, function(x).numpy(), rtol=1e-3 if found.itemsize == 2 else 1e-5)


@pytest.mark.parametrize(
    ("function", "base"),
    [
        (lambda x: torch.full((2,), x.shape[0] // 8), 8),
        (lambda x: torch.full((2,), x.shape[0] % 8), 1024),
        (lambda x: torch.full((2,), max(x.shape[0], 3)), 8),
        (lambda x: x * (1 / x.shape[0]), 4),
    ],
    ids=["floor", "remainder", "maximum", "fraction"],
)
def test_an_open_size_that_enters_otherwise_is_refused(
    function: Callable[[Tensor], Tensor], base: int, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="fixed"):
        umd_torch.export(Applied(function), (torch.randn(base, 4),), tmp_path / "m", dynamic={"x": {0: "batch"}})


def test_open_sizes_cost_no_ops(tmp_path: Path) -> None:
    case = build("gpt2")
    given = inputs_of("gpt2", case)
    fixed = umd_torch.export(case.model.eval(), (), tmp_path / "m", kwargs=given)
    open_batch = umd_torch.export(case.model, (), tmp_path / "m", kwargs=given, dynamic={"input_ids": {0: "batch"}})
    ranges = [node.op for node in open_batch.graph.nodes].count("Range")  # a constant where sizes are fixed
    assert len(open_batch.graph.nodes) == len(fixed.graph.nodes) + ranges


Axes = Mapping[str, Mapping[int, Any]]


@pytest.mark.parametrize(
    ("kind", "name", "least", "most"),
    [
        (Dim("rows"), "rows", 1, 1 << 31),
        (Dim("rows", min=3, max=8), "rows", 3, 8),
        (Dim.DYNAMIC, "x_0", 2, 1 << 31),
        (Dim.DYNAMIC(min=3, max=8), "x_0", 3, 8),
        (Dim.AUTO, "x_0", 2, 1 << 31),
    ],
    ids=["dim", "dim_with_range", "dynamic", "dynamic_with_range", "auto"],
)
def test_torch_s_own_ways_to_name_a_size(kind: Any, name: str, least: int, most: int, tmp_path: Path) -> None:
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    made = umd_torch.export(model, (x,), tmp_path / "m", dynamic={"input": {0: kind, 1: Dim.STATIC}}).sizes.sizes
    assert [(size.name.replace("input", "x"), size.base, size.least, size.most) for size in made] == [
        (name, 5, least, most)
    ]
    rows = torch.randn(least, 4)
    with Session(load(tmp_path / "m"), "sim:0") as session:
        found = session.run({"input": rows.numpy()})["output"]
        np.testing.assert_allclose(found, model(rows).detach().numpy(), rtol=1e-5, atol=1e-6)
        with pytest.raises(LimitError):
            session.run({"input": np.zeros((least - 1, 4), np.float32)})


def test_what_torch_fixes(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    made = umd_torch.export(model, (x,), tmp_path / "m", dynamic={"input": {0: Dim.AUTO, 1: Dim.AUTO}})
    assert [size.name for size in made.sizes.sizes] == ["input_0"]
    for kind in (Dim.DYNAMIC, Dim("columns"), "columns"):
        with pytest.raises(UnsupportedError, match="specialized it to be a constant"):
            umd_torch.export(model, (x,), tmp_path / "m", dynamic={"input": {1: kind}})


@pytest.mark.parametrize(
    ("axes", "ranges", "message"),
    [
        ({"y": {0: "batch"}}, {}, "no input y"),
        ({"input": {0: 2 * Dim("batch")}}, {}, "no formula"),
        ({"input": {0: 7}}, {}, "axis 0 of input is 7"),
        ({"input": {0: "my batch"}}, {}, "my batch"),
        ({"input": {2: "batch"}}, {}, "an axis from 0 to 1"),
        ({"input": {0: "batch"}}, {"rows": (1, 2)}, "no open size 'rows'.*one of batch"),
        ({"input": {0: Dim("batch", max=4)}}, {"batch": (5, 9)}, "at least 5 and at most 4"),
        ({"input": {0: Dim("batch", max=4)}}, {}, "'batch' is 5 in the example.*between 1 and 4"),
    ],
    ids=["input", "formula", "number", "identifier", "axis", "unknown_range", "empty_range", "example"],
)
def test_axes_that_make_no_sense(axes: Axes, ranges: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(AttributeValueError, match=message):
        umd_torch.export(nn.Linear(4, 3), (torch.randn(5, 4),), tmp_path / "m", dynamic=axes, ranges=ranges)


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
    with pytest.raises(UnsupportedError, match="depends on what a tensor holds"):
        umd_torch.export(Applied(torch.cov), (x,), tmp_path / "m")
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
