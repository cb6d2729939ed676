"""Layers that torch takes apart for the CPU alone, or not at all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import umd_torch
from umd_torch import counters

DEVICE = umd_torch.connect("sim:0")
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(5))


def compiled(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="umd", options={"device": "sim:0", "strict": True})


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("form", ["old", "new", "columns", "whole"])
def test_weight_norm(form: str) -> None:
    def made() -> nn.Module:
        torch.manual_seed(3)
        layer: Any = nn.ConvTranspose1d(4, 3, 2) if form == "columns" else nn.Linear(4, 3)
        norm: Any = nn.utils.weight_norm if form == "old" else nn.utils.parametrizations.weight_norm
        made: nn.Module = norm(layer, dim={"columns": 1, "whole": None}.get(form, 0))
        return made

    x = torch.randn(5, 4, 6) if form == "columns" else X
    model, other = made(), made()
    compiled(model)(x).square().mean().backward()
    other(x).square().mean().backward()
    for found, wanted in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)
    if form == "old":
        return  # its weight is a result of its parameters, which cannot move while there is one
    eager = made().to("umd")
    eager(x.to("umd")).square().mean().backward()
    for there, wanted in zip(eager.parameters(), other.parameters(), strict=True):
        assert there.grad is not None
        torch.testing.assert_close(there.grad.cpu(), wanted.grad)


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_cells_compiled_on_the_eager_device(cell: Callable[..., nn.Module]) -> None:
    model = cell(4, 4)
    there = copy.deepcopy(model).to("umd")
    call: Any = torch.compile(there, backend="umd", options={"strict": True})
    found, wanted = call(X.to("umd")), model(X)
    first, second = (y if isinstance(y, torch.Tensor) else y[0] * y[1] for y in (found, wanted))
    torch.testing.assert_close(first.cpu(), second)
    first.square().sum().backward()
    second.square().sum().backward()
    for mine, theirs in zip(there.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
    assert not counters.fallbacks
