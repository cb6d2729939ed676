"""Torch's optimizers: their step compiled, and as part of a whole training step, beside torch's own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

from umd_core.errors import UnsupportedError
from umd_torch import counters, train_step

Make = Callable[..., optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p, **o: optim.SGD(p, 0.05, **o),
    "momentum": lambda p, **o: optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01, **o),
    "nesterov": lambda p, **o: optim.SGD(p, 0.05, momentum=0.9, nesterov=True, **o),
    "adam": lambda p, **o: optim.Adam(p, 0.01, **o),
    "amsgrad": lambda p, **o: optim.Adam(p, 0.01, amsgrad=True, **o),
    "adamw": lambda p, **o: optim.AdamW(p, 0.01, weight_decay=0.1, **o),
    "rmsprop": lambda p, **o: optim.RMSprop(p, 0.002, **o),
    "centered": lambda p, **o: optim.RMSprop(p, 0.002, momentum=0.9, centered=True, weight_decay=0.01, **o),
    "adagrad": lambda p, **o: optim.Adagrad(p, 0.05, lr_decay=0.1, initial_accumulator_value=0.1, **o),
    "adadelta": lambda p, **o: optim.Adadelta(p, 0.5, **o),
    "nadam": lambda p, **o: optim.NAdam(p, 0.01, **o),
    "radam": lambda p, **o: optim.RAdam(p, 0.01, **o),
    "adamax": lambda p, **o: optim.Adamax(p, 0.01, maximize=True, **o),
    "asgd": lambda p, **o: optim.ASGD(p, 0.05, t0=3, **o),
    "rprop": lambda p, **o: optim.Rprop(p, 0.01, **o),
}
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's, of itself
STEPS = 8  # RAdam's formula changes at the sixth
COMPILED = {"radam": 5e-5}
"""Tolerances of compiled steps. Compiled, torch counts steps in float32; RAdam subtracts large numbers made of it."""


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3)).to(dtype)


def batch(dtype: torch.dtype = torch.float32, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 5, dtype=dtype), torch.randint(0, 3, (rows,))


def gradients(
    model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], clip_norm: float | None = None
) -> torch.Tensor:
    model.zero_grad()
    loss = functional.cross_entropy(model(data[0]), data[1])
    loss.backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    return loss.detach()


def close(model: nn.Module, reference: nn.Module, tolerance: float = 3e-6) -> None:
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("foreach", [False, True], ids=["each", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step(name: str, foreach: bool) -> None:
    model = network()
    reference = copy.deepcopy(model)
    mine, theirs = (OPTIMIZERS[name](m.parameters(), foreach=foreach) for m in (model, reference))
    step = torch.compile(mine.step, backend="umd", options={"device": "sim:0", "strict": True})
    for _ in range(STEPS):
        data = batch()
        gradients(model, data), gradients(reference, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of its own profiling
            step()
        theirs.step()
    close(model, reference, COMPILED.get(name, 3e-6))
    assert not counters.fallbacks


def test_a_compiled_step_whose_learning_rate_is_a_tensor() -> None:
    model = network()
    reference = copy.deepcopy(model)
    rate = torch.tensor(0.01)
    mine, theirs = optim.AdamW(model.parameters(), rate), optim.AdamW(reference.parameters(), 0.01)
    step = torch.compile(mine.step, backend="umd", options={"device": "sim:0", "strict": True})
    for number in range(4):
        data = batch()
        gradients(model, data), gradients(reference, data)
        rate.fill_(0.01 / (1 + number))
        theirs.param_groups[0]["lr"] = 0.01 / (1 + number)
        step(), theirs.step()
        if not number:
            counters.reset()
    assert counters.programs == 0
    close(model, reference)


def assert_same_state(mine: optim.Optimizer, theirs: optim.Optimizer, tolerance: float) -> None:
    parameters = zip(mine.param_groups, theirs.param_groups, strict=True)
    for a, b in [pair for m, t in parameters for pair in zip(m["params"], t["params"], strict=True)]:
        wanted = {name: value for name, value in theirs.state[b].items() if value is not None}
        assert {name for name, value in mine.state[a].items() if value is not None} == wanted.keys()
        for name, value in wanted.items():
            found = mine.state[a][name]
            assert found.dtype == value.dtype
            torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_step(name: str, dtype: torch.dtype, plain: str) -> None:
    model = network(dtype)
    reference = copy.deepcopy(model)
    mine, theirs = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](reference.parameters())
    step = train_step(model, functional.cross_entropy, mine, device=plain)
    for number in range(STEPS):
        data = batch(dtype)
        torch.testing.assert_close(step(*data), gradients(reference, data), rtol=1e-5, atol=1e-6)
        theirs.step()
        for optimizer in (mine, theirs):
            optimizer.param_groups[0]["lr"] *= 0.9
        if not number:
            counters.reset()
    assert (counters.programs, counters.round_trips, counters.submissions) == (0, STEPS - 1, STEPS - 1)
    step.sync()
    tolerance = 1e-5 if dtype is torch.float32 else 1e-7 if name == "asgd" else 1e-9
    close(model, reference, tolerance)
    assert_same_state(mine, theirs, 10 * tolerance)
    gradients(model, data), gradients(reference, data)
    mine.step(), theirs.step()  # torch goes on from what came back
    close(model, reference, tolerance)


@pytest.mark.parametrize("name", ["adagrad", "nadam", "rprop", "amsgrad"])
def test_whole_steps_go_on_from_torch_s_state(name: str) -> None:
    model = network()
    reference = copy.deepcopy(model)
    mine, theirs = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](reference.parameters())
    for _ in range(3):
        data = batch()
        gradients(model, data), gradients(reference, data)
        mine.step(), theirs.step()
    step = train_step(model, functional.cross_entropy, mine, device="sim:0")
    for _ in range(3):
        data = batch()
        torch.testing.assert_close(step(*data), gradients(reference, data), rtol=1e-5, atol=1e-6)
        theirs.step()
    step.sync()
    close(model, reference)
    assert_same_state(mine, theirs, 1e-4)


def test_groups_schedules_and_clipped_gradients() -> None:
    model = network()
    reference = copy.deepcopy(model)

    def made(net: nn.Sequential) -> tuple[optim.Optimizer, optim.lr_scheduler.LRScheduler]:
        decayed: dict[str, Any] = {"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.1}
        plain: dict[str, Any] = {"params": [p for p in net.parameters() if p.dim() == 1], "lr": 0.02}
        optimizer = optim.NAdam([decayed, plain], 0.01)
        return optimizer, optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)

    (mine, ours), (theirs, schedule) = made(model), made(reference)
    step = train_step(model, functional.cross_entropy, mine, clip_norm=0.1, device="sim:0")
    for _ in range(5):
        data = batch()
        torch.testing.assert_close(step(*data), gradients(reference, data, 0.1), rtol=1e-5, atol=1e-6)
        theirs.step()
        ours.step()
        schedule.step()
    assert counters.programs == 1
    step.sync()
    close(model, reference)


def test_learning_rates_are_as_precise_as_torch_s() -> None:
    """0.1 in float32 is off by 1.5e-9."""
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(0.0)
    step = train_step(model, lambda y, _: y.sum(), optim.SGD(model.parameters(), lr=0.1), device="sim:0")
    step(torch.ones(1, 1, dtype=torch.float64), torch.zeros(()))
    step.sync()
    assert model.weight.item() == -0.1


class Vector(nn.Module):
    """A parameter whose gradient is the target."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(2000))

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.values


