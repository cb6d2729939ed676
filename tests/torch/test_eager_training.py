"""Autograd, optimizers, autocast, transforms and random numbers on the eager device."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

import umd_torch
from umd_core.errors import DTypeError, IndexRangeError
from umd_torch import counters
from umd_torch.eager import options

DEVICE = umd_torch.connect("sim:0")
OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop"]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Forbids the CPU."""
    options.strict = True
    yield
    options.strict = False


class Failing(torch.autograd.Function):
    """Does in backward what it is told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.act = act
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.act(grad), None


def raising(error: BaseException) -> Callable[[Tensor], Tensor]:
    def act(_: Tensor) -> Tensor:
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (lambda g: torch.mm(g, torch.ones(7, 7, device="umd")), RuntimeError, "reduction dim"),
        (lambda g: g + torch.ones(3, 3), RuntimeError, "same device"),
        (lambda g: g.to(torch.complex64), DTypeError, "complex64"),
        (lambda g: g[torch.tensor([9], device="umd")], IndexRangeError, "9"),
        (lambda g: g.view(5), RuntimeError, "invalid for input of size 9"),
        (raising(ValueError("mine")), ValueError, "mine"),
        (raising(KeyboardInterrupt("stop")), KeyboardInterrupt, "stop"),
    ],
    ids=["shapes", "devices", "complex", "index", "view", "error", "interrupt"],
)
def test_an_exception_in_backward_reaches_the_user(
    act: Callable[[Tensor], Tensor], kind: type[BaseException], words: str
) -> None:
    x = torch.ones(3, 3, device="umd", requires_grad=True)
    with pytest.raises(kind, match=words):
        applied: Any = Failing.apply
        applied(x, act).sum().backward()
    (x * x).sum().backward()  # and the device works on
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), torch.full((3, 3), 2.0))


def test_gradients_are_torch_s() -> None:
    def gradients(device: str) -> list[Tensor]:
        torch.manual_seed(1)
        x, w = (torch.randn(4, 4).to(device).requires_grad_() for _ in range(2))
        y = x @ w
        y[1:] *= 2  # in place, on a view
        loss = functional.layer_norm(y.relu(), (4,)).square().mean() + x.t().exp().sum()
        first = torch.autograd.grad(loss, (x, w), create_graph=True)
        second = torch.autograd.grad(first[0].sum(), (x, w))
        return [*(g.detach().cpu() for g in first), *(g.cpu() for g in second)]

    for ours, theirs in zip(gradients("umd"), gradients("cpu"), strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, foreach: bool) -> None:
    ours = nn.Linear(3, 2)
    theirs = copy.deepcopy(ours)
    ours.to("umd")
    x = torch.randn(4, 3)
    pairs = [(ours, x.to("umd")), (theirs, x)]
    optimizers = [getattr(torch.optim, name)(m.parameters(), lr=1e-2, foreach=foreach) for m, _ in pairs]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers]
    for _ in range(3):
        for (model, batch), optimizer, schedule in zip(pairs, optimizers, schedules, strict=True):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            schedule.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)
    for _ in range(4):  # RAdam's rule changes with its sixth step
        optimizers[0].step()
    counters.reset()
    for _ in range(3):  # another rate, another count of steps: no other program
        optimizers[0].step()
        schedules[0].step()
    assert counters.programs == 0
    assert not counters.fallbacks


def test_autocast() -> None:
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    layer = nn.Linear(4, 4)
    wanted = [(a.bfloat16() @ b.bfloat16()).float(), layer.bfloat16()(a.bfloat16()).float().detach()]
    layer = layer.float().to("umd")
    with torch.autocast("umd", dtype=torch.bfloat16):
        product, applied = a.to("umd") @ b.to("umd"), layer(a.to("umd"))
        assert (product.dtype, applied.dtype, (product + 1).dtype) == (torch.bfloat16,) * 3
        assert functional.softmax(product, 0).dtype is torch.float32
        loss = functional.cross_entropy(applied, torch.zeros(4, dtype=torch.int64, device="umd"))
    assert loss.dtype is torch.float32
    loss.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32
    for found, right in zip((product, applied), wanted, strict=True):
        assert_close(found.detach().float().cpu(), right, rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, for jvp
def test_transforms() -> None:
    x = torch.randn(3, 4)

    def cubes(v: Tensor) -> Tensor:
        return (v**3).sum()

    for transform in (
        torch.func.grad(cubes),
        torch.func.vmap(torch.func.grad(cubes)),
        torch.func.vmap(lambda v: v @ v),
        torch.func.jacrev(lambda v: v.sum(0)),
        torch.func.hessian(lambda v: cubes(v[0])),
        lambda v: torch.func.jvp(cubes, (v,), (torch.ones_like(v),))[1],
    ):
        assert_close(transform(x.to("umd")).cpu(), transform(x))


def test_checkpoints_compute_again() -> None:
    x = torch.randn(4, device="umd", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda v: functional.dropout(v.tanh(), 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    kept = (y != 0).cpu()
    assert torch.equal((x.grad != 0).cpu(), kept)  # the same elements were dropped


DRAWS: dict[str, Callable[[], Tensor]] = {
    "randn": lambda: torch.randn(1000, device="umd"),
    "rand": lambda: torch.rand(1000, device="umd"),
    "randint": lambda: torch.randint(-5, 5, (1000,), device="umd"),
    "randperm": lambda: torch.randperm(1000, device="umd"),
    "random_": lambda: torch.empty(1000, dtype=torch.int64, device="umd").random_(),
    "random_from": lambda: torch.empty(1000, device="umd").random_(3, 9),
    "exponential_": lambda: torch.empty(1000, device="umd").exponential_(2.0),
    "geometric_": lambda: torch.empty(1000, device="umd").geometric_(0.3),
    "log_normal_": lambda: torch.empty(1000, device="umd").log_normal_(),
    "bernoulli_": lambda: torch.empty(1000, device="umd").bernoulli_(0.3),
    "bernoulli": lambda: torch.full((1000,), 0.3, device="umd").bernoulli(),
    "normal": lambda: torch.normal(torch.zeros(1000, device="umd"), 2.0),
    "dropout": lambda: functional.dropout(torch.ones(1000, device="umd"), 0.5),
    "initialised": lambda: nn.Linear(50, 20, device="umd").weight.detach(),
    "rand_like": lambda: torch.rand_like(torch.zeros(1000, device="umd")),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_follow_the_seed(name: str) -> None:
    draw = DRAWS[name]
    torch.manual_seed(7)
    first, second = draw().cpu(), draw().cpu()
    torch.manual_seed(7)
    assert torch.equal(draw().cpu(), first)
    assert not torch.equal(first, second)
    assert not counters.fallbacks


def test_random_numbers_are_distributed_as_asked() -> None:
    normal, uniform = torch.randn(20_000, device="umd"), torch.rand(20_000, device="umd")
    assert abs(normal.mean().item()) < 0.03
    assert abs(normal.std().item() - 1) < 0.03
    assert abs(uniform.mean().item() - 0.5) < 0.02
    assert (uniform.min().item() >= 0, uniform.max().item() < 1) == (True, True)
    whole = torch.randint(2, 5, (1000,), device="umd")
    assert whole.cpu().unique().tolist() == [2, 3, 4]
    assert sorted(torch.randperm(50, device="umd").tolist()) == list(range(50))


def _gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    result = function(x)
    weights = torch.arange(1.0, 1 + result.numel(), device=x.device).view(result.shape)
    return torch.autograd.grad((result * weights).sum(), x)[0]


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_gradients_of_interpolation(mode: str, spatial: int) -> None:
    x = torch.randn(2, 3, *(5, 4, 3)[:spatial])
    for how in ({"scale_factor": 2.0}, {"scale_factor": 1.7}, {"scale_factor": 0.6}, {"size": (7, 3, 5)[:spatial]}):
        resize = functools.partial(functional.interpolate, mode=mode, **how)
        assert_close(_gradient(resize, x.to("umd")).cpu(), _gradient(resize, x))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers(kind: Any, bias: bool) -> None:
    ours = kind(3, 4, 2, bias=bias, bidirectional=True)
    theirs = copy.deepcopy(ours)
    ours.to("umd")
    x = torch.randn(5, 2, 3)
    start = torch.randn(4, 2, 4)
    state = (start, start * 2) if kind is nn.LSTM else start
    there = tuple(s.to("umd") for s in state) if isinstance(state, tuple) else state.to("umd")
    found, wanted = ours(x.to("umd"), there)[0], theirs(x, state)[0]
    assert_close(found.cpu(), wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)


def test_batch_norm_changes_its_statistics_in_training_only() -> None:
    ours = nn.BatchNorm2d(3)
    theirs = copy.deepcopy(ours)
    ours.to("umd")
    x = torch.randn(4, 3, 5, 5)
    for training in (True, False):
        ours.train(training)
        theirs.train(training)
        assert_close(ours(x.to("umd")).cpu(), theirs(x))
        for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
            assert_close(a.cpu(), b)
    alone = nn.BatchNorm2d(3, track_running_stats=False)
    wanted = alone(x).detach()
    assert_close(alone.to("umd")(x.to("umd")).detach().cpu(), wanted)
