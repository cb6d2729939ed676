"""Products, convolutions, pools and normalisations beside torch, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

aten = torch.ops.aten
Check = Callable[..., None]


def with_gradients(function: Callable[..., torch.Tensor], count: int = 9) -> Callable[..., Any]:
    """Returns a function that gives the result and the gradient of its weighted sum for the first floating inputs."""

    def both(*inputs: torch.Tensor) -> Any:
        positions = [i for i, x in enumerate(inputs) if x.is_floating_point()][:count]

        def of_floats(*floats: torch.Tensor) -> torch.Tensor:
            arguments = list(inputs)
            for position, value in zip(positions, floats, strict=True):
                arguments[position] = value
            return function(*arguments)

        pulled: Any = torch.func.vjp(of_floats, *(inputs[i] for i in positions))
        result, pull = pulled
        weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
        return [result, *pull(weights)]

    return both


@settings(max_examples=12)
@given(data=st.data())
def test_products(data: st.DataObject, same: Check) -> None:
    m, k, n, z = (data.draw(st.integers(1, 4)) for _ in range(4))
    flip = data.draw(st.booleans())
    a = torch.randn(z, k, m).transpose(1, 2) if flip else torch.randn(z, m, k)
    b = torch.randn(z, k, n)
    same(torch.bmm, a, b)
    same(torch.mm, a[0], b[0])
    same(lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2), torch.randn(n), a[0], b[0])
    same(lambda x, y: (x @ y[0], torch.mv(x[0], y[0, :, 0]), torch.dot(x[0, 0], y[0, :, 0])), a, b)


def test_products_of_integers_and_without_bias(same: Check) -> None:
    same(torch.mm, torch.arange(6).reshape(2, 3), torch.arange(6).reshape(3, 2))
    same(
        lambda c, x, y: torch.addmm(c, x, y, beta=0), torch.tensor([float("nan")]), torch.randn(2, 3), torch.randn(3, 4)
    )
    same(with_gradients(functional.linear), torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5))
    same(lambda a, b: torch.einsum("bij,bkj->bik", a, b), torch.randn(2, 3, 4), torch.randn(2, 5, 4))


@pytest.mark.parametrize("spatial", [1, 2, 3])
@settings(max_examples=12)
@given(data=st.data())
def test_convolutions(spatial: int, data: st.DataObject, same: Check) -> None:
    groups = data.draw(st.sampled_from([1, 2]))
    stride, padding, dilation = (data.draw(st.integers(low, 2)) for low in (1, 0, 1))
    kernel = data.draw(st.integers(1, 3))
    size = (kernel - 1) * dilation + 1 + data.draw(st.integers(0, 2))
    x = torch.randn(2, 2 * groups, *(size,) * spatial)
    w = torch.randn(2 * groups, 2, *(kernel,) * spatial)
    bias = torch.randn(2 * groups)
    convolution = getattr(functional, f"conv{spatial}d")
    same(with_gradients(lambda a, b, c: convolution(a, b, c, stride, padding, dilation, groups)), x, w, bias)


@pytest.mark.parametrize(
    ("stride", "padding", "extra", "groups"), [(1, 0, 0, 1), (2, 1, 1, 1), (2, 0, 0, 2), (3, 1, 2, 1), (3, 0, 2, 1)]
)
def test_transposed_convolutions(stride: int, padding: int, extra: int, groups: int, same: Check) -> None:
    x, w, bias = torch.randn(2, 4, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(3 * groups)
    same(
        with_gradients(lambda a, b, c: functional.conv_transpose2d(a, b, c, stride, padding, extra, groups)),
        x, w, bias, atol=2e-5,
    )  # fmt: skip


@settings(max_examples=12)
@given(data=st.data())
def test_max_pools(data: st.DataObject, same: Check) -> None:
    kernel = data.draw(st.integers(1, 3))
    padding = data.draw(st.integers(0, kernel // 2))
    stride, dilation, ceil = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2)), data.draw(st.booleans())
    x = torch.randn(2, 3, 7, 6)
    same(lambda v: functional.max_pool2d(v, kernel, stride, padding, dilation, ceil, return_indices=True), x)
    same(with_gradients(lambda v: functional.max_pool2d(v, kernel, stride, padding, dilation, ceil)), x)


def test_pools_without_batch_and_of_equal_numbers(same: Check) -> None:
    same(lambda v: functional.max_pool2d(v, 2, return_indices=True), torch.ones(3, 4, 4))
    same(with_gradients(lambda v: functional.max_pool2d(v, 3, 1, 1)), torch.zeros(1, 1, 4, 4))
    same(lambda v: functional.avg_pool2d(v, 2), torch.randn(3, 4, 4))
    same(with_gradients(lambda v: functional.max_pool3d(v, 2)), torch.randn(1, 2, 4, 4, 4))
    same(with_gradients(lambda v: functional.max_pool1d(v, 2)), torch.randn(2, 3, 6))


@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("ceil", [True, False])
def test_average_pools(inclusive: bool, ceil: bool, same: Check) -> None:
    def pool(v: Any) -> Any:
        return functional.avg_pool2d(v, 3, 2, 1, ceil, inclusive)

    same(with_gradients(pool), torch.randn(2, 3, 7, 6))


@pytest.mark.parametrize("size", [1, (2, 3), (6, 6)])
def test_adaptive_pools(size: Any, same: Check) -> None:
    same(with_gradients(lambda v: functional.adaptive_avg_pool2d(v, size)), torch.randn(2, 3, 6, 6))


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax], ids=["softmax", "log_softmax"])
@settings(max_examples=12)
@given(data=st.data())
def test_softmax(function: Callable[..., Any], data: st.DataObject, same: Check) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    same(with_gradients(lambda x: function(x, axis)), torch.randn(shape) * 3)


def test_softmax_of_halves(same: Check) -> None:
    same(lambda x: torch.softmax(x, 1), torch.randn(3, 5).bfloat16(), rtol=2e-2)
    same(lambda x: torch.softmax(x, 1, dtype=torch.float32), torch.randn(3, 5).half(), rtol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(reduction: str, smoothing: float, same: Check) -> None:
    target = torch.tensor([1, 0, 3, -100, 2])

    def loss(x: Any, t: Any) -> Any:
        return functional.cross_entropy(x, t, reduction=reduction, label_smoothing=smoothing)

    same(with_gradients(loss), torch.randn(5, 4), target)
    weighted = with_gradients(lambda x, t, w: functional.cross_entropy(x, t, w), count=1)
    same(weighted, torch.randn(5, 4), target, torch.rand(4))


@pytest.mark.parametrize(
    "loss",
    [
        functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss,
        functional.binary_cross_entropy_with_logits, functional.soft_margin_loss,
        lambda x, y: functional.kl_div(torch.log_softmax(x, 1), torch.softmax(y, 1), reduction="batchmean"),
    ],
    ids=["mse", "l1", "smooth_l1", "huber", "bce", "soft_margin", "kl"],
)  # fmt: skip
def test_losses(loss: Callable[..., torch.Tensor], same: Check) -> None:
    same(with_gradients(loss, count=1), torch.randn(4, 3), torch.rand(4, 3))


def test_layer_norm(same: Check) -> None:
    x, w, bias = torch.randn(2, 3, 4, 5), torch.randn(4, 5), torch.randn(4, 5)
    same(with_gradients(lambda v, a, b: functional.layer_norm(v, (4, 5), a, b)), x, w, bias, rtol=1e-4, atol=1e-5)
    same(with_gradients(lambda v: functional.layer_norm(v, (5,))), x, rtol=1e-4, atol=1e-5)


def test_group_norm(same: Check) -> None:
    x, w, bias = torch.randn(2, 6, 3, 3), torch.randn(6), torch.randn(6)
    same(with_gradients(lambda v, a, b: functional.group_norm(v, 3, a, b)), x, w, bias, rtol=1e-4, atol=1e-5)
    same(
        with_gradients(lambda v, a, b: functional.instance_norm(v, None, None, a, b)), x, w, bias, rtol=1e-4, atol=1e-5
    )


def test_batch_norm(same: Check) -> None:
    x, w, bias, mean, var = torch.randn(4, 3, 5, 5), torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3) + 0.5
    norm = aten._native_batch_norm_legit_functional
    same(lambda *a: norm(*a, True, 0.1, 1e-5), x, w, bias, mean, var, rtol=1e-4, atol=1e-5)
    same(lambda v, m, s: aten._native_batch_norm_legit_no_training(v, None, None, m, s, 0.1, 1e-5)[0], x, mean, var)

    def train(v: Any, a: Any, b: Any) -> Any:
        return functional.batch_norm(v, None, None, a, b, training=True)

    same(with_gradients(train), x, w, bias, rtol=1e-4, atol=2e-5)


def test_batch_norm_gradient_by_running_statistics(same: Check) -> None:
    x, w, mean, var = torch.randn(4, 3, 5), torch.randn(3), torch.randn(3), torch.rand(3) + 0.5

    def gradient(dy: Any, v: Any, a: Any, m: Any, s: Any) -> Any:
        return aten.native_batch_norm_backward(dy, v, a, m, s, None, None, False, 1e-5, [True, True, True])

    same(gradient, torch.randn(4, 3, 5), x, w, mean, var, rtol=1e-4, atol=1e-5)


def test_attention(same: Check) -> None:
    q, k, v = (torch.randn(2, 2, 5, 4) for _ in range(3))

    def attend(a: Any, b: Any, c: Any) -> Any:
        return functional.scaled_dot_product_attention(a, b, c, is_causal=True)

    same(with_gradients(attend), q, k, v)
