"""Running sums and products, sorting and topk beside torch, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

Check = Callable[..., None]
SIM: dict[str, Any] = {"device": "sim:0", "strict": True}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TYPES = (*FLOATS, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def numbers(data: st.DataObject, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns few different numbers, so that many are equal, and with axes in any order."""
    torch.manual_seed(data.draw(st.integers(0, 999)))
    x = torch.randint(0, 2 if dtype is torch.bool else 4, shape).to(dtype)
    return x.permute(data.draw(st.permutations(range(len(shape)))))


@settings(max_examples=25)
@given(data=st.data(), shape=shapes, dtype=st.sampled_from(TYPES), product=st.booleans())
def test_running_sums_and_products(
    data: st.DataObject, shape: list[int], dtype: torch.dtype, product: bool, same: Check
) -> None:
    x, dim = numbers(data, shape, dtype), data.draw(st.integers(-len(shape), len(shape) - 1))
    same(lambda v: v.cumprod(dim) if product else v.cumsum(dim), x)


def test_running_sums_in_another_type_of_nothing_and_of_one(same: Check) -> None:
    same(lambda x: (x.cumsum(0, dtype=torch.float64), x.cumprod(1, dtype=torch.int64)), torch.arange(6.0).view(2, 3))
    same(lambda x: (x.cumsum(0), x.cumsum(1), x.cumprod(1)), torch.empty(3, 0))
    same(lambda x: (x.cumsum(0), x.cumprod(-1)), torch.tensor(3.0))
    same(lambda x: x.cumsum(1), torch.tensor([[1.0, math.inf, 2, -math.inf, 3], [math.nan, 1, 2, 3, 4]]))


@settings(max_examples=25)
@given(data=st.data(), shape=shapes, dtype=st.sampled_from(TYPES), descending=st.booleans())
def test_sort(data: st.DataObject, shape: list[int], dtype: torch.dtype, descending: bool, same: Check) -> None:
    x, dim = numbers(data, shape, dtype), data.draw(st.integers(-len(shape), len(shape) - 1))
    same(lambda v: torch.sort(v, dim=dim, descending=descending, stable=True), x)
    same(lambda v: (v.sort(dim, descending).values, v.argsort(dim=dim, descending=descending, stable=True)), x)


@settings(max_examples=25)
@given(
    data=st.data(),
    shape=shapes,
    dtype=st.sampled_from([d for d in TYPES if d is not torch.bool]),
    largest=st.booleans(),
)
def test_topk(data: st.DataObject, shape: list[int], dtype: torch.dtype, largest: bool, same: Check) -> None:
    x, dim = numbers(data, shape, dtype), data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(0, x.shape[dim]))
    # which of equal elements torch takes is not defined: positions must lead to the same values
    same(lambda v: v.topk(k, dim, largest).values, x)
    same(lambda v: v.gather(dim, v.topk(k, dim, largest, sorted=True).indices), x)


def test_positions_of_different_elements(same: Check) -> None:
    x = torch.randperm(600).view(3, 200).float()
    same(lambda v: (v.topk(5), v.topk(7, 1, largest=False), v.sort(0), v.argsort(descending=True), v.msort()), x)


def test_order_of_missing_numbers_and_zeros(same: Check) -> None:
    x = torch.tensor([[math.nan, 1, -math.inf, math.inf, math.nan], [0.0, -0.0, 0.0, -1, -0.0]])
    same(lambda v: (v.sort(stable=True), v.sort(descending=True, stable=True)), x)
    same(lambda v: (v.topk(3).values, v.topk(4, largest=False).values), x)


def test_sorting_nothing_and_one(same: Check) -> None:
    same(lambda x: (x.sort(1), x.sort(0), x.topk(0), x.argsort()), torch.empty(3, 0))
    same(lambda x: (x.sort(), x.topk(1), x.argsort()), torch.tensor(2.5))


class Router(nn.Module):
    """Mixes the best two of four experts, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4), nn.Linear(6, 4 * 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = self.gate(x).softmax(-1).topk(2, -1)
        given = self.experts(x).view(-1, 4, 3).gather(1, chosen.unsqueeze(-1).expand(-1, -1, 3))
        result: torch.Tensor = (best.unsqueeze(-1) * given).sum(1)
        return result


TRAINED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumsum_of_products": lambda x: (x.cumsum(0) * x.cumsum(-1).exp()).tanh(),
    "cumprod": lambda x: x.cumprod(1),
    "sort": lambda x: x.sort(1).values * torch.arange(5.0),
    "sort_descending": lambda x: x.sort(0, descending=True).values.cumsum(0),
    "topk": lambda x: x.topk(3, 1).values.square(),
    "sorted_by_another": lambda x: x.gather(1, x.square().argsort(1)) * torch.arange(5.0),
}


@pytest.mark.parametrize("name", TRAINED)
def test_gradients(name: str) -> None:
    layer = nn.Linear(5, 5)
    x = torch.randn(4, 5)

    def loss() -> torch.Tensor:
        return TRAINED[name](layer(x)).sum()

    wanted = torch.autograd.grad(loss(), list(layer.parameters()))
    compiled: Any = torch.compile(loss, backend="umd", options=SIM)
    got = torch.autograd.grad(compiled(), list(layer.parameters()))
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_mixture_of_experts_trains() -> None:
    model, x = Router(), torch.randn(5, 6)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    compiled: Any = torch.compile(model, backend="umd", options=SIM)
    got = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
