"""Normalising ops and their gradients against torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.nn_cases import PATHS, Array, close, floats, run_graph, tensors, wide
from tests.core.recipe_interpreter import launches
from umd_core import dtypes
from umd_core.dtypes import DType, float32
from umd_core.ir import TensorDesc
from umd_core.shaping import accumulator

_F = torch.nn.functional
EPSILON = 1e-3


@st.composite
def shapes(draw: st.DrawFn, least: int = 2, most: int = 4) -> list[int]:
    return draw(st.lists(st.integers(1, 4), min_size=least, max_size=most))


def sizes(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns, with axes kept, 1 / sqrt(variance + EPSILON) and the size of numbers that y's error comes from."""
    rstd = (x.var(axes, correction=0, keepdim=True) + EPSILON).rsqrt()
    return rstd, (x.abs() + x.abs().amax(axes, keepdim=True)) * rstd


def check_statistics(mean: Array, rstd: Array, x: torch.Tensor, axes: tuple[int, ...], dtype: DType) -> None:
    wanted, _ = sizes(x, axes)
    largest = x.abs().amax(axes, keepdim=True)
    close(mean, x.mean(axes, keepdim=True).reshape(mean.shape), dtype, largest.reshape(mean.shape))
    close(rstd, wanted.reshape(rstd.shape), dtype, (wanted * (1 + largest * wanted)).reshape(rstd.shape), 64)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40)
@given(data=st.data(), shape=shapes(1), dtype=floats(), with_bias=st.booleans())
def test_layer_normalization(path: str, data: st.DataObject, shape: list[int], dtype: DType, with_bias: bool) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    inner = shape[axis:]
    x, scale = data.draw(tensors(shape, dtype)), data.draw(tensors(inner, dtype))
    bias = data.draw(tensors(inner, dtype)) if with_bias else None
    got, mean, rstd = PATHS[path]("LayerNormalization", [x, scale, bias], {"axis": axis, "epsilon": EPSILON}, 3)
    axes = tuple(range(len(shape) - len(inner), len(shape)))
    size = sizes(wide(x), axes)[1] * wide(scale).abs()
    want = _F.layer_norm(wide(x), inner, wide(scale), None, EPSILON)
    if bias is not None:
        want, size = want + wide(bias), size + wide(bias).abs()
    close(got, want, dtype, size, 64)
    check_statistics(mean, rstd, wide(x), axes, float32)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40)
@given(data=st.data(), shape=shapes(1), dtype=floats(), other=floats(), which=st.sampled_from(["", "s", "b", "sb"]))
def test_layer_norm_and_gradient(
    path: str, data: st.DataObject, shape: list[int], dtype: DType, other: DType, which: str
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    inner, axes = shape[axis:], tuple(range(axis, len(shape)))
    x = data.draw(tensors(shape, dtype))
    scale = data.draw(tensors(inner, other)) if "s" in which else None
    bias = data.draw(tensors(inner, other)) if "b" in which else None
    x64, s64, b64 = wide(x), torch.ones(inner, dtype=torch.float64), torch.zeros(inner, dtype=torch.float64)
    s64, b64 = s64 if scale is None else wide(scale), b64 if bias is None else wide(bias)
    for leaf in (x64, s64, b64):
        leaf.requires_grad_()
    run = PATHS[path]
    got, mean, rstd = run("umd.LayerNorm", [x, scale, bias], {"axis": axis, "epsilon": EPSILON}, 3)
    want = _F.layer_norm(x64, inner, s64, b64, EPSILON)
    size = sizes(x64, axes)[1] * s64.abs() + b64.abs()
    close(got, want, dtype, size, 64)
    check_statistics(mean, rstd, x64.detach(), axes, accumulator(dtype))
    dy = data.draw(tensors(shape, dtype))
    wanted = torch.autograd.grad(want, [x64, s64, b64], wide(dy))
    got_dx, got_ds, got_db = run("umd.LayerNormGrad", [dy, x, mean, rstd, scale], {"axis": axis}, 3)
    d = wide(dy).abs()
    r, h = (v.detach() for v in sizes(x64, axes))
    weights = dtype if scale is None else other
    g = d * s64.detach().abs()
    close(got_dx, wanted[0], dtype, r * (g + g.mean(axes, keepdim=True) + h * (g * h).mean(axes, keepdim=True)), 256)
    outer = tuple(range(axis))
    loose = _loose(weights, accumulator(dtype))
    close(got_ds, wanted[1], weights, (d * h).sum(outer) if outer else d * h, loose)
    close(got_db, wanted[2], weights, d.sum(outer) if outer else d, loose)


def _loose(dtype: DType, computed: DType) -> float:
    """Returns a tolerance in epsilons of `dtype` for what was computed in `computed`."""
    return 1e11 if (dtype, computed) == (dtypes.float64, float32) else 256


def channels(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1, *[1] * (x.ndim - 2))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40)
@given(data=st.data(), shape=shapes(), types=st.tuples(floats(), floats(), floats()))
def test_batch_normalization(path: str, data: st.DataObject, shape: list[int], types: tuple[DType, ...]) -> None:
    x = data.draw(tensors(shape, types[0]))
    scale, bias = (data.draw(tensors(shape[1:2], types[1])) for _ in range(2))
    mean, var = data.draw(tensors(shape[1:2], types[2])), np.abs(data.draw(tensors(shape[1:2], types[2])))
    inputs = [x, scale, bias, mean, var]
    (got,) = PATHS[path]("BatchNormalization", inputs, {"epsilon": EPSILON})
    x64 = wide(x)
    want = _F.batch_norm(x64, wide(mean), wide(var), wide(scale), wide(bias), eps=EPSILON)
    gain = (wide(scale) * (wide(var) + EPSILON).rsqrt()).abs()
    size = x64.abs() * channels(x64, gain) + channels(x64, wide(bias).abs() + wide(mean).abs() * gain)
    close(got, want, types[0], size, 32)
    attributes = {"epsilon": EPSILON, "momentum": 0.75, "training_mode": 1}
    got, running_mean, running_var = PATHS[path]("BatchNormalization", inputs, attributes, 3)
    axes = (0, *range(2, x64.ndim))
    h = sizes(x64, axes)[1]
    normal = (x64 - x64.mean(axes, keepdim=True)) * sizes(x64, axes)[0]
    want = normal * channels(x64, wide(scale)) + channels(x64, wide(bias))
    close(got, want, types[0], h * channels(x64, wide(scale).abs()) + channels(x64, wide(bias).abs()), 64)
    loose = _loose(types[2], accumulator(types[0]))
    wanted = 0.75 * wide(mean) + 0.25 * x64.mean(axes)
    close(running_mean, wanted, types[2], wide(mean).abs() + x64.abs().amax(axes), loose)
    variance = x64.var(axes, correction=0)
    close(running_var, 0.75 * wide(var) + 0.25 * variance, types[2], wide(var) + 1 + x64.abs().amax(axes) ** 2, loose)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40)
