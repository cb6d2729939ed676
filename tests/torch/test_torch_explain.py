"""umd_torch.explain: what would run where, and that nothing runs. DataLoader's processes beside an open device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from umd_core.device import Device
from umd_core.errors import UnsupportedError
from umd_torch import Explanation, FallbackWarning, counters, explain, session
from umd_torch.digits import Net


@pytest.fixture
def untouched(plain: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device that fails the test if anything is asked of it."""

    def touched(*_: Any, **__: Any) -> Any:
        raise AssertionError("the device was used")

    device: Device = session._SESSIONS[plain].device
    for name in ("load", "submit", "write", "read", "allocate"):
        monkeypatch.setattr(device, name, touched)
    return plain


def test_inference_as_it_is_then_run(untouched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net().eval(), torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        found = explain(model, x, device=untouched)
        monkeypatch.undo()
        (graph,) = found.graphs
        call = torch.compile(model, backend="umd", options={"device": "sim:0", "strict": True})
        call(x)
    assert (graph.kind, graph.programs, graph.fallbacks, found.recompiles) == ("inference", 1, (), 0)
    assert graph.ops["Conv"] == graph.kernels["conv_kernel"] == 2
    assert graph.parameters == sum(4 * p.numel() for p in model.parameters())
    assert (graph.bytes_up, graph.bytes_down) == (4 * 64 * 4, 4 * 10 * 4)
    assert graph.arena > 0


def test_the_prediction_is_what_a_call_sends(plain: str) -> None:
    model, x = Net().eval(), torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        (graph,) = explain(model, x, device=plain).graphs
        counters.reset()
        torch.compile(model, backend="umd", options={"device": plain, "strict": True})(x)
    assert counters.bytes_down == graph.bytes_down
    assert abs(counters.bytes_up - graph.bytes_up - graph.parameters) < 64 * 8  # aligned
    assert counters.round_trips == graph.programs


def test_training_has_two_graphs_and_leaves_the_model_as_it_was(untouched: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(x), torch.tensor([0, 1, 1]))

    found = explain(loss, x, device=untouched)
    assert [graph.kind for graph in found.graphs] == ["forward", "backward"]
    assert found.graphs[1].bytes_up == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_fallbacks_and_graph_breaks_say_why_and_where(untouched: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.special.i1(x * 2) + 1
        torch._dynamo.graph_break()
        result: torch.Tensor = y.exp()
        return result

    found = explain(function, torch.randn(4), device=untouched)
    (fallback,) = found.fallbacks
    assert fallback.op == "aten.special_i1.default"
    assert "test_torch_explain.py" in fallback.source
    assert sum(found.breaks.values()) == 1
    text = str(found)
    assert "2 graphs for plain:0, 1 nodes on the CPU, 1 graph breaks" in text
    assert "on the CPU: aten.special_i1.default" in text
    assert "exp" in text
    assert not counters.fallbacks
    assert "<pre>2 graphs" in found._repr_html_()
    assert "&#x27;" in Explanation("a'b")._repr_html_()
    torch._dynamo.reset()
    with pytest.warns(FallbackWarning, match="special_i1"):  # explaining did not use it up
        torch.compile(function, backend="umd", options={"device": "sim:0"})(torch.randn(4))


class Squares(Dataset[torch.Tensor]):
    """Squares, computed by each worker with plain torch."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)]) ** 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader_finish(start: str, plain: str) -> None:
    """Workers start while a device is open and a compiled model has run; none may wait for a lock of ours."""
    model = nn.Linear(1, 1)
    call = torch.compile(model, backend="umd", options={"device": plain, "strict": True})
    call(torch.ones(2, 1))
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=start)
    seen = []
    for batch in loader:
        torch.testing.assert_close(call(batch), model(batch), rtol=1e-5, atol=1e-5)
        seen += batch.flatten().tolist()
    assert seen == [float(i * i) for i in range(8)]


class Predictions(Dataset[torch.Tensor]):
    """What a model on a device makes of numbers, in a worker."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        found: torch.Tensor = self.call(torch.full((2, 1), float(index)))
        return found


@pytest.mark.timeout(60)
def test_a_forked_worker_that_uses_the_device_is_told(plain: str) -> None:
    call = torch.compile(nn.Linear(1, 1), backend="umd", options={"device": plain, "strict": True})
    with torch.no_grad():
        call(torch.ones(2, 1))
    loader = DataLoader(Predictions(call), num_workers=1, multiprocessing_context="fork")
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"before this process was forked.*spawn"):
        next(iter(loader))
