"""What fails while a program runs, as torch fails: assertions, division by 0, numbers that no distribution has."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional

import umd_torch
from tests.torch.asserting import Asserting, asserting_beside_the_cpu, only_asserting
from umd_core.errors import IndexRangeError, UnsupportedError
from umd_model import load
from umd_model.session import Session as ModelSession
from umd_torch import counters, export, train_step
from umd_torch.partition import FallbackWarning

DEVICE = umd_torch.connect("sim:0")
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(5))

pytestmark = pytest.mark.filterwarnings("ignore:.*(torch.jit|isinstance|treespec|LeafSpec):")  # torch's, of itself


def compiled(function: Any, *, strict: bool = True) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="umd", options={"device": "sim:0", "strict": strict})


# assertions


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("function", [Asserting(), only_asserting], ids=["layer", "alone"])
def test_assertions(function: Callable[..., torch.Tensor], strict: bool) -> None:
    call = compiled(function, strict=strict)
    torch.testing.assert_close(call(X), function(X))
    assert not counters.fallbacks
    with pytest.raises(IndexRangeError, match=r"'assertion: far too small' from .*asserting.py:\d+"):
        call(X - 1000)
    torch.testing.assert_close(call(X), function(X))


@pytest.mark.filterwarnings("ignore::umd_torch.FallbackWarning")
def test_assertions_on_what_the_cpu_computes() -> None:
    call = compiled(asserting_beside_the_cpu, strict=False)
    torch.testing.assert_close(call(X), asserting_beside_the_cpu(X))
    assert list(counters.fallbacks) == ["aten.i0.default"]
    with pytest.raises(IndexRangeError, match="far too small"):
        call(X * math.nan)


def test_a_gradient_of_what_asserts() -> None:
    model = Asserting()
    call = compiled(model)
    call(X).sum().backward()
    assert model.layer.weight.grad is not None
    with pytest.raises(IndexRangeError, match="far too small"):
        call(X - 1000).sum().backward()


def picking(x: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2, functional.embedding(index, weight) + 1, x + 1


def multiples(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2, x * 3


def test_what_has_failed_spoils_no_other_program(plain: str) -> None:
    """Bytes that a failed program left spoilt, and gaps between results that nothing writes, come to no other."""
    for device in ("sim:0", plain):
        options: Any = {"device": device, "strict": True}
        for size in (20, 40):
            torch._dynamo.reset()
            failing: Any = torch.compile(picking, backend="umd", options=options)
            with pytest.raises(IndexRangeError):
                failing(torch.randn(size), torch.randn(3, size), torch.tensor([5]))
            del failing
            for times in (1, 2):
                torch._dynamo.reset()
                x = torch.randn(size * times)
                call: Any = torch.compile(multiples, backend="umd", options=options)
                assert torch.equal(call(x)[1], x * 3)


class Checking(Asserting):
    """The same with torch's own op, which needs no branch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > -100).all(), "far too small")
        y: torch.Tensor = self.layer(x)
        return y


def test_whole_steps_and_files_that_assert(tmp_path: Path) -> None:
    model = Checking()
    step = train_step(model, functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1), device="sim:0")
    step(X, torch.zeros(5, 3))
    with pytest.raises(IndexRangeError, match="far too small"):
        step(X - 1000, torch.zeros(5, 3))
    export(model, (X,), tmp_path / "x.umd")
    session = ModelSession(load(tmp_path / "x.umd"), "sim:0")
    session.run({"x": X.numpy()})
    with pytest.raises(IndexRangeError, match="far too small"):
        session.run({"x": (X - 1000).numpy()})


def test_an_assertion_on_the_eager_device() -> None:
    torch._assert_async((X.to("umd") > -100).all(), "far too small")
    with pytest.raises((IndexRangeError, RuntimeError), match="far too small"):
        torch._assert_async((X.to("umd") > 100).all(), "far too small")
    assert not counters.fallbacks


