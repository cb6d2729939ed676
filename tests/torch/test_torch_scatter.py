"""scatter_reduce with every reduction, with and without what is there, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

REDUCTIONS = ("sum", "prod", "amax", "amin", "mean")
INDEX = torch.tensor([[0, 2, 2, 0, 1], [1, 1, 1, 1, 1], [2, 0, 2, 0, 2], [3, 3, 0, 0, 0]])
Same = Callable[..., None]


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8])
def test_scatter_reduce(same: Same, dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    x, source = (torch.randint(-9 if dtype.is_signed else 0, 9, (4, 6)).to(dtype) for _ in range(2))

    def function(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(1, index, source[:, :5], reduce, include_self=include_self)

    same(function, x, INDEX, source)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_of_a_number_with_a_reduction(same: Same, reduce: str) -> None:
    same(lambda x, i: x.scatter(1, i, 3.0, reduce=reduce), torch.randn(4, 6), INDEX)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_nan_wins(same: Same, reduce: str) -> None:
    x, source = torch.randn(4, 6), torch.randn(4, 5)
    source[0, 0], x[1, 1] = torch.nan, torch.nan
    same(lambda x, i, s: x.scatter_reduce(1, i, s, reduce), x, INDEX, source)


@pytest.mark.parametrize("reduce", ["sum", "amax", "amin", "mean"])
def test_gradients(reduce: str) -> None:
    x, source = torch.randn(4, 6, requires_grad=True), torch.randn(4, 5, requires_grad=True)

    def function(x: torch.Tensor, source: torch.Tensor) -> Any:
        return x.scatter_reduce(1, INDEX, source, reduce).square().sum()

    wanted = torch.autograd.grad(function(x, source), [x, source])
    compiled: Any = torch.compile(function, backend="umd", options={"device": "sim:0", "strict": True})
    got = torch.autograd.grad(compiled(x, source), [x, source])
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
