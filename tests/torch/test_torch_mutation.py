"""What is changed in place, looked at through views, varies from call to call, or cannot be: beside torch's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from umd_core.errors import UnsupportedError
from umd_torch import FallbackWarning, counters
from umd_torch.compiled import SIZES, CompiledGraph

Function = Callable[..., Any]


def compiled(function: Any, device: str, **options: Any) -> Any:
    return torch.compile(function, backend="umd", options={"device": device, "strict": True}, **options)


@pytest.fixture(params=["sim:0", "plain:0"])
def device(request: pytest.FixtureRequest, plain: str) -> str:
    """A device that sees host memory, and one that does not."""
    return str(request.param)


def swap(a: torch.Tensor, b: torch.Tensor) -> None:
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)


def chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.copy_(b)
    b.add_(1)
    return a * b


def through_a_view(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.t()[1:].mul_(2)
    return a + b


def one_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a[1] = b[0]
    return a.sum()


def filled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.fill_(2.0)
    return b + 1


def scattered(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a.index_put_((torch.tensor([0, 2]),), b[:2])
    b.scatter_(0, torch.zeros(1, 3, dtype=torch.int64), a[1:2])
    return a, b.exp()


@pytest.mark.parametrize("function", [swap, chain, through_a_view, one_row, filled, scattered])
def test_inputs_changed_in_place(function: Any, device: str) -> None:
    call = compiled(function, device)
    make: Any
    for make in (lambda: torch.randn(3, 3), lambda: torch.randn(3, 3).t(), lambda: torch.randn(6, 3)[::2]):
        a, b = make(), make()
        theirs = (a.clone(memory_format=torch.preserve_format), b.clone(memory_format=torch.preserve_format))
        version = a._version
        torch.testing.assert_close(call(a, b), function(*theirs))
        torch.testing.assert_close((a, b), theirs)
        assert a._version > version  # so that autograd notices who saved it


def test_inputs_of_inference_mode_have_no_version(device: str) -> None:
    with torch.inference_mode():
        a, b = torch.randn(3, 3), torch.randn(3, 3)
        call, wanted = compiled(one_row, device), a.clone()
        one_row(wanted, b), call(a, b)
        assert torch.equal(a, wanted)


def test_one_input_given_twice_and_views_of_one_base(device: str) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    call_with: Any
    for call_with in (lambda x: (x, x), lambda x: (x[:4], x[2:6]), lambda x: (x[::2], x[1::2])):
        call = compiled(function, device)
        mine, theirs = torch.arange(6.0), torch.arange(6.0)
        torch.testing.assert_close(call(*call_with(mine)), function(*call_with(theirs)))
        torch.testing.assert_close(mine, theirs)


def test_overlapping_memory_is_torch_s_error_or_right(device: str) -> None:
    x = torch.arange(3.0).expand(4, 3)
    torch.testing.assert_close(compiled(lambda v: v * 2 + 1, device)(x), x * 2 + 1)
    sliding = torch.arange(8.0).as_strided((4, 3), (1, 1))
    torch.testing.assert_close(compiled(lambda v: v * 2, device)(sliding), sliding * 2)
    with pytest.raises(RuntimeError, match="more than one element"):
        compiled(lambda v: v.add_(1), device)(torch.arange(3.0).expand(4, 3))


def test_changes_in_place_with_parts_on_the_cpu(device: str) -> None:
    def function(x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.special.i1(x * 2) + b
        b.add_(1)
        x.t().mul_(3)
        return y.exp(), b

    call: Any = torch.compile(function, backend="umd", options={"device": device})
    x, b = torch.rand(2, 3), torch.ones(3)
    theirs = (x.clone(), b.clone())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        found = call(x, b)
    torch.testing.assert_close(found, function(*theirs))
    torch.testing.assert_close((x, b), theirs)
    assert found[1] is b


def test_a_small_view_of_a_large_base(plain: str) -> None:
    base = torch.zeros(100_000, 250)  # 100 MB
    function = compiled(lambda v: v[:2] + 1, plain)
    assert torch.equal(function(base[:8]), torch.ones(2, 250))
    assert counters.bytes_up == 8000
    flat = base.view(-1)
    counters.reset()
    assert torch.equal(compiled(lambda v: v + 1, plain)(flat[:250]), torch.ones(250))
    assert counters.bytes_up == 1000


def test_buffers_that_training_changes_are_sent_once(plain: str) -> None:
    model = nn.BatchNorm1d(4)
    reference = nn.BatchNorm1d(4)
    call = compiled(model, plain)
    for step in range(4):
        x = torch.randn(5, 4)
        torch.testing.assert_close(call(x), reference(x))
        if not step:
            counters.reset()
    assert counters.uploads == 0
    for mine, theirs in zip(model.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


# what varies


def test_floats_are_arguments(device: str) -> None:
    function = compiled(lambda x, f: x * f + f, device, dynamic=True)
    for factor in (0.1, 1 / 3, -2.5, 1e30):
        x = torch.randn(3, dtype=torch.float64)
        torch.testing.assert_close(function(x, factor), x * factor + factor, rtol=1e-15, atol=0)
    assert counters.programs <= 2  # torch may specialise the first


def test_sizes_that_are_expressions(device: str) -> None:
    def function(x: Any, y: Any) -> Any:
        return (torch.cat([x, x, y]).reshape(-1, 2), x.new_zeros(2 * x.shape[0] + 1), x.shape[0] * 3)

    call = compiled(function, device, dynamic=True)
    for rows in (2, 4, 6, 4):
        x, y = torch.randn(rows), torch.randn(2)
        torch.testing.assert_close(call(x, y), function(x, y))
    assert counters.programs == 3


def test_programs_of_many_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CompiledGraph] = []
    original = CompiledGraph.__init__

    def note(self: CompiledGraph, *args: Any, **kwargs: Any) -> None:
        seen.append(self)
        original(self, *args, **kwargs)

    monkeypatch.setattr(CompiledGraph, "__init__", note)
    call = compiled(lambda x: x + 1, "sim:0", dynamic=True)
    for rows in range(2, SIZES + 12):
        assert torch.equal(call(torch.zeros(rows)), torch.ones(rows))
    assert len(seen) == 1
    assert len(seen[0]._runners) == SIZES


def test_recompiles_are_counted() -> None:
    call = compiled(lambda x: x * 2, "sim:0", dynamic=False)
    call(torch.zeros(2)), call(torch.zeros(2))
    assert counters.recompiles == 0
    call(torch.zeros(3)), call(torch.zeros(2, dtype=torch.float64))
    assert counters.recompiles == 2


# what cannot be


def test_shapes_that_depend_on_data() -> None:
    def function(x: Any) -> Any:
        return (x[x > 0] * 2).sum()

    x = torch.tensor([1.0, -1.0, 2.0])
    with pytest.raises(BackendCompilerFailed, match="depends on data") as caught:
        compiled(function, "sim:0", fullgraph=True)(x)
    assert isinstance(caught.value.inner_exception, UnsupportedError)
    torch._dynamo.reset()
    assert compiled(function, "sim:0")(x) == 6  # torch makes two graphs, and selects between them itself
    torch._dynamo.reset()
    captured = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with captured, pytest.raises(BackendCompilerFailed, match="depends on data"):
        compiled(function, "sim:0")(x)


def test_gradients_of_integers_and_second_derivatives() -> None:
    with pytest.raises(RuntimeError, match="floating point"):
        torch.arange(3).requires_grad_()
    x = torch.randn(3, requires_grad=True)
    y = compiled(lambda v: (v**3).sum(), "sim:0")(x)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    torch.testing.assert_close(first, 3 * x.detach() ** 2)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.sum(), x)


def test_a_saved_input_that_is_changed_is_torch_s_error() -> None:
    def function(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x * b
        with torch.no_grad():
            b.add_(1)
        return y

    with pytest.raises(BackendCompilerFailed, match="modified by an inplace operation"):
        compiled(function, "sim:0")(torch.randn(3, requires_grad=True), torch.ones(3))


def test_tensors_of_other_devices() -> None:
    with pytest.raises((BackendCompilerFailed, RuntimeError), match="meta"):
        compiled(lambda x, y: x + y, "sim:0")(torch.ones(2), torch.ones(2, device="meta"))
