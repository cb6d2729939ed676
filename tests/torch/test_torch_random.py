"""Dropout and random tensors: reproducible under torch.manual_seed, others at each call, right in distribution."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from umd_torch import FallbackWarning, counters, train_step

STRICT: Any = {"device": "sim:0", "strict": True}
COUNT = 20_000
Function = Callable[[torch.Tensor], torch.Tensor]


def compiled(function: Any, device: str = "sim:0") -> Any:
    return torch.compile(function, backend="umd", options={"device": device, "strict": True})


DRAWS: dict[str, tuple[Function, float, float]] = {
    "rand": (lambda x: torch.rand(x.shape), 0.5, 1 / 12),
    "rand_like": (torch.rand_like, 0.5, 1 / 12),
    "uniform_": (lambda x: x.clone().uniform_(1, 4), 2.5, 9 / 12),
    "randn": (lambda x: torch.randn(x.shape), 0, 1),
    "randn_like": (torch.randn_like, 0, 1),
    "normal_": (lambda x: x.clone().normal_(1, 2), 1, 4),
    "normal of a size": (lambda x: torch.normal(3.0, 0.5, x.shape), 3, 0.25),
    "normal around a tensor": (lambda x: torch.normal(x + 1, 2.0), 1, 4),
    "normal by a tensor": (lambda x: torch.normal(-1.0, x + 2), -1, 4),
    "normal around and by": (lambda x: torch.normal(x, x + 1), 0, 1),
    "log_normal_": (lambda x: x.clone().log_normal_(0, 0.5), math.exp(1 / 8), (math.exp(1 / 4) - 1) * math.exp(1 / 4)),
    "exponential_": (lambda x: x.clone().exponential_(2.0), 0.5, 0.25),
    "geometric_": (lambda x: x.clone().geometric_(0.25), 4, 12),
    "randint": (lambda x: torch.randint(10, x.shape), 4.5, 99 / 12),
    "randint from": (lambda x: torch.randint(-5, 5, x.shape), -0.5, 99 / 12),
    "randint_like": (lambda x: torch.randint_like(x, 10), 4.5, 99 / 12),
    "randint_like from": (lambda x: torch.randint_like(x, 5, 15), 9.5, 99 / 12),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.3), 0.3, 0.21),
    "bernoulli with": (lambda x: torch.bernoulli(x, 0.3), 0.3, 0.21),
    "bernoulli_": (lambda x: x.clone().bernoulli_(0.3), 0.3, 0.21),
    "bernoulli_ by": (lambda x: x.clone().bernoulli_(x + 0.3), 0.3, 0.21),
    "dropout": (lambda x: functional.dropout(x + 1, 0.2), 1, 0.25),
    "dropout1d": (lambda x: functional.dropout1d((x + 1).reshape(1, -1, 1), 0.2), 1, 0.25),
    "dropout2d": (lambda x: functional.dropout2d((x + 1).reshape(1, -1, 1, 1), 0.5), 1, 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_reproducible_and_right_in_mean_and_variance(name: str) -> None:
    function, mean, variance = DRAWS[name]
    draw, x = compiled(function), torch.zeros(COUNT)
    torch.manual_seed(5)
    first, second = draw(x), draw(x)
    torch.manual_seed(5)
    assert torch.equal(draw(x), first)
    assert torch.equal(draw(x), second)
    assert not torch.equal(first, second)
    assert (first.dtype, first.shape) == (function(x).dtype, function(x).shape)
    values = first.double()
    assert abs(values.mean() - mean) < 5 * math.sqrt(variance / COUNT)
    assert abs(values.var() - variance) < 0.1 * variance
    assert not counters.fallbacks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_element_types(dtype: torch.dtype) -> None:
    draw = compiled(lambda x: (torch.rand_like(x), torch.randn_like(x), functional.dropout(x + 1, 0.5)))
    uniform, normal, dropped = draw(torch.zeros(COUNT, dtype=dtype))
    assert uniform.dtype == normal.dtype == dropped.dtype == dtype
    assert 0 <= uniform.min() <= uniform.max() < 1
    assert abs(uniform.double().mean() - 0.5) < 0.01
    assert abs(normal.double().std() - 1) < 0.03
    assert set(dropped.tolist()) == {0.0, 2.0}


def test_a_permutation_holds_every_number_once() -> None:
    draw = compiled(lambda x: torch.randperm(x.shape[0]))
    first, second = draw(torch.zeros(500)), draw(torch.zeros(500))
    assert first.sort().values.tolist() == list(range(500))
    assert not torch.equal(first, second)


def test_every_op_of_a_graph_draws_for_itself() -> None:
    a, b = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)))(torch.zeros(100))
    assert not torch.equal(a, b)
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.3


def test_the_state_of_the_generator_is_what_counts() -> None:
    draw, x = compiled(torch.rand_like), torch.zeros(10)
    with torch.random.fork_rng(devices=[]):
        first = draw(x)
    assert torch.equal(draw(x), first)
    state = torch.get_rng_state()
    second = draw(x)
    torch.set_rng_state(state)
    assert torch.equal(draw(x), second)
    assert not torch.equal(first, second)


def test_a_new_seed_makes_no_new_program(plain: str) -> None:
    draw, x = compiled(lambda x: functional.dropout(x, 0.5), plain), torch.ones(100)
    draw(x)
    programs = counters.programs
    counters.reset()
    results = {tuple(draw(x).tolist()) for _ in range(5)}
    assert len(results) == 5
    assert (programs, counters.programs, counters.uploads) == (1, 0, 0)
    assert (counters.submissions, counters.round_trips) == (5, 5)


def test_sizes_that_change() -> None:
    draw = torch.compile(lambda x: functional.dropout(x, 0.5), backend="umd", options=STRICT, dynamic=True)
    for count in (10, 20, 30):
        torch.manual_seed(1)
        kept = draw(torch.ones(count))
        torch.manual_seed(1)
        assert torch.equal(kept, draw(torch.ones(30))[:count])


# gradients


def test_backward_uses_the_mask_of_forward(plain: str) -> None:
    dropout = compiled(lambda x: functional.dropout(x, 0.25), plain)
    x = torch.randn(40, 50, requires_grad=True)
    for _ in range(2):
        y = dropout(x)
        (gradient,) = torch.autograd.grad(y, x, torch.full_like(y, 3.0))
        torch.testing.assert_close(gradient, torch.where(y == 0, 0.0, 4.0))
        assert 0.6 < (y != 0).float().mean() < 0.9


def test_attention_with_dropout() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, torch.eye(64).expand(2, 3, 64, 64), dropout_p=0.5)

    x = torch.randn(2, 3, 64, 64)
    plain = functional.scaled_dot_product_attention(x, x, torch.eye(64).expand(2, 3, 64, 64))
    dropped = compiled(attend)(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * plain[kept], rtol=1e-4, atol=1e-5)
    assert abs(kept.float().mean() - 0.5) < 0.02


def test_evaluation_leaves_everything() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9), nn.LSTM(4, 3, 2, dropout=0.5)).eval()
    x = torch.randn(5, 4)
    state = torch.get_rng_state()
    torch.testing.assert_close(compiled(model)(x)[0], model(x)[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_recurrent_layer_with_dropout_trains() -> None:
    layer = nn.LSTM(4, 6, 2, dropout=0.5)
    run, x = compiled(layer), torch.randn(5, 3, 4)
    gradients = []
    for _ in range(2):
        torch.manual_seed(3)
        run(x)[0].square().sum().backward()
        gradients.append([p.grad.clone() for p in layer.parameters() if p.grad is not None])
        layer.zero_grad()
    for first, again in zip(*gradients, strict=True):
        assert torch.equal(first, again)


def recomputing(block: Function) -> Function:
    """Returns the function with its activations computed again in backward."""
    again: Any = checkpoint
    return lambda x: again(block, x, use_reentrant=False)


def test_what_is_recomputed_draws_the_same_again(plain: str) -> None:
    layer = nn.Linear(50, 50)

    def block(x: torch.Tensor) -> torch.Tensor:
        dropped: torch.Tensor = functional.dropout(layer(x), 0.5)
        return dropped * torch.randint(1, 4, (8, 50))

    run = compiled(recomputing(block), plain)
    seen = set()
    for _ in range(3):
        x = torch.randn(8, 50, requires_grad=True)
        y = run(x)
        (gradient,) = torch.autograd.grad(y.sum(), [layer.bias])
        torch.testing.assert_close(gradient, (y / layer(x)).sum(0), rtol=1e-3, atol=1e-3)
        seen.add(tuple(gradient.round().tolist()))
    assert len(seen) == 3


def test_what_is_recomputed_on_the_cpu_draws_the_same_again() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return x * torch.poisson(torch.full((20,), 9.0))

    def function(x: torch.Tensor) -> torch.Tensor:
        return recomputing(block)(x).sin()

    run: Any = torch.compile(function, backend="umd", options={"device": "sim:0"})
    x = torch.full((20,), 0.01, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        y = run(x)
        (gradient,) = torch.autograd.grad(y.sum(), [x])
    assert counters.fallbacks["run_and_save_rng_state"] == counters.fallbacks["run_with_rng_state"] == 1
    picked = torch.asin(y) / 0.01
    torch.testing.assert_close(gradient, picked * torch.cos(picked * 0.01), rtol=1e-3, atol=1e-3)


# whole steps


def dropping() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, train_step(model, functional.cross_entropy, optimizer, device="sim:0")


def test_whole_steps_with_dropout_are_reproducible_and_learn() -> None:
    x = torch.randn(64, 6)
    y = x[:, :3].argmax(1)
    runs = []
    for seed in (1, 1, 2):
        _, step = dropping()
        torch.manual_seed(seed)
        runs.append([float(step(x, y)) for _ in range(30)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert runs[0][-1] < 0.8 * runs[0][0]


def test_a_whole_step_drops_in_backward_what_it_dropped_in_forward() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(x * self.scale, 0.5)

    model = Scaled()
    scale = model.scale
    step = train_step(model, lambda out, y: (out * y).sum(), torch.optim.SGD([scale], lr=1.0), device="sim:0")
    x, y = torch.ones(1000), torch.ones(1000)
    for _ in range(3):
        before = scale.detach().clone()
        loss = step(x, y)
        step.sync()
        gradient = before - scale.detach()
        assert set(gradient.tolist()) == {0.0, 2.0}
        torch.testing.assert_close((gradient * before).sum(), loss, rtol=1e-4, atol=1e-3)


def test_another_generator_is_not_silently_replaced() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(x, generator=torch.Generator().manual_seed(3))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        run: Any = torch.compile(function, backend="umd", options={"device": "sim:0"})
        got = run(torch.full((50,), 0.5))
    assert torch.equal(got, function(torch.full((50,), 0.5)))
