"""Clean-up of graphs from torch: what becomes one launch, that numbers stay, and how it is switched off."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import umd_torch
from tests.torch.zoo import ZOO
from umd_core.commands import CommandBuffer, Dispatch
from umd_core.errors import AttributeValueError
from umd_core.kernels.chain import NAME as CHAIN
from umd_core.passes import DEFAULT
from umd_torch import explain, train_step

SIM = "sim:0"


def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Five elementwise ops in a row."""
    return torch.sigmoid(x * 2 + y) * torch.tanh(x - y)


def written_out(x: torch.Tensor) -> torch.Tensor:
    """Gelu and layer norm as older models write them, and views that undo each other."""
    y = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    z = y - y.mean(-1, keepdim=True)
    z = z / torch.sqrt((z**2).mean(-1, keepdim=True) + 1e-5)
    return z.t().t().reshape(-1).view(x.shape) * 1.5


def kernels(buffer: CommandBuffer) -> list[str]:
    return [buffer.kernels[c.kernel].row.name for c in buffer.commands if isinstance(c, Dispatch)]


def test_a_chain_is_one_launch_that_explain_names() -> None:
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    (graph,) = explain(gated, x, y, device=SIM).graphs
    assert graph.kernels == {CHAIN: 1}
    assert sum(graph.fused.values()) == 1
    assert graph.ops == {"Mul": 2, "Add": 1, "Sub": 1, "Sigmoid": 1, "Tanh": 1}
    (line,) = [line for line in graph.lines() if "several ops in one launch" in line]
    assert "Sigmoid" in line
    (plain,) = explain(gated, x, y, device=SIM, passes=()).graphs
    assert CHAIN not in plain.kernels
    assert not plain.fused
    assert plain.kernels.total() == 6
    assert plain.ops == graph.ops


@pytest.mark.parametrize(
    "passes",
    [None, (), ["elementwise_chain"], DEFAULT - {"elementwise_chain"}],
    ids=["unsaid", "none", "chains", "all but chains"],
)
def test_results_are_torch_s(passes: Any) -> None:
    given = {} if passes is None else {"passes": passes}
    options = {"device": SIM, "strict": True, **given}
    for function, inputs in ((gated, (torch.randn(4, 5), torch.randn(4, 5))), (written_out, (torch.randn(6, 7),))):
        torch._dynamo.reset()
        mine = [x.clone().requires_grad_() for x in inputs]
        theirs = [x.clone().requires_grad_() for x in inputs]
        call: Any = torch.compile(function, backend="umd", options=options)
        got, wanted = call(*mine), function(*theirs)
        torch.testing.assert_close(got, wanted)
        got.square().sum().backward()
        wanted.square().sum().backward()
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)


def test_what_is_written_out_is_found() -> None:
    with torch.no_grad():
        (graph,) = explain(written_out, torch.randn(6, 7), device=SIM).graphs
    assert graph.ops["Gelu"] == graph.ops["LayerNormalization"] == 1
    assert not {"Transpose", "Erf", "ReduceMean"} & graph.ops.keys()


def test_batch_norm_goes_into_weights_only_where_these_are_constants() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).eval()
    x = torch.randn(2, 3, 6, 6)
    weight = torch.randn(4, 3, 3, 3)

    def constant(x: torch.Tensor) -> torch.Tensor:
        kernel = torch.ones(4, 3, 3, 3)  # made while tracing: a part of the program
        return functional.conv2d(x, kernel) * 2

    def given_weight(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, weight) * 2

    with torch.no_grad():
        (given,) = explain(model, x, device=SIM).graphs
        assert given.ops["BatchNormalization"] == 1  # parameters may change at any time
        call: Any = torch.compile(constant, backend="umd", options={"device": SIM, "strict": True})
        torch.testing.assert_close(call(x), constant(x))
        twice: Any = torch.compile(given_weight, backend="umd", options={"device": SIM})
        torch.testing.assert_close(twice(x, weight), given_weight(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_no_further_from_the_exact_result(dtype: torch.dtype) -> None:
    """A chain rounds once; op by op, as torch does it, each op rounds."""
    x, y = torch.randn(400, 50).to(dtype), torch.randn(400, 50).to(dtype)
    exact = gated(x.double(), y.double())
    wanted = gated(x, y)
    call: Any = torch.compile(gated, backend="umd", options={"device": SIM, "strict": True})
    got = call(x, y)
    mine, theirs = ((found.double() - exact).abs() for found in (got, wanted))
    assert mine.mean() <= theirs.mean()
    assert mine.max() <= theirs.max()
    torch._dynamo.reset()
    options: dict[str, Any] = {"device": SIM, "passes": DEFAULT - {"elementwise_chain"}}
    exactly: Any = torch.compile(gated, backend="umd", options=options)
    assert (exactly(x, y) == wanted).float().mean() > 0.99  # but for the last digit of sigmoid and tanh


def test_whole_steps_are_fused_and_train_as_before() -> None:
    losses = []
    for passes in (DEFAULT, ()):
        torch.manual_seed(3)
        case = ZOO["gpt"]()
        model = copy.deepcopy(case.model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        (ids,) = case.arguments

        def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(y.flatten(0, 1), target.flatten())

        step = train_step(model, loss, optimizer, device=SIM, passes=passes)
        launched = kernels(step.program(ids, ids).command_buffer)
        assert (CHAIN in launched) == bool(passes)
        losses.append([step(ids, ids).item() for _ in range(4)])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
    assert losses[0][-1] < losses[0][0]


def test_compiled_graphs_on_the_eager_device_are_fused() -> None:
    there = umd_torch.connect(SIM)
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    call: Any = torch.compile(gated, backend="umd", options={"strict": True})
    torch.testing.assert_close(call(x.to(there), y.to(there)).cpu(), gated(x, y))


@pytest.mark.parametrize("passes", ["gelu", ["gelu", "gellu"], 3])
def test_passes_that_are_not_there_are_refused_before_anything_is_traced(passes: Any) -> None:
    with pytest.raises(AttributeValueError, match="passes") as caught:
        umd_torch.umd(None, (), options={"device": SIM, "passes": passes})  # type: ignore[arg-type]  # not looked at
    assert "passes" in str(caught.value)
    layer = nn.Linear(2, 2)
    if not isinstance(passes, int):
        with pytest.raises(AttributeValueError, match="passes"):
            train_step(layer, functional.mse_loss, torch.optim.SGD(layer.parameters()), device=SIM, passes=passes)
        with pytest.raises(AttributeValueError, match="passes"):
            explain(layer, torch.ones(1, 2), device=SIM, passes=passes)