# classes as rows


class OneHot(nn.Module):
    def forward(self, target: torch.Tensor) -> torch.Tensor:
        return functional.one_hot(target, 3).float()


CLASSES = [torch.tensor([0, 2]), torch.tensor([[1], [0]]), torch.tensor(2), torch.empty(0, dtype=torch.int64)]
WRONG = [torch.tensor([0, -1]), torch.tensor([3, 0])]


@pytest.mark.parametrize("target", CLASSES, ids=["row", "matrix", "number", "none"])
def test_one_hot(target: torch.Tensor) -> None:
    wanted = functional.one_hot(target, 3)
    assert torch.equal(compiled(lambda t: functional.one_hot(t, 3))(target), wanted)
    assert torch.equal(functional.one_hot(target.to("umd"), 3).cpu(), wanted)
    assert not counters.fallbacks


@pytest.mark.parametrize("target", WRONG, ids=["negative", "too-large"])
def test_one_hot_of_what_is_no_class(target: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Class values"):
        functional.one_hot(target, 3)
    for strict in (True, False):
        with pytest.raises(IndexRangeError, match="one_hot: Class values must be"):
            compiled(lambda t: functional.one_hot(t, 3), strict=strict)(target)
    with pytest.raises(IndexRangeError, match="is outside"):
        functional.one_hot(target.to("umd"), 3)
    export(OneHot(), (CLASSES[0],), tmp_path / "x.umd")
    session = ModelSession(load(tmp_path / "x.umd"), "sim:0")
    (result,) = session.run({"target": CLASSES[0].numpy()}).values()
    assert result.tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(IndexRangeError, match="one_hot: Class values must be"):
        session.run({"target": target.numpy()})


def dice(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (scores.softmax(1) - functional.one_hot(target, 3)).square().mean()
    return loss


def test_one_hot_in_a_loss() -> None:
    model = nn.Linear(4, 3)
    other = copy.deepcopy(model)
    step = train_step(model, dice, torch.optim.SGD(model.parameters(), 0.1), device="sim:0")
    target = torch.tensor([0, 2, 1, 1, 0])
    torch.testing.assert_close(step(X, target), dice(other(X), target).detach())
    with pytest.raises(IndexRangeError, match="one_hot"):
        step(X, target + 1)


# division

T = torch.tensor
DIVISIONS: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "floor": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor-mode": lambda x, y: torch.div(x, y, rounding_mode="floor"),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_by_zero(name: str, dtype: torch.dtype) -> None:
    function = DIVISIONS[name]
    x, y, zero = (torch.tensor(n, dtype=dtype) for n in ([7, 9], [2, 3], [2, 0]))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        function(x, zero)
    assert torch.equal(compiled(function)(x, y), function(x, y))
    assert torch.equal(function(x.to("umd"), y.to("umd")).cpu(), function(x, y))
    with pytest.raises(IndexRangeError, match="ZeroDivisionError"):
        compiled(function)(x, zero)
    with pytest.raises(IndexRangeError, match="ZeroDivisionError"):
        function(x.to("umd"), zero.to("umd"))


@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_by_a_zero_that_is_known(name: str) -> None:
    function, x = DIVISIONS[name], torch.tensor([7, 9])
    with pytest.raises(BackendCompilerFailed, match="ZeroDivisionError") as caught:
        compiled(lambda x: function(x, 0))(x)
    assert isinstance(caught.value.inner_exception, UnsupportedError)
    with pytest.warns(FallbackWarning, match="ZeroDivisionError"), pytest.raises(RuntimeError, match=r"^ZeroDivision"):
        compiled(lambda x: function(x, 0), strict=False)(x)


def test_a_divisor_that_is_known_is_not_looked_at() -> None:
    def launches(function: Callable[..., Any], *arguments: torch.Tensor) -> int:
        (graph,) = umd_torch.explain(function, *arguments, device="sim:0").graphs
        return graph.kernels.total()

    with torch.no_grad():
        assert launches(lambda x: x % 3, T([4])) == 1
        assert launches(lambda x: x / 0, T([4.0])) == 1
        assert launches(lambda x, y: x % y, T([4]), T([3])) > 1


NUMBERS = [2.5, -2.5, 0.0, -0.0, 7.0, -7.0, math.inf, -math.inf, math.nan, 1e-30]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_floats_divided_downwards(dtype: torch.dtype) -> None:
    x, y = (v.reshape(-1).to(dtype) for v in torch.meshgrid(T(NUMBERS), T([*NUMBERS, 0.1, -0.1, 2.0]), indexing="ij"))
    function = DIVISIONS["floor"]
    wanted = function(x, y)
    for found in (compiled(function)(x, y), function(x.to("umd"), y.to("umd")).cpu()):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        there = ~wanted.isnan()
        assert torch.equal(found.signbit()[there], wanted.signbit()[there])


# powers


@pytest.mark.filterwarnings("ignore::umd_torch.FallbackWarning")
def test_integers_to_negative_powers() -> None:
    for power in (-1, -2):
        with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
            T([2]) ** power
        with pytest.raises(BackendCompilerFailed, match="Integers to negative integer powers"):
            compiled(lambda x, power=power: x**power)(T([2]))
        with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
            T([2], device="umd") ** power
    bases, powers = T([2, 1, -1, -1, 0, 3, -2]), T([-1, -2, -3, -2, -1, 2, -3])
    for function in (torch.pow, lambda x, y: 2**y, lambda x, y: torch.pow(-1, y)):
        assert torch.equal(compiled(function)(bases, powers), function(bases, powers))
        assert torch.equal(function(bases.to("umd"), powers.to("umd")).cpu(), function(bases, powers))
    torch.testing.assert_close(compiled(lambda x: x**-1)(X), X**-1)


# numbers that no distribution has

DRAWN: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, torch.Tensor, str]] = {
    "multinomial": (lambda w: torch.multinomial(w, 1), T([0.5, 0.0]), T([-1.0, 0.5]), "element < 0"),
    "multinomial-inf": (lambda w: torch.multinomial(w, 1), T([0.5, 0.0]), T([math.inf, 0.5]), "element < 0"),
    "multinomial-nan": (lambda w: torch.multinomial(w, 2, True), T([0.5, 0.0]), T([math.nan, 0.5]), "element < 0"),
    "multinomial-rows": (
        lambda w: torch.multinomial(w, 1), T([[0.5], [1.0]]), T([[0.5], [0.0]]), "sum of probabilities <= 0",
    ),
    "bernoulli": (torch.bernoulli, T([0.0, 1.0]), T([0.0, 1.5]), "p_in >= 0 && p_in <= 1"),
    "bernoulli-nan": (torch.bernoulli, T([0.0, 1.0]), T([0.0, math.nan]), "p_in >= 0 && p_in <= 1"),
    "bernoulli_": (lambda p: torch.zeros_like(p).bernoulli_(p), T([0.0, 1.0]), T([0.0, -0.5]), "p_in >= 0"),
    "normal": (lambda s: torch.normal(s, s), T([0.0]), T([-1.0]), "std >= 0.0"),
    "normal-mean": (lambda s: torch.normal(2.0, s), T([0.0]), T([-1.0]), "std >= 0.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_what_no_distribution_has(name: str) -> None:
    function, right, wrong, message = DRAWN[name]
    wanted = function(right)  # nothing is left to chance here
    assert torch.equal(compiled(function)(right), wanted)
    assert torch.equal(function(right.to("umd")).cpu(), wanted)
    with pytest.raises(RuntimeError):
        function(wrong)
    with pytest.raises(IndexRangeError) as caught:
        compiled(function)(wrong)
    assert message in str(caught.value)
    with pytest.raises(IndexRangeError) as caught:
        function(wrong.to("umd"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone().bernoulli_(1.5), lambda x: x.clone().normal_(0, -1), lambda x: x.clone().uniform_(3, 1),
        lambda x: x.clone().exponential_(-1), lambda x: x.clone().geometric_(1.5),
        lambda x: x.clone().log_normal_(0, -1), lambda x: torch.normal(x, -1.0),
    ],
    ids=["bernoulli", "normal_", "uniform", "exponential", "geometric", "log_normal", "normal"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::umd_torch.FallbackWarning")
def test_known_numbers_that_no_distribution_has(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for strict in (True, False):
        with pytest.raises(Exception, match=r"but (found|got)|outside|below|above|less") as caught:
            compiled(function, strict=strict)(torch.ones(3))
        assert isinstance(caught.value, RuntimeError)  # torch's own, or its word for ours
    with pytest.raises(RuntimeError, match=r"but (found|got)"):
        function(torch.ones(3, device="umd"))


def test_counts_that_are_negative() -> None:
    def function(counts: torch.Tensor) -> torch.Tensor:
        return torch.repeat_interleave(counts, output_size=3)

    assert torch.equal(compiled(function)(T([1, 2])), function(T([1, 2])))
    with pytest.raises(IndexRangeError, match="repeats can not be negative"):
        compiled(function)(T([-1, 4]))


# losses


@pytest.mark.parametrize("which", ["input", "target"])
@pytest.mark.parametrize("value", [1.5, -0.1, math.nan])
def test_probabilities_outside_their_range(which: str, value: float) -> None:
    p, y = torch.rand(3, 2), torch.rand(3, 2)
    wanted = functional.binary_cross_entropy(p, y)
    torch.testing.assert_close(compiled(functional.binary_cross_entropy)(p, y), wanted)
    torch.testing.assert_close(functional.binary_cross_entropy(p.to("umd"), y.to("umd")).cpu(), wanted)
    (p if which == "input" else y)[1, 1] = value
    message = f"all elements of {which} should be between 0 and 1"
    with pytest.raises(RuntimeError, match=message):
        functional.binary_cross_entropy(p, y)
    with pytest.raises(IndexRangeError, match=message):
        compiled(functional.binary_cross_entropy)(p, y)
    with pytest.raises(IndexRangeError, match=message):
        functional.binary_cross_entropy(p.to("umd"), y.to("umd"))


def test_a_loss_of_probabilities_in_a_whole_step() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
    other, y = copy.deepcopy(model), torch.rand(5, 3)
    step = train_step(model, functional.binary_cross_entropy, torch.optim.SGD(model.parameters(), 0.1), device="sim:0")
    torch.testing.assert_close(step(X, y), functional.binary_cross_entropy(other(X), y).detach())
    with pytest.raises(IndexRangeError, match="all elements of target"):
        step(X, y + 1)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("rows", [True, False])
def test_classes_after_the_first_minus_one_do_not_count(rows: bool, reduction: str) -> None:
    x, target = torch.randn(3, 5), T([[3, 0, -1, 1, 1], [-1, 2, 2, 2, 2], [4, 4, 2, 0, 1]])

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.multilabel_margin_loss(x, target, reduction=reduction)

    for own, named in ((x, target),) if rows else zip(x, target, strict=True):
        first, second, third = (own.clone().requires_grad_() for _ in range(3))
        there = third.detach().to("umd").requires_grad_()
        wanted, found, eager = loss(first, named), compiled(loss)(second, named), loss(there, named.to("umd"))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(eager.cpu(), wanted)
        for result in (wanted, found, eager):
            (result * result).sum().backward()
        torch.testing.assert_close(second.grad, first.grad)
        assert there.grad is not None
        torch.testing.assert_close(there.grad.cpu(), first.grad)
    with pytest.raises(IndexRangeError):
        compiled(loss)(x, target + 1)
    assert not counters.fallbacks
