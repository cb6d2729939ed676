"""Pools and their gradients against torch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.core.nn_cases import PATHS, Array, close, floats, run_graph, tensors, wide
from tests.core.recipe_interpreter import launches
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.ir import TensorDesc

_F = torch.nn.functional
_MAX = {1: _F.max_pool1d, 2: _F.max_pool2d, 3: _F.max_pool3d}
_AVERAGE = {1: _F.avg_pool1d, 2: _F.avg_pool2d, 3: _F.avg_pool3d}


class Case(NamedTuple):
    """A pool: its input, torch's arguments, and the same as attributes."""

    x: Array
    dtype: DType
    torch: dict[str, Any]
    attributes: dict[str, Any]

    @property
    def rank(self) -> int:
        return len(self.attributes["kernel_shape"])


@st.composite
def pools(draw: st.DrawFn, *, dilated: bool, special: bool = False) -> Case:
    rank = draw(st.integers(1, 3))
    largest = {1: 9, 2: 6, 3: 4}[rank]

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel, strides, spatial = numbers(1, 3), numbers(1, 3), numbers(1, largest)
    dilations = numbers(1, 2) if dilated else [1] * rank
    pads = [draw(st.integers(0, k // 2)) for k in kernel]
    for axis in range(rank):
        # torch has no answer for windows that hold no element
        spatial[axis] = max(spatial[axis], (kernel[axis] - 1) * dilations[axis] + 1)
    ceil = draw(st.booleans())
    dtype = draw(floats())
    lead = [draw(st.integers(0, 2)), draw(st.integers(1, 3))]
    x = draw(tensors([*lead, *spatial], dtype, special=special))
    arguments: dict[str, Any] = {"kernel_size": kernel, "stride": strides, "padding": pads, "ceil_mode": ceil}
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads * 2, "ceil_mode": ceil}
    if dilated:
        arguments["dilation"] = attributes["dilations"] = dilations
    return Case(x, dtype, arguments, attributes)


def torch_max_pool(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    x = wide(case.x)
    if not x.numel():  # torch refuses an empty batch of planes in some ranks
        y, index = _MAX[case.rank](torch.zeros(1, *x.shape[1:], dtype=x.dtype), **case.torch, return_indices=True)
        return y[:0], index[:0]
    return _MAX[case.rank](x, **case.torch, return_indices=True)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=50)
@given(case=pools(dilated=True, special=True))
def test_max_pool_with_indices_per_plane(path: str, case: Case) -> None:
    want, index = torch_max_pool(case)
    got, places = PATHS[path]("umd.MaxPoolWithIndices", [case.x], case.attributes, 2)
    close(got, want, case.dtype, tolerance=0)
    rows = case.x.shape[0] * case.x.shape[1]
    flat, chosen = case.x.reshape(rows, math.prod(case.x.shape[2:])), places.reshape(rows, math.prod(got.shape[2:]))
    taken = np.take_along_axis(flat, chosen, -1).reshape(got.shape)
    close(taken, want, case.dtype, tolerance=0)
    # torch's CPU kernel takes the last NaN of a window where the first one is meant
    certain = ~torch.isnan(want).numpy()
    np.testing.assert_array_equal(places[certain], index.numpy()[certain])


@settings(max_examples=40)
@given(case=pools(dilated=True), order=st.integers(0, 1))
def test_indices_of_onnx_count_over_the_whole_tensor(case: Case, order: int) -> None:
    want, index = torch_max_pool(case)
    got, places = PATHS["recipe"]("MaxPool", [case.x], {**case.attributes, "storage_order": order}, 2)
    close(got, want, case.dtype, tolerance=0)
    plane = case.x.shape[2:]
    at = np.unravel_index(index.numpy(), plane)
    within = np.ravel_multi_index(at, plane, order="F" if order else "C")
    planes = np.arange(case.x.shape[0] * case.x.shape[1]).reshape(*case.x.shape[:2], *[1] * len(plane))
    np.testing.assert_array_equal(places, within + planes * np.prod(plane))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=30)
@given(case=pools(dilated=True), data=st.data())
def test_max_pool_gradient(path: str, case: Case, data: st.DataObject) -> None:
    assume(case.x.size)
    x = wide(case.x).requires_grad_()
    y, index = _MAX[case.rank](x, **case.torch, return_indices=True)
    dy = data.draw(tensors(tuple(y.shape), case.dtype))
    (want,) = torch.autograd.grad(y, x, wide(dy), retain_graph=True)
    (scale,) = torch.autograd.grad(y, x, wide(dy).abs())
    places = index.numpy().astype(data.draw(st.sampled_from(["i4", "i8"])))
    (got,) = PATHS[path]("umd.MaxPoolGrad", [dy, places], {"plane_shape": case.x.shape[2:]})
    close(got, want, case.dtype, scale, tolerance=64)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8])
