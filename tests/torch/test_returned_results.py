"""Results that come back as inputs of a later call: they stay on the device, as long as nobody changes them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from umd_torch import counters, parameters, session

WIDTH = 32


def compiled(function: Callable[..., Any], device: str) -> Any:
    return torch.compile(function, backend="umd", options={"device": device, "strict": True})


def advance(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state = torch.tanh(x + state * 0.5)
    return state.sum(1), state


def kept(device: str) -> int:
    """How many results the device keeps."""
    return len(session._SESSIONS[device].parameters._made)


def run(call: Any, steps: int, change: Callable[[int, torch.Tensor], Any] = lambda *_: None) -> list[torch.Tensor]:
    """Returns the sums of steps whose state goes from one to the next."""
    torch.manual_seed(1)
    state, sums = torch.zeros(4, WIDTH), []
    with torch.no_grad():
        for step in range(steps):
            total, state = call(torch.randn(4, WIDTH), state)
            sums.append(total)
            change(step, state)
    return sums


def test_a_state_is_sent_until_it_came_back_once(plain: str) -> None:
    call = compiled(advance, plain)
    size = 4 * WIDTH * 4
    sent = []
    counters.reset()

    def note(step: int, state: torch.Tensor) -> None:
        sent.append(counters.bytes_up)
        counters.bytes_up = 0

    torch.testing.assert_close(run(call, 6, note), run(advance, 6))
    assert sent == [2 * size, 2 * size, size, size, size, size]
    assert counters.returned == 4
    assert (counters.round_trips, counters.stale) == (6, 0)


@pytest.mark.parametrize(
    "change",
    [lambda s: s.add_(1), lambda s: s.data.mul_(2), lambda s: s.numpy().__setitem__((0, 0), 9.0)],
    ids=["in place", "data", "numpy"],
)
def test_a_state_that_was_changed_is_sent(change: Callable[[torch.Tensor], Any], plain: str) -> None:
    call = compiled(advance, plain)

    def sometimes(step: int, state: torch.Tensor) -> None:
        if step % 2:
            change(state)

    torch.testing.assert_close(run(call, 8, sometimes), run(advance, 8, sometimes))
    assert counters.returned == 3  # after the first, those of even steps


def test_inference_mode_compares_bytes(plain: str) -> None:
    call = compiled(advance, plain)
    with torch.inference_mode():
        got = run(call, 4)
        wanted = run(advance, 4)
        torch.testing.assert_close(got, wanted)
    assert counters.returned == 2


def test_a_view_of_another_shape_is_not_mistaken(plain: str) -> None:
    call = compiled(advance, plain)
    run(call, 4)
    with torch.no_grad():
        _, state = call(torch.ones(4, WIDTH), torch.ones(4, WIDTH))
        x = torch.randn(WIDTH, 4)
        torch.testing.assert_close(call(x, state.view(WIDTH, 4)), advance(x, state.view(WIDTH, 4)))
        torch.testing.assert_close(call(x, state.t()), advance(x, state.t()))
        half = torch.randn(2, WIDTH)
        torch.testing.assert_close(call(half, state[2:]), advance(half, state[2:]))


def test_what_is_gone_or_too_much_is_forgotten(plain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = compiled(advance, plain)
    run(call, 5)
    gc.collect()
    assert kept(plain) <= 2  # the last, and the one before it whose bytes are still bound to nothing
    held: list[torch.Tensor] = []
    run(call, 8, lambda _, state: held.append(state))
    assert kept(plain) >= 8
    monkeypatch.setattr(parameters, "_MADE_BYTES", 4096)
    torch.testing.assert_close(run(call, 8, lambda _, state: held.append(state)), run(advance, 8))
    assert kept(plain) < 8
    with torch.no_grad():  # the oldest, which has been forgotten
        torch.testing.assert_close(call(torch.ones(4, WIDTH), held[0]), advance(torch.ones(4, WIDTH), held[0]))


def test_results_that_share_bytes_may_be_changed_apart(plain: str) -> None:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y + 0

    def change(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a + b

    first, second = compiled(twice, plain), compiled(change, plain)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3, WIDTH)
            a, b = first(x)
            total = second(a, b)
            torch.testing.assert_close((a, b, total), (2 * x + 1, 2 * x, 4 * x + 1))
            torch.testing.assert_close(second(a, b), 4 * x + 2)


def test_what_backward_needs_is_not_changed_with_a_result(plain: str) -> None:
    """A result that came back is changed by a program; the gradient is of what forward had."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)

    def change(y: torch.Tensor) -> torch.Tensor:
        y.mul_(0)
        return y + 1

    call, other = compiled(forward, plain), compiled(change, plain)
    for _ in range(4):
        x = torch.randn(3, WIDTH, requires_grad=True)
        y = call(x)
        other(y.detach())
        try:
            (got,) = torch.autograd.grad(y, x, torch.ones_like(y))
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)  # torch may find it out, or not
        else:
            s = torch.sigmoid(x.detach())
            torch.testing.assert_close(got, s * (1 - s))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, from its compiled optimizers
def test_gradients_stay_for_a_compiled_optimizer(plain: str) -> None:
    """Only the batch travels up, once the optimizer's program has been given gradients."""
    torch.manual_seed(0)
    model, theirs = nn.Linear(64, 64), nn.Linear(64, 64)
    theirs.load_state_dict(model.state_dict())
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, theirs))
    call, update = compiled(model, plain), compiled(optimizer.step, plain)
    sent = []
    for _ in range(5):
        x = torch.randn(8, 64)
        before = counters.bytes_up
        call(x).square().mean().backward()
        update()
        optimizer.zero_grad()
        sent.append(counters.bytes_up - before)
        theirs(x).square().mean().backward()
        other.step()
        other.zero_grad()
    torch.testing.assert_close(dict(model.named_parameters()), dict(theirs.named_parameters()))
    assert max(sent[3:]) < 2 * 8 * 64 * 4 + 1024  # the batch and the loss's gradient, no parameter and no gradient
