"""Products in groups and histograms beside torch and beside plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

Check = Callable[..., None]
aten = torch.ops.aten


@settings(max_examples=25)
@given(
    data=st.data(),
    bins=st.integers(1, 7),
    limits=st.sampled_from([(0, 0), (-1, 1), (3, 3), (0.25, 0.75), (-100, -99)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_histograms(
    data: st.DataObject, bins: int, limits: tuple[float, float], dtype: torch.dtype, same: Check
) -> None:
    numbers = data.draw(st.lists(st.integers(-8, 8), max_size=20))
    x = torch.tensor(numbers, dtype=dtype) / 4
    same(lambda v: torch.histc(v, bins, *limits), x)


def test_a_histogram_of_equal_numbers_and_of_a_matrix(same: Check) -> None:
    same(lambda v: torch.histc(v, 4), torch.full((5,), 2.5))
    same(lambda v: torch.histc(v, 10, -1, 1), torch.randn(6, 7))


def small(shape: tuple[int, ...]) -> torch.Tensor:
    """Returns bfloat16, the type that torch has grouped products for, of whole numbers whose products are exact."""
    return torch.randint(-2, 3, shape).to(torch.bfloat16)


def by_loop(x: torch.Tensor, y: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """Returns what a grouped product is: of rows, of columns, or along the depth, one group after another."""
    pieces, start = [], 0
    for group, end in enumerate(ends):
        if x.dim() == 2 and y.dim() == 3:
            pieces.append(x[start:end] @ y[group])
        elif x.dim() == 3:
            pieces.append(x[group] @ y[:, start:end])
        else:
            pieces.append(x[:, start:end] @ y[start:end])
        start = end
    if x.dim() == y.dim():
        return torch.stack(pieces)
    return torch.cat(pieces, 0 if x.dim() == 2 else 1)


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((16, 8), (3, 8, 8)),
    "columns": ((3, 8, 8), (8, 16)),
    "depth": ((8, 16), (16, 8)),
}


@pytest.mark.parametrize("ends", [(4, 8, 16), (0, 16, 16), (3, 3, 16)])
@pytest.mark.parametrize("name", SHAPES)
def test_grouped_products(name: str, ends: tuple[int, ...], run: Callable[..., Any]) -> None:
    left, right = SHAPES[name]
    x, y = small(left), small(right)
    offsets = torch.tensor(ends, dtype=torch.int32)
    got = run(lambda a, b, o: aten._grouped_mm(a, b, o), x, y, offsets)
    assert torch.equal(got, by_loop(x, y, list(ends)))


def test_products_of_as_many_matrices(run: Callable[..., Any]) -> None:
    x, y = small((3, 4, 8)), small((3, 8, 8))
    assert torch.equal(run(lambda a, b: aten._grouped_mm(a, b), x, y), x @ y)


def test_numbers_that_are_missing_stay_in_their_group(run: Callable[..., Any]) -> None:
    x, y = torch.ones(4, 8, dtype=torch.bfloat16), torch.ones(2, 8, 8, dtype=torch.bfloat16)
    y[0] = math.nan
    got = run(lambda a, b, o: aten._grouped_mm(a, b, o), x, y, torch.tensor([1, 4], dtype=torch.int32))
    assert got[0].isnan().all()
    assert torch.equal(got[1:], torch.full((3, 8), 8.0, dtype=torch.bfloat16))
