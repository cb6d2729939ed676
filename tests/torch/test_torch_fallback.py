"""What the device cannot run: split off, counted, said once, refused when strict."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import umd_torch
from umd_core.device import Caps
from umd_core.dtypes import DType
from umd_core.errors import UnsupportedError
from umd_sim.device import SimDevice
from umd_sim.options import Options
from umd_torch import FallbackWarning, counters
from umd_torch.session import Session

Choice = dict[str, Any]
SIM: Choice = {"device": "sim:0"}
STRICT: Choice = {**SIM, "strict": True}


def middle_on_the_cpu(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).relu()
    middle = torch.i0(y)  # no lowering
    return middle.exp() + y


def test_the_rest_runs_on_the_cpu_counted_and_said() -> None:
    compiled = torch.compile(middle_on_the_cpu, backend="umd", options=SIM)
    x = torch.randn(3, 4)
    with pytest.warns(FallbackWarning, match=r"aten\.i0.*test_torch_fallback\.py:\d+.*strict.*FallbackWarning") as said:
        torch.testing.assert_close(compiled(x), middle_on_the_cpu(x))
    assert len(said) == 1
    assert counters.fallbacks == {"aten.i0.default": 1}
    assert counters.submissions == 2
    compiled(x)
    assert counters.fallbacks == {"aten.i0.default": 2}


def test_an_op_is_said_once() -> None:
    with pytest.warns(FallbackWarning):
        torch.compile(middle_on_the_cpu, backend="umd", options=SIM)(torch.randn(3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(lambda v: torch.i0(v) + 1, backend="umd", options=SIM)(torch.randn(5))


def test_strict_names_the_node_and_its_line() -> None:
    with pytest.raises(BackendCompilerFailed) as caught:
        torch.compile(middle_on_the_cpu, backend="umd", options=STRICT)(torch.randn(3, 4))
    error = caught.value.inner_exception
    assert isinstance(error, UnsupportedError)
    facts = error.facts()
    assert facts["op"] == "aten.i0.default"
    assert facts["node"] == "i0"
    assert "test_torch_fallback.py:" in facts["source"]
    assert not counters.fallbacks


def test_training_through_parts_on_the_cpu(plain: str) -> None:
    layers = [nn.Linear(6, 8), nn.Linear(8, 3)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1])

    def loss(f: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        hidden = layers[0](x).relu()
        result: torch.Tensor = (f(hidden) * layers[1](hidden).sum(1, keepdim=True)).sum()
        return result

    def function(x: Any) -> Any:
        return loss(torch.i0, x)

    x = torch.randn(4, 6)
    wanted = torch.autograd.grad(function(x), list(model.parameters()))
    compiled: Any = torch.compile(function, backend="umd", options={"device": plain})
    with pytest.warns(FallbackWarning, match="i0|i1"):
        got = torch.autograd.grad(compiled(x), list(model.parameters()))
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_types_that_the_device_does_not_know() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.fft(x + 1)).sum(-1) * 2

    x = torch.randn(8)
    with pytest.warns(FallbackWarning) as said:
        got = torch.compile(function, backend="umd", options=SIM)(x)
    assert {str(w.message).partition(" ")[0] for w in said} == {"aten._fft_r2c.default", "aten.view_as_real.default"}
    torch.testing.assert_close(got, function(x))


def test_what_draws_on_the_cpu_draws_what_torch_draws() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.poisson(x.exp()) + 1

    x = torch.randn(4, 5)
    torch.manual_seed(7)
    wanted = function(x)
    compiled = torch.compile(function, backend="umd", options=SIM)
    torch.manual_seed(7)
    with pytest.warns(FallbackWarning, match="poisson"):
        assert torch.equal(compiled(x), wanted)


def test_a_graph_with_nothing_for_the_device() -> None:
    with pytest.warns(FallbackWarning, match="i0"):
        result = torch.compile(lambda x: torch.i0(x), backend="umd", options=SIM)(torch.zeros(3))
    torch.testing.assert_close(result, torch.ones(3))
    assert counters.submissions == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).t().as_strided((2, 2), (1, 3), 1), lambda x: (x + 1)[1:].as_strided((2, 2), (2, 1), 3) * 2,
        lambda x: x[:, 1:].as_strided((2, 2), (1, 1)) + 1,
    ],
    ids=["transposed", "sliced", "argument"],
)  # fmt: skip
def test_what_looks_at_the_storage_behind_a_view(function: Any) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        compiled: Any = torch.compile(function, backend="umd", options=SIM)
        torch.testing.assert_close(compiled(x), function(x))


def test_a_negative_view_is_no_plain_bytes() -> None:
    x = torch.randn(4, dtype=torch.complex64)

    def function(v: Any) -> Any:
        return v.conj().imag + 1

    compiled: Any = torch.compile(function, backend="umd", options=SIM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        torch.testing.assert_close(compiled(x), function(x))
    negative = x.conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(torch.compile(lambda v: v * 3, backend="umd", options=STRICT)(negative), negative * 3)


class _Poor(SimDevice):
    """A simulator without tanh, decomposed or not."""

    def caps(self) -> Caps:
        full = super().caps()
        kernels: dict[str, frozenset[tuple[DType, ...]] | None] = dict(full.kernels)
        del kernels["elementwise_tanh_kernel"]
        return dataclasses.replace(full, kernels=kernels)


@pytest.fixture
def poor(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    device = _Poor(Options())
    monkeypatch.setitem(umd_torch.session._SESSIONS, "poor:0", Session("poor:0", device))
    yield "poor:0"
    device.close()


def test_a_kernel_that_the_device_lacks(poor: str) -> None:
    def function(x: Any) -> Any:
        return (x + 1).tanh() * x.tanh()

    x = torch.randn(4)
    compiled: Any = torch.compile(function, backend="umd", options={"device": poor})
    with pytest.warns(FallbackWarning, match="aten.tanh.*does not have it"):
        got = compiled(x)
    torch.testing.assert_close(got, function(x))
    assert counters.fallbacks == {"aten.tanh.default": 2}
    with pytest.raises(BackendCompilerFailed, match="tanh"):
        torch.compile(lambda v: v.tanh(), backend="umd", options={"device": poor, "strict": True})(x)
