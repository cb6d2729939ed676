"""Views, rearrangements, creation, reductions and indexing beside torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from umd_core.errors import IndexRangeError, UnsupportedError

aten = torch.ops.aten
Check = Callable[..., None]
X = torch.arange(60.0).reshape(3, 4, 5)

LAYOUT: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda x: x.view(12, 5),
    "reshape_of_transposed": lambda x: x.transpose(0, 2).reshape(-1),
    "permute": lambda x: x.permute(2, 0, 1),
    "t": lambda x: x[0].t(),
    "transpose": lambda x: x.transpose(-1, 0),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "expand": lambda x: x[:, :1].expand(3, 7, 5),
    "slice": lambda x: x[1:, ::2, -3:-1],
    "select": lambda x: x[:, -1],
    "split": lambda x: x.split(2, 1),
    "split_sizes": lambda x: x.split([1, 3], 1),
    "chunk": lambda x: x.chunk(3, 2),
    "unbind": lambda x: x.unbind(1),
    "cat": lambda x: torch.cat([x, x[:, :1], torch.empty(3, 0, 5)], 1),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "pad": lambda x: functional.pad(x, (1, 2, 0, 3), value=7.0),
    "crop": lambda x: functional.pad(x, (-1, 0, 2, -2)),
    "flip": lambda x: x.flip(0, 2),
    "repeat": lambda x: x.repeat(2, 1, 3, 1),
    "roll": lambda x: x.roll(2, 1),
    "tril": lambda x: x[0].tril(),
    "triu": lambda x: x.triu(1),
    "movedim": lambda x: x.movedim(0, -1),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[:, :3, 0], -1, 1, 2),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "as_strided": lambda x: x.as_strided((2, 3), (7, 2), 5),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "contiguous": lambda x: x.permute(2, 0, 1).contiguous(),
    "cast": lambda x: x.to(torch.int32),
    "cast_half": lambda x: x.half(),
    "to_bool": lambda x: x.bool(),
    "narrow": lambda x: x.narrow(2, 1, 3),
    "zeros_like": torch.zeros_like,
    "full_like": lambda x: torch.full_like(x, 3),
    "new_ones": lambda x: x.new_ones(2, 2),
    "arange": lambda x: torch.arange(7),
    "arange_float": lambda x: torch.arange(1, 2, 0.3),
    "arange_step": lambda x: torch.arange(10, 0, -3),
    "long_arange": lambda x: torch.arange(5000) * 2,
    "long_float_arange": lambda x: torch.arange(0, 1250, 0.25),
    "eye": lambda x: torch.eye(3),
    "linspace": lambda x: torch.linspace(0, 1, 5),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 3),
    "slice_scatter_step": lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 0, 4, 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] + 1, 1, -2),
    "copy": lambda x: torch.empty_like(x).copy_(x[:1]),
    "rot90": lambda x: torch.rot90(x, 1, (0, 2)),
    "pixel_shuffle": lambda x: functional.pixel_shuffle(x[:, :4].repeat(4, 1, 1)[:4, :, :], 2),
}


@pytest.mark.parametrize("name", LAYOUT)
def test_layout(name: str, same: Check) -> None:
    same(LAYOUT[name], X)


@given(data=st.data())
def test_slices(data: st.DataObject, same: Check) -> None:
    index = tuple(
        slice(
            data.draw(st.none() | st.integers(-6, 6)),
            data.draw(st.none() | st.integers(-6, 6)),
            data.draw(st.sampled_from([1, 2, 3])),
        )
        for _ in range(3)
    )
    same(lambda x: x[index], X)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
    "var": torch.var,
    "std": torch.std,
    "logsumexp": torch.logsumexp,
    "norm": lambda x, d, keepdim: torch.linalg.vector_norm(x, dim=d, keepdim=keepdim),
}


@given(data=st.data())
def test_reductions(data: st.DataObject, same: Check) -> None:
    name = data.draw(st.sampled_from(sorted(REDUCTIONS)))
    shape = data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=4))
    x = torch.randn(shape).permute(data.draw(st.permutations(range(len(shape)))))
    dims = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda d: d % len(shape)))
    keep = data.draw(st.booleans())
    same(lambda v: REDUCTIONS[name](v, dims, keepdim=keep), x)


OTHERS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.max,
    "min": torch.min,
    "prod": torch.prod,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "var": torch.var,
    "max_along": lambda x: x.max(1),
    "min_along": lambda x: x.min(-1, keepdim=True),
    "argmax_along": lambda x: x.argmax(0, keepdim=True),
    "prod_along": lambda x: x.prod(1),
    "any": lambda x: (x > 0).any(),
    "all_along": lambda x: (x > 0).all(1),
    "any_along": lambda x: (x > 0).any(0, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 1, correction=0),
    "count": lambda x: (x > 0).sum(1),
    "wide": lambda x: x.sum(dtype=torch.float64),
    "aminmax": lambda x: x.aminmax(dim=1),
    "whole": lambda x: x.long().sum(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_reductions(name: str, same: Check) -> None:
    same(OTHERS[name], torch.randn(4, 6))


def test_reductions_of_nothing_and_of_one(same: Check) -> None:
    same(torch.sum, torch.empty(0, 3))
    same(lambda x: x.sum(1), torch.empty(3, 0))
    same(lambda x: x.mean(0), torch.empty(0, 2))
    same(lambda x: (x.sum(), x.amax(), x.argmax(), x.max(0), x.softmax(0)), torch.tensor(2.0))


def test_order_of_truth_values(same: Check) -> None:
    x = torch.tensor([[True, False], [False, False]])
    same(lambda v: (v.max(1), v.amax(0)), x)


def test_extremes_of_equal_and_missing_numbers(same: Check) -> None:
    same(lambda x: (x.max(1), x.min(1), x.argmax(1)), torch.tensor([[1.0, 3, 3], [math.nan, 9, math.nan], [2, 2, 2]]))


INDEXING: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "gather": (lambda x, i: x.gather(1, i), (X, torch.randint(0, 4, (3, 6, 5)))),
    "index_select": (lambda x, i: x.index_select(2, i), (X, torch.tensor([4, 0, 0]))),
    "take_along": (lambda x, i: torch.take_along_dim(x, i, 0), (X, torch.randint(0, 3, (2, 4, 5)))),
    "one": (lambda x, i: x[i], (X, torch.tensor([[2, 0], [-1, 1]]))),
    "middle": (lambda x, i: x[:, i], (X, torch.tensor([3, -4]))),
    "two": (lambda x, i, j: x[i, j], (X, torch.tensor([2, 0, -1]), torch.tensor([[0], [-1]]))),
    "adjacent": (lambda x, i, j: x[:, i, j], (X, torch.tensor([2, 0, -1]), torch.tensor([4, 3, -5]))),
    "apart": (lambda x, i, j: x[i, :, j], (X, torch.tensor([2, 0, -1]), torch.tensor([4, 3, -5]))),
    "embedding": (lambda i, w: functional.embedding(i, w), (torch.tensor([[1, 2], [0, 1]]), torch.randn(3, 4))),
    "embedding_gradient": (
        lambda dy, i: aten.embedding_dense_backward(dy, i, 5, 1, False),
        (torch.randn(2, 3, 4), torch.tensor([[1, 2, 4], [0, 4, 4]])),
    ),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), (X, torch.tensor([[[0], [2]]]), torch.randn(1, 2, 1))),
    "scatter_number": (lambda x, i: x.scatter(2, i, 9.0), (X, torch.tensor([[[0, 3]]]))),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (X, torch.randint(0, 3, (3, 4, 5)), torch.randn(3, 4, 5))),
    "index_add": (lambda x, i, s: x.index_add(1, i, s), (X, torch.tensor([1, 1]), torch.randn(3, 2, 5))),
    "index_copy": (lambda x, i, s: x.index_copy(1, i, s), (X, torch.tensor([3, 1]), torch.randn(3, 2, 5))),
    "index_fill": (lambda x, i: x.index_fill(1, i, 8.0), (X, torch.tensor([3, 1]))),
    "put": (lambda x, i, v: x.index_put((i,), v), (X, torch.tensor([2, 0]), torch.randn(4, 5))),
    "put_two": (
        lambda x, i, j, v: x.index_put((i, j), v),
        (X, torch.tensor([2, -3]), torch.tensor([0, -1]), torch.randn(2, 5)),
    ),
    "put_apart": (
        lambda x, i, j, v: aten.index_put(x, [i, None, j], v),
        (X, torch.tensor([2, 0]), torch.tensor([0, -1]), torch.randn(2, 4)),
    ),
    "put_adjacent": (
        lambda x, i, j, v: aten.index_put(x, [None, i, j], v, True),
        (X, torch.tensor([2, 2]), torch.tensor([0, 0]), torch.randn(3, 2)),
    ),
    "accumulate": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (X, torch.tensor([2, 2]), torch.randn(2, 4, 5)),
    ),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1.0), (X, X > 30)),
    "mask_put": (lambda x, m: aten.index_put(x, [m], torch.tensor(5.0)), (X, X[:, :, 0] > 20)),
    "where": (lambda x, m: torch.where(m, x, 0.0), (X, X > 9)),
    "one_hot": (lambda i: (i.unsqueeze(-1) == torch.arange(4)).long(), (torch.tensor([1, 3, 0]),)),
    "scalars": (lambda x, i: (x.gather(0, i), x.index_select(0, i)), (torch.tensor(3.0), torch.tensor(0))),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str, same: Check) -> None:
    function, inputs = INDEXING[name]
    same(function, *inputs)


@pytest.mark.parametrize("index", [(torch.tensor([0, 3]),), (torch.tensor([0, 1]), torch.tensor([1, 4]))])
def test_an_index_out_of_range_is_an_error(index: tuple[torch.Tensor, ...], run: Callable[..., Any]) -> None:
    with pytest.raises(IndexRangeError):
        run(lambda x, *i: x[i], X, *index)


def test_what_depends_on_data_is_refused(run: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"depends on data|mask"):
        run(lambda x: aten.masked_select(x, x > 3), X)