@pytest.mark.parametrize("rate", [1e-8, 3e-4, 1 / 3])
@pytest.mark.parametrize("taken", [0, 1, 999, (1 << 24) + 2])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_rates_and_counts_in_float32_cost_one_rounding_at_most(name: str, taken: int, rate: float) -> None:
    """Torch keeps lr and step in float64 up to its last factor; here they are rounded first. Both beside float64."""
    torch.manual_seed(5)
    model, gradient = Vector(), torch.randn(2000)
    settings: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {"weight_decay": 0.1}
    kinds = ("momentum_buffer",) if name == "SGD" else ("exp_avg", "exp_avg_sq")
    state = {kind: torch.rand(2000) for kind in kinds} if taken else {}
    counted = {} if name == "SGD" or not taken else {"step": torch.tensor(float(taken), dtype=torch.float64)}
    single, double = copy.deepcopy(model), copy.deepcopy(model).double()
    kept: list[tuple[Vector, Any]] = []
    for owner in (model, single, double):
        optimizer = getattr(optim, name)(owner.parameters(), lr=rate, **settings)
        (values,) = owner.parameters()
        if taken:
            optimizer.state[values] = {n: t.to(values.dtype).clone() for n, t in state.items()} | copy.deepcopy(counted)
        kept.append((owner, optimizer))
    before = double.values.detach().clone()
    for one, optimizer in kept[1:]:
        (one.values * gradient.to(one.values.dtype)).sum().backward()
        optimizer.step()
    step = train_step(model, lambda y, target: (y * target).sum(), kept[0][1], device="sim:0")
    step(gradient, gradient)
    step.sync()
    exact = double.values.detach()
    mine, theirs = ((owner.values.detach().double() - exact).abs() for owner in (model, single))
    one_rounding = 2**-24 * ((exact - before).abs() + exact.abs())
    assert (mine <= theirs.max() + one_rounding).all()


class Decides(optim.RMSprop):
    """An optimizer whose next step depends on what a tensor holds."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad.sum() > 0:
                parameter.sub_(parameter.grad)


def test_what_is_no_optimizer_of_this_kind() -> None:
    model = network()
    with pytest.raises(UnsupportedError, match="LBFGS"):
        train_step(model, functional.cross_entropy, optim.LBFGS(model.parameters()), device="sim:0")
    decides = train_step(model, functional.cross_entropy, Decides(model.parameters()), device="sim:0")
    with pytest.raises(UnsupportedError, match="Decides decides by numbers that only the device knows"):
        decides(*batch())
    hooked = optim.SGD(model.parameters(), 0.1)
    hooked.register_step_post_hook(lambda *_: None)
    with pytest.raises(UnsupportedError, match="hooks"):
        train_step(model, functional.cross_entropy, hooked, device="sim:0")
    dampened = optim.SGD(network(torch.float64).parameters(), 0.1, momentum=0.9, dampening=0.5)
    with pytest.raises(UnsupportedError, match="dampening"):
        train_step(network(torch.float64), functional.cross_entropy, dampened, device="sim:0")
