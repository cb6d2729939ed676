"""Conv and its gradients against torch, and how they are launched."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.nn_cases import PATHS, Array, close, floats, run_graph, tensors, wide
from tests.core.recipe_interpreter import call_of, launches
from umd_core.dtypes import DType
from umd_core.ir import TensorDesc

_CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


class Case(NamedTuple):
    """A convolution: arrays, and the attributes that its op and its gradients share."""

    x: Array
    w: Array
    bias: Array | None
    dtype: DType
    attributes: dict[str, Any]


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    rank, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    largest = {1: 9, 2: 5, 3: 4}[rank]

    def numbers(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    spatial, kernel = numbers(1, largest), numbers(1, 3)
    strides, dilations, pads = numbers(1, 3), numbers(1, 2), numbers(0, 2, 2 * rank)
    for axis in range(rank):
        missing = (kernel[axis] - 1) * dilations[axis] + 1 - spatial[axis] - pads[axis] - pads[axis + rank]
        spatial[axis] += max(missing, 0)
    dtype = draw(floats())
    channels, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    x = draw(tensors([draw(st.integers(0, 3)), channels * group, *spatial], dtype))
    w = draw(tensors([outputs * group, channels, *kernel], dtype))
    bias = draw(st.none() | tensors([outputs * group], dtype))
    attributes = {"group": group, "strides": strides, "dilations": dilations, "pads": pads}
    return Case(x, w, bias, dtype, attributes)


def torch_conv(case: Case, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    rank, attributes = x.ndim - 2, case.attributes
    begin, end = attributes["pads"][:rank], attributes["pads"][rank:]
    sides = [pad for axis in reversed(range(rank)) for pad in (begin[axis], end[axis])]
    padded = torch.nn.functional.pad(x, sides)
    strides, dilations = attributes["strides"], attributes["dilations"]
    return _CONV[rank](padded, w, bias, strides, 0, dilations, attributes["group"])


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40)
@given(case=convolutions())
def test_conv(path: str, case: Case) -> None:
    bias = None if case.bias is None else wide(case.bias)
    want = torch_conv(case, wide(case.x), wide(case.w), bias)
    scale = torch_conv(case, wide(case.x).abs(), wide(case.w).abs(), None if bias is None else bias.abs())
    (got,) = PATHS[path]("Conv", [case.x, case.w, case.bias], case.attributes)
    close(got, want, case.dtype, scale)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40)
@given(case=convolutions(), data=st.data())
def test_gradients(path: str, case: Case, data: st.DataObject) -> None:
    x, w = (wide(a).requires_grad_() for a in (case.x, case.w))
    y = torch_conv(case, x, w)
    dy = data.draw(tensors(tuple(y.shape), case.dtype))
    dx, dw = torch.autograd.grad(y, [x, w], wide(dy))
    size_x, size_w = (a.detach().abs().requires_grad_() for a in (x, w))
    scales = torch.autograd.grad(torch_conv(case, size_x, size_w), [size_x, size_w], wide(dy).abs())
    run = PATHS[path]
    (got,) = run("umd.ConvInputGrad", [dy, case.w], {**case.attributes, "shape": case.x.shape})
    close(got, dx, case.dtype, scales[0])
    (got,) = run("umd.ConvWeightGrad", [dy, case.x], {**case.attributes, "kernel_shape": case.w.shape[2:]})
    close(got, dw, case.dtype, scales[1])


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=25)
@given(data=st.data(), rank=st.integers(1, 3))
def test_same_upper_is_torchs_same(data: st.DataObject, rank: int) -> None:
    extents = st.integers(1, 4)
    spatial = data.draw(st.lists(extents, min_size=rank, max_size=rank))
    kernel = data.draw(st.lists(extents, min_size=rank, max_size=rank))
    x, w = (np.random.default_rng(0).normal(size=(2, 3, *extent)).astype("f4") for extent in (spatial, kernel))
    (got,) = PATHS["recipe"]("Conv", [x, w], {"auto_pad": "SAME_UPPER"})
    np.testing.assert_allclose(got, _CONV[rank](wide(x), wide(w), padding="same"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("auto_pad", "pads"), [("SAME_UPPER", [0, 1, 1, 1]), ("SAME_LOWER", [1, 1, 0, 1]), ("VALID", [0] * 4)]
)
def test_auto_pad_with_strides(auto_pad: str, pads: list[int]) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(1, 1, 6, 5)).astype("f4"), rng.normal(size=(1, 1, 3, 3)).astype("f4")
    (auto,) = PATHS["recipe"]("Conv", [x, w], {"strides": [2, 2], "auto_pad": auto_pad})
    (explicit,) = PATHS["recipe"]("Conv", [x, w], {"strides": [2, 2], "pads": pads})
    np.testing.assert_array_equal(auto, explicit)


def test_results_come_in_the_layout_that_is_wanted() -> None:
    rng = np.random.default_rng(2)
    x, w, b = rng.normal(size=(2, 3, 5, 4)), rng.normal(size=(4, 3, 3, 3)), rng.normal(size=4)
    last = TensorDesc("f64", (2, 4, 3, 2), (24, 1, 8, 4))
    (got,) = run_graph("Conv", [x, w, b], {}, [last])
    np.testing.assert_allclose(got, torch.nn.functional.conv2d(wide(x), wide(w), wide(b)), rtol=1e-12)
    (plain,) = PATHS["recipe"]("Conv", [x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2), w, b], {})
    np.testing.assert_allclose(got, plain, rtol=1e-12)


def test_one_kernel_and_one_addition() -> None:
    x, w, b = np.zeros((1, 2, 5, 5), "f4"), np.zeros((4, 2, 3, 3), "f4"), np.zeros(4, "f4")
    assert launches("Conv", [x, w]) == ["conv_kernel"]
    assert launches("Conv", [x, w, b]) == ["conv_kernel", "elementwise_add_kernel"]
    dy = np.zeros((1, 4, 3, 3), "f4")
    assert launches("umd.ConvInputGrad", [dy, w], {"shape": x.shape}) == ["conv_input_grad_kernel"]
    assert launches("umd.ConvWeightGrad", [dy, x], {"kernel_shape": (3, 3)}) == ["conv_weight_grad_kernel"]


def test_cost_counts_multiplications_and_additions() -> None:
    x, w = np.zeros((2, 6, 5, 5), "f4"), np.zeros((4, 3, 3, 3), "f4")
    call = call_of("Conv", [x, w], {"group": 2})
    assert call.template.cost(call) == (2 * 2 * 4 * 9 * 3 * 9, 4 * (x.size + w.size + 2 * 4 * 9))
