"""torch.compile over tensors of the eager device and of the CPU together: what is the CPU's stays there; optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from tests.torch.test_eager_compiled import DEVICE, compare_gradients, compiled
from umd_torch import counters
from umd_torch.eager import options

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dynamo about what it leaves out of an optimizer's step


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Forbids the CPU."""
    options.strict = True
    yield
    options.strict = False


def test_a_counter_on_the_cpu_counts() -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        n += 1
        return x * n

    x, n = torch.randn(3), torch.zeros(())
    call = compiled(function)
    for step in range(1, 4):
        counters.reset()
        found = call(x.to(DEVICE), n)
        assert n.item() == step
        assert counters.round_trips == 0
        assert_close(found.cpu(), x * step)


def test_tensors_of_the_cpu_stay_there() -> None:
    def function(x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        v.mul_(2)
        return x + v.sum(), v * 3, v.to(x.device) * x, torch.ones(2) + 1

    x, ours, theirs = torch.randn(3), torch.arange(3.0), torch.arange(3.0)
    counters.reset()
    found, wanted = compiled(function)(x.to(DEVICE), ours), function(x, theirs)
    assert counters.round_trips == 0
    assert [y.device.type for y in found] == ["umd", "cpu", "umd", "cpu"]
    for mine, other in zip(found, wanted, strict=True):
        assert_close(mine.cpu(), other)
    assert torch.equal(ours, theirs)


def test_a_tensor_of_the_cpu_that_the_device_changes() -> None:
    def function(x: Tensor, v: Tensor) -> Tensor:
        v.copy_(x.sum(0))
        v += 1
        return x * 2

    x, ours, theirs = torch.randn(4, 3), torch.zeros(3), torch.zeros(3)
    assert_close(compiled(function)(x.to(DEVICE), ours).cpu(), function(x, theirs))
    assert_close(ours, theirs)


def test_what_is_returned_or_exchanged_is_as_it_was_before_the_change() -> None:
    def function(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        before = v.clone()
        old = v[1:].clone()
        v.copy_(w)
        w.copy_(before)
        return x * before.to(x.device), old

    x, ours, theirs = torch.randn(3), [torch.arange(3.0), torch.ones(3)], [torch.arange(3.0), torch.ones(3)]
    found, wanted = compiled(function)(x.to(DEVICE), *ours), function(x, *theirs)
    for mine, other in zip((*found, *ours), (*wanted, *theirs), strict=True):
        assert torch.equal(mine.cpu(), other)


def test_gradients_with_tensors_of_the_cpu_beside() -> None:
    def function(x: Tensor, scale: Tensor, n: Tensor) -> Tensor:
        n.add_(1)
        return (x.sin() * (scale * 2) * n).sum()

    x, scale = torch.randn(3), torch.tensor(1.5)
    inner, outer = x.to(DEVICE).requires_grad_(), x.clone().requires_grad_()
    ours, theirs = torch.zeros(()), torch.zeros(())
    for _ in range(2):
        compiled(function)(inner, scale, ours).backward()
        function(outer, scale, theirs).backward()
    compare_gradients([inner], [outer])
    assert ours == theirs == 2


def test_numbers_of_the_cpu_of_any_type_and_special_values() -> None:
    x = torch.randn(3)
    call = compiled(lambda x, n: torch.where(x > 0, n, x))
    for value in (0.0, -0.0, float("inf"), float("nan"), 0.1):
        for dtype in (torch.float32, torch.float64, torch.float16):
            n = torch.tensor(value, dtype=dtype)
            wanted = torch.where(x > 0, n, x)
            found = call(x.to(DEVICE), n).cpu()
            assert found.dtype == wanted.dtype
            assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))
            assert torch.equal(found.signbit(), wanted.signbit())
    count = torch.tensor(2**53 + 1)
    assert (
        compiled(lambda i, n: i + n)(torch.ones(2, dtype=torch.int64, device=DEVICE), count).tolist() == [2**53 + 2] * 2
    )