def test_max_pool_of_bytes(path: str, dtype: DType) -> None:
    x = np.random.default_rng(3).integers(0, 256, (2, 3, 6, 6)).astype(np.uint8).view(dtype.numpy)
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    got, places = PATHS[path]("umd.MaxPoolWithIndices", [x], attributes, 2)
    want, index = _F.max_pool2d(wide(x), 3, 2, 1, return_indices=True)
    assert got.dtype == dtype.numpy
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(places, index)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40)
@given(case=pools(dilated=False), include=st.booleans(), data=st.data())
def test_average_pool_and_gradient(path: str, case: Case, include: bool, data: st.DataObject) -> None:
    assume(case.x.size)
    attributes = {**case.attributes, "count_include_pad": include}
    arguments = {**case.torch, "count_include_pad": include}
    x = wide(case.x).requires_grad_()
    want = _AVERAGE[case.rank](x, **arguments)
    (got,) = PATHS[path]("AveragePool", [case.x], attributes)
    close(got, want, case.dtype, _AVERAGE[case.rank](x.abs(), **arguments))
    dy = data.draw(tensors(tuple(want.shape), case.dtype))
    (dx,) = torch.autograd.grad(want, x, wide(dy), retain_graph=True)
    (scale,) = torch.autograd.grad(want, x, wide(dy).abs())
    (got,) = PATHS[path]("umd.AveragePoolGrad", [dy], {**attributes, "plane_shape": case.x.shape[2:]})
    close(got, dx, case.dtype, scale)


@pytest.mark.parametrize("path", PATHS)
def test_average_pool_of_large_halves_does_not_overflow(path: str) -> None:
    x = np.full((1, 1, 4, 4), 60000, np.float16)
    (got,) = PATHS[path]("AveragePool", [x], {"kernel_shape": [2, 2]})
    np.testing.assert_array_equal(got, np.full((1, 1, 3, 3), 60000, np.float16))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=20)
@given(data=st.data(), rank=st.integers(1, 4), dtype=floats())
def test_global_pools(path: str, data: st.DataObject, rank: int, dtype: DType) -> None:
    x = data.draw(tensors([2, 3, *data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))], dtype))
    axes = tuple(range(2, 2 + rank))
    (got,) = PATHS[path]("GlobalAveragePool", [x])
    close(got, wide(x).mean(axes, keepdim=True), dtype, wide(x).abs().mean(axes, keepdim=True))
    (got,) = PATHS[path]("GlobalMaxPool", [x])
    close(got, wide(x).amax(axes, keepdim=True), dtype, tolerance=0)


def test_results_come_in_the_layout_that_is_wanted() -> None:
    x = np.random.default_rng(4).normal(size=(2, 3, 6, 5)).transpose(0, 1, 3, 2)
    last = [TensorDesc(name, (2, 3, 4, 5), (60, 1, 15, 3)) for name in ("f64", "i64")]
    attributes = {"kernel_shape": [2, 2]}
    got, places = run_graph("umd.MaxPoolWithIndices", [x], attributes, last)
    want, index = _F.max_pool2d(wide(x), 2, 1, return_indices=True)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(places, index)
    dy = np.random.default_rng(5).normal(size=(2, 3, 4, 5))
    wish = TensorDesc("f64", (2, 3, 5, 6), (90, 1, 18, 3))
    (got,) = run_graph("umd.MaxPoolGrad", [dy, places], {"plane_shape": [5, 6]}, [wish])
    np.testing.assert_allclose(got, _scattered(dy, places, (5, 6)))
    (got,) = run_graph("umd.AveragePoolGrad", [dy], {**attributes, "plane_shape": [5, 6]}, [wish])
    (plain,) = PATHS["recipe"]("umd.AveragePoolGrad", [dy], {**attributes, "plane_shape": [5, 6]})
    np.testing.assert_allclose(got, plain)


def _scattered(dy: Array, places: Array, plane: tuple[int, int]) -> Array:
    result = np.zeros((*dy.shape[:2], plane[0] * plane[1]))
    for n, c, h, w in np.ndindex(dy.shape):
        result[n, c, places[n, c, h, w]] += dy[n, c, h, w]
    return result.reshape(*dy.shape[:2], *plane)


def test_indices_cost_nothing_where_nobody_wants_them() -> None:
    x = np.zeros((1, 2, 4, 4), "f4")
    assert launches("MaxPool", [x], {"kernel_shape": [2, 2]}) == ["max_pool_kernel"]
    assert launches("umd.MaxPoolWithIndices", [x], {"kernel_shape": [2, 2]}) == ["max_pool_kernel"]
    assert launches("AveragePool", [x], {"kernel_shape": [2, 2]}) == ["average_pool_kernel"]
