"""torch.compile over tensors of the eager device: checkpoints, which device, and what `explain` says."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import umd_torch
from tests.torch.test_eager_compiled import DEVICE, compiled
from umd_core.errors import UnsupportedError
from umd_torch import counters, explain
from umd_torch.eager import options

pytestmark = pytest.mark.filterwarnings("ignore")  # of what is meant to run on the CPU


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Forbids the CPU."""
    options.strict = True
    yield
    options.strict = False


# what is computed again in backward


def _mask(gradient: Tensor) -> Tensor:
    return gradient != 0


def test_a_checkpoint_drops_the_same_elements_again() -> None:
    linear = nn.Linear(8, 64).to(DEVICE)
    layer = nn.Sequential(linear, nn.Dropout(0.5))
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(layer, x, use_reentrant=False)
        return result

    dropped: list[Tensor] = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        linear.bias.grad = None
        result = compiled(function)(x)
        result.sum().backward()
        kept = _mask(result.detach().cpu())
        assert 0.3 < kept.float().mean() < 0.7
        assert linear.bias.grad is not None
        assert_close(linear.bias.grad.cpu(), 2 * kept.sum(0).float())
        dropped.append(kept)
    assert torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped[0], dropped[2])


def test_a_checkpoint_that_runs_op_by_op_drops_the_same_again() -> None:
    options.strict = False
    x = torch.ones(200, device=DEVICE, requires_grad=True)

    def inner(x: Tensor) -> Any:
        return torch.special.i1(functional.dropout(x, 0.5))

    call = torch.compile(lambda x: checkpoint(inner, x, use_reentrant=False), backend="umd")
    result = call(x)
    result.sum().backward()
    assert x.grad is not None
    kept = _mask(result.detach().cpu())
    assert 0.3 < kept.float().mean() < 0.7
    both = torch.full((200,), 2.0, requires_grad=True)  # dropout has doubled what it kept
    torch.special.i1(both).sum().backward()
    assert both.grad is not None
    assert_close(x.grad.cpu()[kept], 2 * both.grad[kept])
    assert not x.grad.cpu()[~kept].any()


class _Unlowered(torch.autograd.Function):
    """The identity, whose gradient comes through an op that is not lowered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.special.i0(gradients[0] * 0) * gradients[0]


def test_a_backward_that_cannot_draw_the_same_again_is_refused() -> None:
    options.strict = False
    x = torch.ones(20, device=DEVICE, requires_grad=True)

    def inner(x: Tensor) -> Any:
        return functional.dropout(x.sin(), 0.5)

    through: Any = _Unlowered.apply  # torch leaves it untyped
    call = torch.compile(lambda x: through(checkpoint(inner, x, use_reentrant=False)), backend="umd")
    with pytest.raises(UnsupportedError, match="there is no lowering for it"):
        call(x).sum().backward()


# which device


def test_another_device_than_the_tensors_is_refused() -> None:
    x = torch.ones(3, device=DEVICE)

    def on_device(name: str) -> Any:
        torch._dynamo.reset()
        return torch.compile(lambda v: v * 2, backend="umd", options={"device": name})(x)

    assert on_device("sim:0").tolist() == [2, 2, 2]
    assert on_device("mine:0, sim:0").tolist() == [2, 2, 2]
    for name in ("cuda-cpu:0", "grpc://127.0.0.1:1/sim:0"):
        with pytest.raises(BackendCompilerFailed, match=re.escape(f"{name!r} is another device than sim:0")):
            on_device(name)


def test_no_other_device_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMD_DEVICE", "grpc://127.0.0.1:1/sim:0")
    x = torch.ones(3, device=DEVICE)
    assert compiled(lambda v: v * 2 + torch.ones(3, device="umd"))(x).tolist() == [3, 3, 3]
    with torch.no_grad():
        assert explain(lambda v: v * 2, x).device == "sim:0"


def test_tensors_of_several_devices_are_no_program() -> None:
    other = umd_torch.connect("cuda-cpu:0")
    here, away = torch.ones(3, device=DEVICE), torch.ones(3, device=other)

    def function(here: Tensor, away: Tensor) -> Tensor:
        return here * 2 + (away * 3).to(here.device)

    with pytest.raises(BackendCompilerFailed, match="tensors of several devices"):
        compiled(function)(here, away)
    torch._dynamo.reset()
    assert torch.compile(function, backend="umd")(here, away).tolist() == [5, 5, 5]


# explain


def test_explain_of_a_model_on_the_device() -> None:
    theirs = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    ours, there_ = copy.deepcopy(theirs).to(DEVICE), x.to(DEVICE)
    with torch.no_grad():
        (found,) = explain(ours, there_).graphs
        (wanted,) = explain(theirs, x, device="sim:0").graphs
    assert (found.kind, found.ops, found.kernels, found.fused) == (
        "inference",
        wanted.ops,
        wanted.kernels,
        wanted.fused,
    )
    assert (found.arena, found.parameters) == (wanted.arena, wanted.parameters)
    assert (found.bytes_up, found.bytes_down, found.programs, found.op_by_op) == (0, 0, 1, "")
    explained = explain(ours, there_)
    assert [graph.kind for graph in explained.graphs] == ["forward", "backward"]
    assert explained.device == "sim:0"
    assert "a call sends 0 bytes and reads 0, in 0 round trips" in str(explained)
    with pytest.raises(BackendCompilerFailed, match="'cuda-cpu:0' is another device than sim:0"):
        explain(ours, there_, device="cuda-cpu:0")


def test_explain_loads_and_runs_nothing_of_the_graph() -> None:
    x = torch.ones(3, device=DEVICE)
    (x * 1).zero_()  # the programs that put zeros there are known
    counters.reset()
    found = explain(lambda v: v.sin().cos() * v, x)
    assert (found.graphs[0].programs, counters.programs) == (1, 0)


def test_explain_says_what_comes_from_the_cpu_and_goes_there() -> None:
    def function(x: Tensor, n: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * n + v.to(x.device), x.cpu() + n

    (graph,) = explain(function, torch.ones(3, device=DEVICE), torch.ones(()), torch.ones(3)).graphs
    assert (graph.bytes_up, graph.bytes_down) == (4 + 12, 12)


def test_explain_of_what_runs_op_by_op() -> None:
    options.strict = False
    found = explain(lambda v: torch.linalg.eigvalsh(v * 2) + 1, torch.eye(2, device=DEVICE))
    (graph,) = found.graphs
    assert graph.ops == {"Mul": 1, "Add": 1}
    assert [fallback.op for fallback in found.fallbacks] == ["aten._linalg_eigh.default"]
    assert graph.op_by_op == found.fallbacks[0].reason
    assert "2 ops on the device, each alone (there is no lowering for it)" in str(found)