@given(
    data=st.data(), shape=shapes(), types=st.tuples(floats(), floats(), floats()), weights=st.booleans(),
    running=st.booleans(),
)  # fmt: skip
def test_batch_norm_of_torch(
    path: str, data: st.DataObject, shape: list[int], types: tuple[DType, ...], weights: bool, running: bool
) -> None:
    shape[0] = max(shape[0], 2)
    count = math.prod(shape) // shape[1]
    x, dy = data.draw(tensors(shape, types[0])), data.draw(tensors(shape, types[0]))
    scale, bias = (data.draw(tensors(shape[1:2], types[1])) if weights else None for _ in range(2))
    kept = [np.abs(data.draw(tensors(shape[1:2], types[2]))) if running else None for _ in range(2)]
    x64 = wide(x).requires_grad_()
    ones = torch.ones(shape[1], dtype=torch.float64)
    s64, b64 = ones if scale is None else wide(scale), 0 * ones if bias is None else wide(bias)
    for leaf in (s64, b64):
        leaf.requires_grad_()
    fresh = [torch.zeros(shape[1], dtype=torch.float64) if v is None else wide(v) for v in kept]
    want = _F.batch_norm(x64, fresh[0], fresh[1], s64, b64, True, 0.25, EPSILON)  # updates `fresh`
    axes = (0, *range(2, x64.ndim))
    run = PATHS[path]
    attributes = {"epsilon": EPSILON, "momentum": 0.25}
    got, mean, rstd, *new = run("umd.BatchNormTrain", [x, scale, bias, *kept], attributes, 5 if running else 3)
    r, h = (v.detach() for v in sizes(x64, axes))
    close(got, want, types[0], h * channels(x64, s64.abs()) + channels(x64, b64.abs()), 64)
    check_statistics(mean, rstd, x64.detach(), axes, accumulator(types[0]))
    loose = _loose(types[2], accumulator(types[0]))
    largest = x64.detach().abs().amax(axes)
    for value, wanted, size in zip(new, fresh, (largest, 1 + largest**2), strict=False):
        close(value, wanted, types[2], size * count / (count - 1) + wanted.abs(), loose)
    gradients = torch.autograd.grad(want, [x64, s64, b64], wide(dy))
    dx, ds, db = run("umd.BatchNormGrad", [dy, x, mean, rstd, scale], {}, 3)
    d, gain = wide(dy).abs(), r * channels(x64, s64.detach().abs())
    size = gain * (d + d.mean(axes, keepdim=True) + h * (d * h).mean(axes, keepdim=True))
    close(dx, gradients[0], types[0], size, 256)
    own = types[1] if weights else types[0]
    loose = _loose(own, accumulator(types[0]))
    close(ds, gradients[1], own, (d * h).sum(axes), loose)
    close(db, gradients[2], own, d.sum(axes), loose)
    (dx,) = run("umd.BatchNormGrad", [dy, x, mean, rstd, scale], {"training_mode": False})
    close(dx, wide(dy) * r * channels(x64, s64.detach()), types[0], gain * d, 64)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=30)
