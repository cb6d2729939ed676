"""Narrow and wide floats: autocast to bfloat16, models in float16, bfloat16 and float64, beside torch's own."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.torch.zoo import Case, build
from umd_torch import counters, train_step

STEPS, RATE = 8, 3e-3
Context = Callable[[], contextlib.AbstractContextManager[Any]]


def to_bfloat16() -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def compiled(model: nn.Module) -> Callable[..., Any]:
    return torch.compile(model, backend="umd", options={"device": "sim:0", "strict": True})


def losses(case: Case, model: nn.Module, called: Callable[..., Any], context: Context, rate: float) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with context():
            loss = case.loss(case.results(called))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def plain(result: Any) -> torch.Tensor:
    found: torch.Tensor = result if isinstance(result, torch.Tensor) else result.logits
    return found.detach()


def slack(dtype: torch.dtype) -> float:
    """Returns the relative error that is nobody's fault; in float64 torch itself counts as exact."""
    return torch.finfo(dtype).eps * (64 if dtype is torch.float64 else 1)


def as_good(found: torch.Tensor, wanted: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> bool:
    """Returns whether a result is as near to float64's as torch's own is, give or take what rounding twice makes."""
    ours, theirs = ((x.double() - exact).abs().max() for x in (found, wanted))
    return bool(ours <= 3 * theirs + slack(dtype) * exact.abs().max())


@pytest.mark.parametrize(("name", "rate"), [("gpt", RATE), ("cnn", RATE), ("mlp", 0.02)])
def test_autocast_trains_as_torch_does(name: str, rate: float) -> None:
    runs = []
    for ours in (True, False):
        case = build(name)
        model = case.model.train()
        runs.append(losses(case, model, compiled(model) if ours else model, to_bfloat16, rate))
    assert runs[0] == pytest.approx(runs[1], rel=0.02, abs=2e-3)
    assert runs[0][-1] < 0.6 * runs[0][0]
    assert not counters.fallbacks


def test_results_of_autocast_have_torch_s_types() -> None:
    case = build("gpt")
    exact = case.results(copy.deepcopy(case.model).double()).detach()
    with to_bfloat16(), torch.no_grad():
        found, wanted = case.results(compiled(case.model)), case.results(case.model)
    assert found.dtype is wanted.dtype is torch.bfloat16
    assert as_good(found, wanted, exact, torch.bfloat16)


def test_whole_steps_under_autocast() -> None:
    case = build("gpt")
    model, reference = case.model, copy.deepcopy(case.model)
    ids = case.arguments[0]

    def loss(y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(y.flatten(0, 1), wanted.flatten())

    step = train_step(model, loss, torch.optim.AdamW(model.parameters(), RATE), device="sim:0")
    optimizer = torch.optim.AdamW(reference.parameters(), RATE)
    for number in range(4):
        with to_bfloat16():
            found, wanted = step(ids, ids), loss(reference(ids), ids)
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
        assert found.item() == pytest.approx(wanted.item(), rel=0.02 if not number else 0.1)
    assert counters.programs == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "lstm", "vit"])
def test_models_of_other_types(name: str, dtype: torch.dtype) -> None:
    case = build(name)
    model = case.model.to(dtype)
    arguments = tuple(a.to(dtype) if a.is_floating_point() else a for a in case.arguments)
    case = dataclasses.replace(case, model=model, arguments=arguments)
    reference, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    wide = dataclasses.replace(case, arguments=tuple(a.double() if a.is_floating_point() else a for a in arguments))
    results = case.results(compiled(model)), case.results(reference), wide.results(exact)
    assert plain(results[0]).dtype is dtype
    found, wanted, truth = map(plain, results)
    assert as_good(found, wanted, truth, dtype)
    for result in results:
        case.loss(result).backward()
    largest = max(float(p.grad.abs().max()) for p in exact.parameters() if p.grad is not None)
    for (label, mine), theirs, right in zip(
        model.named_parameters(), reference.parameters(), exact.parameters(), strict=True
    ):
        gradients = [p.grad for p in (mine, theirs, right) if p.grad is not None]
        assert len(gradients) == 3, label
        assert gradients[0].dtype is dtype
        ours, torch_s = (float((g.double() - gradients[2]).abs().max()) for g in gradients[:2])
        assert ours <= 3 * torch_s + slack(dtype) * largest, label
