"""Indices outside their axis: refused where torch refuses them, counted from the end where torch counts so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import umd_torch
from umd_core.errors import IndexRangeError
from umd_model import load
from umd_model.session import Session as ModelSession
from umd_torch import export, train_step

DEVICE = umd_torch.connect("sim:0")
CHANCE = torch.Generator().manual_seed(5)
TABLE, ROW, SCORES = (torch.randn(rows, 4, generator=CHANCE) for rows in (3, 1, 3))
Function = Callable[[torch.Tensor], torch.Tensor]

pytestmark = pytest.mark.filterwarnings("ignore:.*(torch.jit|isinstance|treespec|LeafSpec):")  # torch's, of itself


def compiled(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="umd", options={"device": "sim:0", "strict": True})


def slices(at: int) -> torch.Tensor:
    return torch.tensor([0, at])


def elements(at: int) -> torch.Tensor:
    return torch.tensor([[0, at, 0, 0]])


def rows(index: torch.Tensor) -> torch.Tensor:
    return torch.ones(2, 4, device=index.device)


def targets(at: int) -> torch.Tensor:
    return torch.tensor([0, at, 1])


Case = tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], Callable[[int], torch.Tensor], int]
REFUSING: dict[str, Case] = {
    "embedding": (lambda x, i: functional.embedding(i, x), slices, 3),
    "embedding-int32": (lambda x, i: functional.embedding(i.int(), x), slices, 3),
    "gather": (lambda x, i: x.gather(0, i), elements, 3),
    "index_select": (lambda x, i: x.index_select(0, i), slices, 3),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), elements, 3),
    "scatter-source": (lambda x, i: x.scatter(0, i, ROW.to(x.device)), elements, 3),
    "scatter-reduce": (lambda x, i: x.scatter(0, i, 2.0, reduce="multiply"), elements, 3),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, ROW.to(x.device)), elements, 3),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i, ROW.to(x.device), "amax"), elements, 3),
    "scatter_reduce-mean": (
        lambda x, i: x.scatter_reduce(0, i, ROW.to(x.device), "mean", include_self=False), elements, 3,
    ),
    "index_add": (lambda x, i: x.index_add(0, i, rows(i), alpha=2), slices, 3),
    "index_add_": (lambda x, i: x.clone().index_add_(0, i, rows(i)), slices, 3),
    "index_copy": (lambda x, i: x.index_copy(0, i, rows(i)), slices, 3),
    "index_copy_": (lambda x, i: x.clone().index_copy_(0, i, rows(i)), slices, 3),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, rows(i), "prod"), slices, 3),
    "nll_loss": (lambda x, i: functional.nll_loss(x, i), targets, 4),
    "nll_loss2d": (lambda x, i: functional.nll_loss(x.T.reshape(1, 4, 3, 1), i.reshape(1, 3, 1)), targets, 4),
    "cross_entropy": (lambda x, i: functional.cross_entropy(x, i), targets, 4),
    "cross_entropy-smooth": (lambda x, i: functional.cross_entropy(x, i, label_smoothing=0.1), targets, 4),
    "multi_margin_loss": (lambda x, i: functional.multi_margin_loss(x, i), targets, 4),
    "max_unpool1d": (lambda x, i: functional.max_unpool1d(x[None, :1], i[None], (2,)), elements, 8),
    "searchsorted": (lambda x, i: torch.searchsorted(x[0] * 0, x[1], sorter=i[0]), elements, 4),
}  # fmt: skip
"""What torch refuses: a function of the table and an index, the index with a number in it, the extent."""
FROM_THE_END: dict[str, Case] = {
    "index": (lambda x, i: x[i], slices, 3),
    "index-two": (lambda x, i: x[i, i], slices, 3),
    "index_put": (lambda x, i: x.index_put((i,), rows(i)), slices, 3),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.5), slices, 3),
    "index_fill-tensor": (lambda x, i: x.index_fill(1, i, torch.tensor(1.5, device=x.device)), slices, 4),
    "index_fill_": (lambda x, i: x.clone().index_fill_(0, i[1], 1.5), slices, 3),
    "take": (lambda x, i: x.take(i), slices, 12),
    "put": (lambda x, i: x.put(i, rows(i)[:, 0]), slices, 12),
}
"""What torch takes from the end."""
BAD = [(-1, "negative"), (None, "extent"), (-(2**40), "far")]


@pytest.mark.parametrize("at", [a for a, _ in BAD], ids=[n for _, n in BAD])
@pytest.mark.parametrize("place", ["compiled", "eager"])
@pytest.mark.parametrize("name", REFUSING)
def test_refused_as_torch_refuses(name: str, place: str, at: int | None) -> None:
    function, index, extent = REFUSING[name]
    number = extent if at is None else at
    if name == "embedding-int32" and number < -(2**31):
        number = -(2**31)
    with pytest.raises((IndexError, RuntimeError)):
        function(TABLE, index(number))
    with pytest.raises(IndexRangeError) as caught:
        if place == "compiled":
            compiled(function)(TABLE, index(number))
        else:
            function(TABLE.to("umd"), index(number).to("umd"))
    assert (caught.value.value, caught.value.extent) == (number, extent)
    least = 0 if number == -1 else -extent
    assert f"index {number} is outside [{least}, {extent})" in str(caught.value)


@pytest.mark.parametrize("name", REFUSING)
def test_what_is_inside_is_taken(name: str) -> None:
    function, index, extent = REFUSING[name]
    wanted = function(TABLE, index(extent - 1))
    torch.testing.assert_close(compiled(function)(TABLE, index(extent - 1)), wanted)
    torch.testing.assert_close(function(TABLE.to("umd"), index(extent - 1).to("umd")).cpu(), wanted)


@pytest.mark.parametrize("name", FROM_THE_END)
def test_counted_from_the_end_as_torch_does(name: str) -> None:
    function, index, extent = FROM_THE_END[name]
    for at in (-1, -extent):
        wanted = function(TABLE, index(at))
        assert torch.equal(compiled(function)(TABLE, index(at)), wanted)
        assert torch.equal(function(TABLE.to("umd"), index(at).to("umd")).cpu(), wanted)
    with pytest.raises(IndexRangeError, match="is outside"):
        compiled(function)(TABLE, index(-extent - 1))


def test_what_is_ignored_is_no_index() -> None:
    target = torch.tensor([0, -1, -100])
    for ignored in (-1, -100):
        legal = torch.where(target == (-1 if ignored == -100 else -100), 1, target)

        def loss(x: torch.Tensor, t: torch.Tensor, ignored: int = ignored) -> torch.Tensor:
            return functional.cross_entropy(x, t, ignore_index=ignored)

        torch.testing.assert_close(compiled(loss)(SCORES, legal), loss(SCORES, legal))
        with pytest.raises(IndexRangeError):
            compiled(loss)(SCORES, target)


def test_a_whole_step_and_a_gradient() -> None:
    model = nn.Linear(4, 4)
    step = train_step(model, functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), device="sim:0")
    with pytest.raises(IndexRangeError, match=r"index -1 is outside \[0, 4\)"):
        step(TABLE, torch.tensor([0, -1, 1]))
    with pytest.raises(IndexRangeError, match=r"index -1 is outside \[0, 4\)"):
        compiled(lambda x, t: functional.cross_entropy(model(x), t))(TABLE, torch.tensor([0, -1, 1])).backward()


def test_a_file(tmp_path: Path) -> None:
    export(nn.Embedding(3, 2), (torch.tensor([0, 1]),), tmp_path / "x.umd")
    session = ModelSession(load(tmp_path / "x.umd"), "sim:0")
    (name,) = [argument.name for argument in session.model.arguments if not argument.weight]
    session.run({name: torch.tensor([0, 2]).numpy()})
    with pytest.raises(IndexRangeError, match=r"index -1 is outside \[0, 3\)"):
        session.run({name: torch.tensor([0, -1]).numpy()})


def launches(function: Callable[..., Any], *arguments: torch.Tensor) -> int:
    (graph,) = umd_torch.explain(function, *arguments, device="sim:0").graphs
    return graph.kernels.total()


@pytest.mark.parametrize("source", ["arange", "argmax", "topk", "sort", "comparison", "clamp", "where", "known"])
def test_what_cannot_be_negative_is_not_looked_at(source: str) -> None:
    makers: dict[str, Function] = {
        "arange": lambda x: torch.arange(x.shape[0]),
        "argmax": lambda x: x.argmax(1),
        "topk": lambda x: x.topk(2, 1).indices,
        "sort": lambda x: x.sort(1).indices.T.reshape(-1)[1:],
        "comparison": lambda x: (x > 0).long(),
        "clamp": lambda x: x.long().clamp(0, 8),
        "where": lambda x: torch.where(x > 0, x.argmin(1, keepdim=True), 3),
        "known": lambda x: torch.tensor([2, 0]),
    }
    maker, weight, x = makers[source], torch.randn(9, 4), torch.randn(5, 4)
    with torch.no_grad():
        count = launches(lambda x: functional.embedding(maker(x), weight), x)
        assert count == launches(lambda x: weight[maker(x)], x)  # which counts from the end, and so needs no more
        torch.testing.assert_close(compiled(lambda x: functional.embedding(maker(x), weight))(x), weight[maker(x)])


def test_indices_that_come_from_outside_cost_a_launch() -> None:
    weight, ids = torch.randn(9, 4), torch.tensor([1, 2])
    assert launches(lambda w, i: w[i], weight, ids) == 1
    assert launches(lambda w, i: functional.embedding(i, w), weight, ids) == 2
    two = launches(lambda w, v, i: functional.embedding(i, w) + v.index_select(0, i), weight, weight.flip(0), ids)
    assert two == 4  # one for both, each of the two, the sum


@pytest.mark.parametrize("source", ["minus", "clamp-below", "int32", "sign", "float"])
def test_what_may_be_negative_is_looked_at(source: str) -> None:
    makers: dict[str, Function] = {
        "minus": lambda x: x.argmax(1) - 4,
        "clamp-below": lambda x: x.long().clamp(-2, 2) - 100,
        "int32": lambda x: (x > 0).to(torch.int32) - 1 - (x > -9).to(torch.int32),
        "sign": lambda x: torch.sign(-x.abs() - 1).long(),
        "float": lambda x: (x * 0 - 1).long(),
    }
    maker, weight, x = makers[source], torch.randn(9, 4), torch.randn(5, 4)
    with pytest.raises(IndexRangeError):
        compiled(lambda x: functional.embedding(maker(x), weight))(x)


def test_sizes_that_vary_are_looked_at_each_time() -> None:
    function = torch.compile(
        lambda x, i: x.index_select(0, i), backend="umd", options={"device": "sim:0", "strict": True}, dynamic=True
    )
    for size in (2, 3, 4):
        index = torch.arange(size)
        torch.testing.assert_close(function(torch.eye(5), index), torch.eye(5)[:size])
        with pytest.raises(IndexRangeError, match=r"index -1 is outside \[0, 5\)"):
            function(torch.eye(5), index - 1)


# what slices are put where an index says, forward and backward


@pytest.mark.parametrize("name", ["add", "alpha", "last", "integers", "copy", "fill", "none", "flat"])
def test_slices_at_an_index(name: str) -> None:
    index, source = torch.tensor([3, 1]), torch.randn(3, 2)
    functions: dict[str, tuple[Function, torch.Tensor]] = {
        "add": (lambda x: x.index_add(1, index, source), torch.randn(3, 4)),
        "alpha": (lambda x: x.index_add(1, index, source, alpha=-2), torch.randn(3, 4)),
        "last": (lambda x: x.index_add(-1, torch.tensor([1, 1]), source), torch.randn(3, 4)),
        "integers": (lambda x: x.index_add(1, index, source.long(), alpha=3), torch.arange(12).reshape(3, 4)),
        "copy": (lambda x: x.index_copy(1, index, source), torch.randn(3, 4)),
        "fill": (lambda x: x.index_fill(1, torch.tensor([3, -1]), 7), torch.arange(12).reshape(3, 4)),
        "none": (lambda x: x.index_add(0, index[:0], source[:0, :1].expand(0, 4)), torch.randn(3, 4)),
        "flat": (lambda x: x.index_copy(0, torch.tensor([0]), torch.tensor(5.0)), torch.tensor(1.0)),
    }
    function, x = functions[name]
    torch.testing.assert_close(compiled(function)(x), function(x))
    if x.is_floating_point():
        given, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(function)(given).square().sum().backward()
        function(wanted).square().sum().backward()
        torch.testing.assert_close(given.grad, wanted.grad)


def test_slices_of_another_size() -> None:
    x, index = torch.zeros(3, 4), torch.tensor([0, 1])
    for source in (torch.ones(2, 2), torch.ones(2, 5), torch.ones(1, 4), torch.ones(2)):
        for function in (torch.index_add, torch.index_copy):
            with pytest.raises((IndexError, RuntimeError)):
                function(x, 0, index, source)
            with pytest.raises(Exception, match=r"(?i)slice|shape|size|indices|dimension"):
                compiled(function)(x, 0, index, source)


def test_unpooling_keeps_to_its_plane() -> None:
    for axes in (1, 2, 3):
        pool, unpool = (getattr(functional, f"max_{kind}{axes}d") for kind in ("pool", "unpool"))
        x = torch.randn(2, 3, *(6,) * axes, requires_grad=True)

        def back(x: torch.Tensor, pool: Any = pool, unpool: Any = unpool) -> torch.Tensor:
            values, indices = pool(x, 2, return_indices=True)
            restored: torch.Tensor = unpool(values, indices, 2)
            return restored

        if axes < 3:
            torch.testing.assert_close(compiled(back)(x), back(x))
        values, indices = pool(x.detach(), 2, return_indices=True)
        torch.testing.assert_close(
            compiled(lambda v, i, u=unpool: u(v, i, 2))(values, indices), unpool(values, indices, 2)
        )
        with pytest.raises(IndexRangeError):
            compiled(lambda v, i, u=unpool: u(v, i, 2))(values, indices + 6**axes)


# embeddings


@pytest.mark.parametrize("padding", [None, 2], ids=["all", "padding"])
def test_gradients_over_their_frequency(padding: int | None) -> None:
    ids = torch.tensor([[0, 2, 2], [1, 2, 0]])
    model = nn.Embedding(5, 4, padding_idx=padding, scale_grad_by_freq=True)
    other, eager = copy.deepcopy(model), copy.deepcopy(model).to("umd")
    weights = torch.randn(2, 3, 4)
    (compiled(model)(ids) * weights).sum().backward()
    (other(ids) * weights).sum().backward()
    (eager(ids.to("umd")) * weights.to("umd")).sum().backward()
    torch.testing.assert_close(model.weight.grad, other.weight.grad)
    assert eager.weight.grad is not None
    torch.testing.assert_close(eager.weight.grad.cpu(), other.weight.grad)


@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_rows_of_a_largest_norm(norm: float) -> None:
    ids = torch.tensor([[0, 2, 2], [1, 2, 0]])
    model = nn.Embedding(5, 4, max_norm=0.5, norm_type=norm)
    other, eager = copy.deepcopy(model), copy.deepcopy(model).to("umd")
    call = compiled(model)
    for _ in range(2):
        wanted = other(ids)
        torch.testing.assert_close(call(ids), wanted)
        torch.testing.assert_close(eager(ids.to("umd")).cpu(), wanted)
        torch.testing.assert_close(model.weight, other.weight)
        torch.testing.assert_close(eager.weight.cpu(), other.weight)
    assert not torch.equal(model.weight[0], nn.Embedding.from_pretrained(model.weight * 3).weight[0])
