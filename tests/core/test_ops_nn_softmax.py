"""Softmax, LogSoftmax and their gradients against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.nn_cases import PATHS, close, floats, run_graph, tensors, wide
from tests.core.op_arrays import shapes
from tests.core.recipe_interpreter import launches
from umd_core.dtypes import DType
from umd_core.ir import TensorDesc

_FORWARD = {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax}
_GRADIENT = {"Softmax": "umd.SoftmaxGrad", "LogSoftmax": "umd.LogSoftmaxGrad"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("op", _FORWARD)
@settings(max_examples=40)
@given(data=st.data(), shape=shapes(1), dtype=floats(), special=st.booleans())
def test_forward(path: str, op: str, data: st.DataObject, shape: tuple[int, ...], dtype: DType, special: bool) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = data.draw(tensors(shape, dtype, special=special))
    want = _FORWARD[op](wide(x), axis)
    (got,) = PATHS[path](op, [x], {"axis": axis})
    size = wide(x).nan_to_num(0, 0, 0).abs() + 2
    close(got, want, dtype, size if op == "LogSoftmax" else want.nan_to_num(0) * size)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("op", _FORWARD)
@settings(max_examples=40)
@given(data=st.data(), shape=shapes(1), dtype=floats())
def test_gradient(path: str, op: str, data: st.DataObject, shape: tuple[int, ...], dtype: DType) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x, dy = data.draw(tensors(shape, dtype)), data.draw(tensors(shape, dtype))
    y = _FORWARD[op](wide(x), axis).numpy().astype(dtype.numpy)
    d, rounded = wide(dy), wide(y)
    if op == "Softmax":
        want = rounded * (d - (d * rounded).sum(axis, keepdim=True))
        size = rounded * (d.abs() + (d * rounded).abs().sum(axis, keepdim=True))
    else:
        want = d - rounded.exp() * d.sum(axis, keepdim=True)
        size = d.abs() + rounded.exp() * d.abs().sum(axis, keepdim=True) * (1 + rounded.abs())
    (got,) = PATHS[path](_GRADIENT[op], [dy, y], {"axis": axis})
    close(got, want, dtype, size)


@pytest.mark.parametrize("op", _FORWARD)
def test_the_formula_of_the_gradient_is_torchs(op: str) -> None:
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    dy = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = _FORWARD[op](x, 0)
    (want,) = torch.autograd.grad(y, x, dy)
    (got,) = PATHS["recipe"](_GRADIENT[op], [dy.numpy(), y.detach().numpy()], {"axis": 0})
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("path", PATHS)
def test_a_single_number_without_axes(path: str) -> None:
    (got,) = PATHS[path]("Softmax", [np.array(3.0)], {"axis": 0})
    assert got.tolist() == 1.0
    (got,) = PATHS[path]("LogSoftmax", [np.array(3.0)], {"axis": 0})
    assert got.tolist() == 0.0


@pytest.mark.parametrize("path", PATHS)
def test_large_numbers_do_not_overflow(path: str) -> None:
    x = np.array([[60000, 59999, -60000], [1e4, -np.inf, 1e4]], np.float16)
    (got,) = PATHS[path]("Softmax", [x])
    np.testing.assert_allclose(got, torch.softmax(wide(x), -1), atol=1e-3)


def test_one_kernel_and_the_layout_that_is_wanted() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    assert launches("Softmax", [x], {"axis": 1}) == ["softmax_kernel"]
    assert launches("umd.LogSoftmaxGrad", [x, x]) == ["log_softmax_grad_kernel"]
    (got,) = run_graph("Softmax", [x], {"axis": 1}, [TensorDesc("f64", (2, 3, 4), (1, 8, 2))])
    np.testing.assert_allclose(got, torch.softmax(wide(x), 1), rtol=1e-12)