def test_random_numbers_on_the_cpu_are_drawn_once() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        drawn = torch.rand(50)
        return x * drawn.to(x.device), drawn

    call = compiled(function)
    torch.manual_seed(1)
    away, here = call(torch.ones(50, device=DEVICE))
    assert torch.equal(away.cpu(), here)
    torch.manual_seed(1)
    assert torch.equal(call(torch.ones(50, device=DEVICE))[1], here)
    assert not torch.equal(call(torch.ones(50, device=DEVICE))[1], here)


def test_sizes_of_the_cpu_s_tensors_that_vary() -> None:
    def function(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        v += v.shape[0]
        return x * v.sum() + torch.arange(v.shape[0]).sum(), v.repeat(2)

    call = compiled(function, dynamic=True)
    for size in (3, 5, 8):
        x, ours, theirs = torch.randn(2), torch.ones(size), torch.ones(size)
        found, wanted = call(x.to(DEVICE), ours), function(x, theirs)
        assert torch.equal(ours, theirs)
        for mine, other in zip(found, wanted, strict=True):
            assert_close(mine.cpu(), other)


def test_a_check_of_a_tensor_of_the_cpu() -> None:
    call = compiled(lambda x, p, y: x * functional.binary_cross_entropy(p, y))
    x, y = torch.ones(2), torch.tensor([1.0])
    wanted = x * functional.binary_cross_entropy(torch.tensor([0.25]), y)
    assert_close(call(x.to(DEVICE), torch.tensor([0.25]), y).cpu(), wanted)
    with pytest.raises(RuntimeError, match="should be between 0 and 1"):
        call(x.to(DEVICE), torch.tensor([1.5]), y)


def test_a_failing_program_changes_nothing_on_the_cpu() -> None:
    def function(x: Tensor, i: Tensor, n: Tensor) -> Tensor:
        n += 1
        return x[i] * n

    n = torch.zeros(())
    with pytest.raises(Exception, match="outside"):
        compiled(function)(torch.ones(3, device=DEVICE), torch.tensor([7], device=DEVICE), n)
    assert n == 0


# optimizers


def _steps(make: Callable[..., torch.optim.Optimizer], *, compile_after: int) -> None:
    """Takes six steps on the device, compiled from one of them on, beside torch."""
    theirs = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    ours = copy.deepcopy(theirs).to(DEVICE)
    mine, reference = make(ours.parameters()), make(theirs.parameters())
    update: Callable[[], Any] = mine.step
    for step in range(6):
        if step == compile_after:
            update = compiled(mine.step)
        x = torch.randn(3, 4)
        for model, optimizer, where in ((ours, mine, DEVICE), (theirs, reference, torch.device("cpu"))):
            optimizer.zero_grad()
            model(x.to(where)).square().sum().backward()
        update()
        reference.step()
        for found, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_close(found.cpu(), wanted, rtol=2e-5, atol=2e-6)
            assert mine.state[found].keys() == reference.state[wanted].keys()
            for key, value in reference.state[wanted].items():
                if isinstance(value, Tensor):
                    assert_close(mine.state[found][key].cpu(), value, rtol=2e-5, atol=2e-6)
                if key == "step":
                    assert value == step + 1
    assert not counters.fallbacks


STEPPED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, 0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adam-each": lambda p: torch.optim.Adam(p, 1e-2, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "adamw-each": lambda p: torch.optim.AdamW(p, 1e-2, foreach=False),
    "adamw-lists": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
    "adamw-tensor-rate": lambda p: torch.optim.AdamW(p, torch.tensor(1e-2)),
    "amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-2),
    "rmsprop-each": lambda p: torch.optim.RMSprop(p, 1e-2, foreach=False),
}


@pytest.mark.parametrize("name", STEPPED)
def test_compiled_optimizers(name: str) -> None:
    _steps(STEPPED[name], compile_after=0)


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw-each"])
def test_optimizers_that_were_in_use_before(name: str) -> None:
    _steps(STEPPED[name], compile_after=2)
