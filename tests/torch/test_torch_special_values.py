"""Ops whose edges torch's own samples do not reach: signs, infinities, missing numbers, ties, odd windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

Check = Callable[..., None]
SIM: dict[str, Any] = {"device": "sim:0", "strict": True}
ODD = torch.tensor([0.0, -0.0, 1.5, -2.5, math.inf, -math.inf, math.nan, 1e-42, -1e-42, 3e38])


def test_signs_neighbours_and_parts(same: Check) -> None:
    x, y = torch.meshgrid(ODD, ODD, indexing="ij")
    same(lambda v: (v.signbit(), v.angle()), ODD)
    same(lambda a, b: (torch.copysign(a, b), torch.atan2(a, b)), x, y)
    same(torch.nextafter, x, y, rtol=0, atol=0)
    same(torch.hypot, x, y)
    finite = ODD[ODD.isfinite()]
    same(torch.frexp, finite, rtol=0, atol=0)
    same(torch.frexp, finite.double(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_bits_of_other_floats(dtype: torch.dtype, same: Check) -> None:
    x = torch.tensor([0.0, -0.0, 1.5, -3.0, math.inf], dtype=dtype)
    same(lambda v: (v.signbit(), torch.copysign(v, -1.0)), x)


def test_shifts(same: Check) -> None:
    x = torch.tensor([1, -8, 127, 5], dtype=torch.int32)
    same(lambda v, by: (v << 3, v >> 1, v << by), x, torch.tensor([0, 1, 2, 3], dtype=torch.int32))


def test_running_extremes_of_ties_and_missing_numbers(same: Check) -> None:
    x = torch.tensor([[1.0, 3, 3, 2, 3], [2, math.nan, 5, math.nan, 1], [0, -math.inf, math.inf, 0, 0]])
    same(lambda v: (*v.cummax(1), *v.cummin(1), *v.cummax(0)), x)
    same(lambda v: (*v.cummax(0), *v.cummin(-1)), torch.tensor([[True, False], [False, True]]))
    same(lambda v: (*v.cummax(0), v.logcumsumexp(0)), torch.tensor(2.0))
    same(lambda v: v.logcumsumexp(0), torch.tensor([-math.inf, -math.inf, -200.0, 1.0, 300.0, math.inf, 0.0]))


def test_places_in_the_order(same: Check) -> None:
    x = torch.tensor([[4.0, 1, 3, 2, 5], [2, math.nan, 5, math.nan, 1], [math.nan, 0, 0.5, 7, math.nan]])
    same(lambda v: (*v.median(1), *v.nanmedian(1), v.median(), v.nanmedian()), x)
    same(lambda v: v.nanmedian(0).values, torch.tensor([[math.nan, 1], [math.nan, math.nan]]))
    same(lambda v: (*v.kthvalue(2, 1), *v[0].kthvalue(5)), x)
    same(lambda v: (*v.mode(1), *v.mode(0)), torch.tensor([[3, 1, 3, 1, 2], [5, 4, 4, 4, 5]]))
    row = torch.tensor([1.0, 3, 3, 7, math.inf])
    sought = torch.tensor([[0.0, 3], [7, 8], [math.nan, 1]])
    same(lambda r, v: (torch.searchsorted(r, v), torch.bucketize(v, r, right=True)), row, sought)
    same(lambda r, v: torch.searchsorted(r, v, side="right", out_int32=True), row.expand(3, 5).contiguous(), sought)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("divisor", [1, 5])
def test_average_pools_with_a_divisor(ceil: bool, divisor: int, same: Check) -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def pool(v: torch.Tensor) -> torch.Tensor:
            return functional.avg_pool2d(v, (3, 2), (2, 3), (1, 0), ceil, True, divisor)

        pulled: Any = torch.func.vjp(pool, x)
        y, pull = pulled
        return y, *pull(torch.cos(torch.arange(float(y.numel()))).reshape(y.shape))

    same(both, torch.randn(2, 3, 8, 9))


@pytest.mark.parametrize("kind", ["avg", "max"])
@pytest.mark.parametrize("spatial", [2, 3])
def test_adaptive_pools_of_unequal_windows(kind: str, spatial: int, same: Check) -> None:
    pool: Any = getattr(functional, f"adaptive_{kind}_pool{spatial}d")

    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pulled: Any = torch.func.vjp(lambda v: pool(v, (3, 4, 2)[:spatial]), x)
        y, pull = pulled
        return y, *pull(torch.cos(torch.arange(float(y.numel()))).reshape(y.shape))

    same(both, torch.randn(2, 3, *(7, 5, 6)[:spatial]))


def test_masks_that_pick_as_many_as_there_are_values(same: Check) -> None:
    mask = torch.tensor([[True, False, True], [False, True, False]])
    same(lambda x, m, v: x.index_put((m,), v), torch.zeros(2, 3), mask, torch.tensor([1.0, 2, 3]))
    same(lambda x, m, v: x.index_put((m,), v, accumulate=True), torch.ones(2, 3, 2), mask, torch.randn(3, 2))
    same(lambda x, m, v: x.index_put((m,), v), torch.ones(2, 3, 2), mask, torch.tensor([5.0, 6]))
    same(lambda x, m, v: x.masked_scatter(m, v), torch.zeros(2, 3), mask, torch.arange(8.0))


def test_the_gradient_of_overlapping_windows() -> None:
    """Torch copies the gradient of a view that overlaps itself into overlapping memory, unless it is told not to."""
    x = torch.randn(6, requires_grad=True)
    weights = torch.tensor([[1.0, 2, 4], [8, 16, 32], [64, 128, 256], [512, 1024, 2048]])

    def windows(v: torch.Tensor) -> torch.Tensor:
        return (v * 1).unfold(0, 3, 1)

    compiled: Any = torch.compile(windows, backend="umd", options=SIM)
    (gradient,) = torch.autograd.grad(compiled(x), x, weights)
    assert gradient.tolist() == [1, 10, 84, 672, 1280, 2048]


def test_categories_are_drawn_by_weight(run: Callable[..., Any]) -> None:
    weights = torch.tensor([[1.0, 0.0, 3.0], [0.0, 5.0, 0.0]])
    drawn = run(lambda w: torch.multinomial(w, 4000, replacement=True), weights)
    assert drawn.shape == (2, 4000)
    assert set(drawn[0].tolist()) == {0, 2}
    assert abs((drawn[0] == 2).double().mean() - 0.75) < 0.05
    assert (drawn[1] == 1).all()
    order = run(lambda w: torch.multinomial(w, 3), torch.rand(50, 3) + 0.1)
    assert (order.sort(1).values == torch.arange(3)).all()
