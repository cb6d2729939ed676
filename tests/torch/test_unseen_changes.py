"""Bytes that change without a count of torch's, found while the device works already: nothing is done twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from umd_core.errors import IndexRangeError
from umd_torch import counters
from umd_torch.demo import served
from umd_torch.session import session_for


class Counting(nn.Module):
    """Adds up what goes through it, in a buffer."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 40_000).reshape(4, 10_000))
        self.register_buffer("total", torch.zeros(4, 10_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x * self.weight
        self.total.add_(result)
        return functional.dropout(result, 0.5).sum(1)


def _through_data(model: Counting) -> None:
    model.weight.data.mul_(3)


def _through_numpy(model: Counting) -> None:
    model.weight.detach().numpy()[:] += 1


def _of_the_changed(model: Counting) -> None:
    model.total.data.fill_(5)


def _both(model: Counting) -> None:
    _through_numpy(model)
    _of_the_changed(model)


@pytest.mark.parametrize("change", [_through_data, _through_numpy, _of_the_changed, _both])
@pytest.mark.parametrize("calls", [1, 3])
def test_a_change_is_found(plain: str, change: Callable[[Counting], None], calls: int) -> None:
    ours, theirs = Counting(), Counting()
    x = torch.randn(4, 10_000)
    compiled: Any = torch.compile(ours, backend="umd", options={"device": plain, "strict": True})
    with torch.no_grad():
        for model, call in ((ours, compiled), (theirs, theirs)):
            for _ in range(calls):
                call(x)
            change(model)
        stale, uploads = counters.stale, counters.uploads
        compiled(x)
        theirs(x)
        assert counters.stale - stale == (2 if change is _both else 1)
        assert counters.uploads - uploads in (1, 2)  # what was changed in the wrong run too
        torch.testing.assert_close(ours.total, theirs.total)
        stale, uploads = counters.stale, counters.uploads
        compiled(x)
        theirs(x)
        torch.testing.assert_close(ours.total, theirs.total)
        assert (counters.stale, counters.uploads) == (stale, uploads)


def test_random_numbers_are_drawn_once(plain: str) -> None:
    model = Counting()
    x = torch.randn(4, 10_000)
    compiled: Any = torch.compile(model, backend="umd", options={"device": plain, "strict": True})
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        torch.manual_seed(5)
        wanted, state = compiled(x), torch.get_rng_state()
        model.weight.data.mul_(2)
        torch.manual_seed(5)
        assert torch.equal(compiled(x), 2 * wanted)
        assert torch.equal(torch.get_rng_state(), state)
    assert counters.stale == 1


def test_in_a_training_forward(plain: str) -> None:
    """What backward gets of a call that was done again is of the second time."""
    first = nn.Linear(64, 300)
    ours = nn.Sequential(first, nn.Tanh(), nn.Linear(300, 3))
    x = torch.randn(5, 64)
    compiled: Any = torch.compile(ours, backend="umd", options={"device": plain, "strict": True})
    for _ in range(2):
        compiled(x).square().sum().backward()
    ours.zero_grad()
    first.weight.data.mul_(-2)
    compiled(x).square().sum().backward()
    found = [p.grad for p in ours.parameters()]
    ours.zero_grad()
    ours(x).square().sum().backward()
    for mine, parameter in zip(found, ours.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)
    assert counters.stale == 1


def test_parameters_that_are_replaced(plain: str) -> None:
    """A copy is used for the tensor that it was made of alone: freed memory that comes back is no such tensor."""
    layer = nn.Linear(300, 300, bias=False)
    compiled: Any = torch.compile(layer, backend="umd", options={"device": plain, "strict": True})
    x = torch.randn(2, 300)
    with torch.no_grad():
        for number in range(6):
            layer.weight.data = torch.full((300, 300), float(number))
            torch.testing.assert_close(compiled(x), layer(x))
            torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("where", ["plain", "remote"])
def test_an_error_of_what_was_there_before(where: str, plain: str) -> None:
    """What has failed once is mended without a count: the old bytes' error is not the call's."""
    table, row = nn.Embedding(5, 3), nn.Module()
    row.register_buffer("place", torch.tensor([1]))

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.row = table, row

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = x + self.table(self.row.place)
            return found

    model, x = Looking(), torch.randn(1, 3)
    with contextlib.ExitStack() as stack:
        device = plain if where == "plain" else f"grpc://{stack.enter_context(served())}/sim:0"
        compiled: Any = torch.compile(model, backend="umd", options={"device": device, "strict": True})
        place: torch.Tensor = row.get_buffer("place")
        with torch.no_grad():
            compiled(x)
            place.data.fill_(7)
            for _ in range(2):
                with pytest.raises(IndexRangeError, match="7 is outside"):
                    compiled(x)
            place.data.fill_(2)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x))
        if where == "remote":
            session_for(device).close()