@given(data=st.data(), shape=shapes(3), groups=st.integers(1, 3), dtype=floats())
def test_group_and_instance_normalization(
    path: str, data: st.DataObject, shape: list[int], groups: int, dtype: DType
) -> None:
    shape[1] *= groups
    x = data.draw(tensors(shape, dtype))
    scale, bias = (data.draw(tensors(shape[1:2], dtype)) for _ in range(2))
    x64 = wide(x)
    for op, parts in (("GroupNormalization", groups), ("InstanceNormalization", shape[1])):
        attributes: dict[str, Any] = {"epsilon": EPSILON}
        if op == "GroupNormalization":
            attributes["num_groups"] = groups
        (got,) = PATHS[path](op, [x, scale, bias], attributes)
        want = torch.group_norm(x64, parts, wide(scale), wide(bias), EPSILON)
        grouped = x64.reshape(shape[0], parts, -1)
        h = sizes(grouped, (2,))[1].reshape(shape)
        close(got, want, dtype, h * channels(x64, wide(scale).abs()) + channels(x64, wide(bias).abs()), 64)


def test_a_large_mean_does_not_hide_the_variance() -> None:
    x = (np.random.default_rng(0).normal(size=(3, 64)) + 1000).astype("f4")
    for path in PATHS:
        (got,) = PATHS[path]("umd.LayerNorm", [x], {"epsilon": 1e-5}, 3)[:1]
        np.testing.assert_allclose(got, _F.layer_norm(wide(x), [64]), atol=2e-3)


@pytest.mark.parametrize("path", PATHS)
def test_statistics_of_nothing(path: str) -> None:
    y, mean, rstd = PATHS[path]("umd.LayerNorm", [np.zeros((3, 0), "f4")], {}, 3)
    assert y.shape == (3, 0)
    assert np.isnan(mean).all()
    assert np.isnan(rstd).all()
    grad = PATHS[path]("umd.LayerNormGrad", [np.zeros((0, 3), "f4")] * 2 + [np.zeros((0, 1), "f4")] * 2, {}, 3)
    assert [g.tolist() for g in grad] == [[], [0.0] * 3, [0.0] * 3]


def test_results_come_in_the_layout_that_is_wanted() -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 4))
    turned = TensorDesc("f64", (2, 3, 4), (3, 1, 6))
    (got,) = run_graph("umd.LayerNorm", [x], {"axis": 1}, [turned, False, False])
    np.testing.assert_allclose(got, _F.layer_norm(wide(x), [3, 4]), rtol=1e-9, atol=1e-12)
    (mean, rstd) = run_graph("umd.LayerNorm", [x], {"axis": 1}, [False, None, None])
    np.testing.assert_allclose(mean, x.mean((1, 2), keepdims=True), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5), rtol=1e-9)
    dy = np.random.default_rng(2).normal(size=(2, 3, 4))
    (_, bias) = run_graph("umd.LayerNormGrad", [dy, x, mean, rstd], {"axis": 1}, [turned, False, None])
    np.testing.assert_allclose(bias, dy.sum(0), rtol=1e-12)


def test_normalising_without_scale_is_one_kernel() -> None:
    assert launches("umd.LayerNorm", [np.zeros((2, 3), "f4")]) == ["normalize_kernel"]
    x, s = np.zeros((2, 3), "f4"), np.zeros(3, "f4")
    assert launches("LayerNormalization", [x, s, s]) == ["normalize_kernel", "elementwise_multiply_add_kernel"]


@pytest.mark.parametrize("path", PATHS)
def test_float_weights_of_halves_are_not_rounded_to_halves(path: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(8, 64)).astype(dtypes.bfloat16.numpy)
    scale, bias = np.full(64, 1 + 2**-8, "f4"), np.zeros(64, "f4")
    layer = PATHS[path]("umd.LayerNorm", [x, scale, bias], {"epsilon": EPSILON}, 3)[0]
    batch = PATHS[path]("umd.BatchNormTrain", [x.T, scale[:8], bias[:8]], {"epsilon": EPSILON}, 3)[0]
    want = _F.layer_norm(wide(x), [64], wide(scale), None, EPSILON)
    close(layer, want, dtypes.bfloat16, tolerance=0.501)  # rounded once
    want = _F.batch_norm(wide(x.T), None, None, wide(scale[:8]), None, True, eps=EPSILON)
    close(batch, want, dtypes.bfloat16, tolerance=0.501)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("epsilon", [1e-5, 1e-3, 0.1, 0.3])
def test_the_variance_of_a_constant_is_not_negative(path: str, epsilon: float) -> None:
    x, zero = np.full((4, 1), 0.75, "f4"), np.zeros(1, "f4")
    attributes = {"epsilon": epsilon, "momentum": 1.0}
    variance = PATHS[path]("umd.BatchNormTrain", [x, None, None, zero, zero], attributes, 5)[4]
    assert 0 <= variance[0] <= 1e-6 * epsilon
