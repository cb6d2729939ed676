"""Elementwise lowerings beside torch: values, element types, broadcasting, numbers, strides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

aten = torch.ops.aten
Check = Callable[..., None]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
LOOSE = {torch.float16: 2e-3, torch.bfloat16: 2e-2}

UNARY = {
    "exp": torch.exp, "expm1": torch.expm1, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "erf": torch.erf, "neg": torch.neg, "abs": torch.abs, "sign": torch.sign,
    "relu": torch.relu, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc,
    "isnan": torch.isnan, "isinf": torch.isinf, "silu": torch.nn.functional.silu, "mish": torch.nn.functional.mish,
    "gelu": torch.nn.functional.gelu, "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "softplus": torch.nn.functional.softplus, "elu": torch.nn.functional.elu, "selu": torch.selu,
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.1), "hardtanh": torch.nn.functional.hardtanh,
    "hardswish": torch.nn.functional.hardswish, "logical_not": torch.logical_not, "exp2": torch.exp2,
}  # fmt: skip
POSITIVE = {
    "log": torch.log, "log1p": torch.log1p, "log2": torch.log2, "log10": torch.log10, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
}  # fmt: skip


def strided(data: st.DataObject, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a tensor of a shape, permuted, sliced, expanded or plain."""
    order = data.draw(st.permutations(range(len(shape)))) if shape else []
    step = data.draw(st.sampled_from([1, 2]))
    repeated = data.draw(st.booleans())
    base = [shape[axis] for axis in order]
    if base:
        base[-1] *= step
        if repeated:
            base[0] = 1
    x = torch.randn(base) * 3
    if base:
        x = x[..., ::step]
        x = x.expand([shape[axis] for axis in order])
    x = x.permute([list(order).index(axis) for axis in range(len(shape))])
    return x if dtype is torch.float32 else x.to(dtype)


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(data=st.data(), shape=shapes)
def test_unary_over_shapes_and_strides(data: st.DataObject, shape: tuple[int, ...], same: Check) -> None:
    same(UNARY[data.draw(st.sampled_from(sorted(UNARY)))], strided(data, shape))


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_positive(name: str, dtype: torch.dtype, same: Check) -> None:
    x = (torch.rand(3, 5) + 0.1).to(dtype)
    same(POSITIVE[name], x, rtol=LOOSE.get(dtype, 2e-5))


@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
def test_special_numbers(name: str, same: Check) -> None:
    x = torch.tensor([0.0, -0.0, math.nan, 1.0, -1.0, 0.5, 2.5, -1.5, 9.0, -9.0, math.inf, -math.inf])
    if name == "gelu":
        x = x[:-2]  # torch's own answer for an infinity is NaN or not with the length of the tensor
    same({**UNARY, **POSITIVE}[name], x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["exp", "tanh", "gelu", "silu", "neg", "leaky_relu", "hardtanh"])
def test_unary_element_types(name: str, dtype: torch.dtype, same: Check) -> None:
    same(UNARY[name], torch.randn(4, 3).to(dtype), rtol=LOOSE.get(dtype, 2e-5), atol=LOOSE.get(dtype, 2e-6))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ["neg", "abs", "sign", "relu", "exp", "sigmoid", "floor", "isnan", "logical_not"])
def test_unary_of_integers(name: str, dtype: torch.dtype, same: Check) -> None:
    same(UNARY[name], torch.arange(-3, 5).to(dtype))


BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
    "ge": torch.ge, "fmod": torch.fmod, "remainder": torch.remainder, "where": lambda x, y: torch.where(x > y, x, y),
    "floor_divide": torch.floor_divide, "trunc_divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}  # fmt: skip
_ALL = (torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
_NO_BOOL = {"sub", "div", "fmod", "remainder", "floor_divide", "trunc_divide"}


@settings(max_examples=60)
@given(data=st.data())
def test_binary_promotes_and_broadcasts(data: st.DataObject, same: Check) -> None:
    name = data.draw(st.sampled_from(sorted(BINARY)))
    shape = data.draw(st.lists(st.integers(1, 3), max_size=3).map(tuple))
    first = tuple(1 if data.draw(st.booleans()) else e for e in shape)
    second = shape[data.draw(st.integers(0, len(shape))) :]
    kinds = [k for k in _ALL if k is not torch.bool or name not in _NO_BOOL]
    a, b = (data.draw(st.sampled_from(kinds)) for _ in range(2))
    x = torch.randint(-4, 5, first).to(a)
    y = torch.randint(1, 5, second).to(b)
    same(BINARY[name], x, y, rtol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("number", [2, 0.1, -3])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, c: x + c, lambda x, c: c - x, lambda x, c: x * c, lambda x, c: x / c, lambda x, c: x > c,
        lambda x, c: x == c, lambda x, c: torch.where(x > 0, x, c),
    ],
    ids=["add", "rsub", "mul", "div", "gt", "eq", "where"],
)  # fmt: skip
def test_numbers(function: Callable[..., Any], number: float, dtype: torch.dtype, same: Check) -> None:
    if dtype is torch.uint8 and isinstance(number, int) and number < 0:
        number = 3
    same(lambda x: function(x, number), torch.arange(6).reshape(2, 3).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("exponent", [0.5, 1, 2, 3, -0.5, -1, -2, 1.7, 0, 4])
def test_powers(exponent: float, same: Check) -> None:
    same(lambda x: torch.pow(x, exponent), torch.rand(7) + 0.2)


def test_more_powers(same: Check) -> None:
    same(lambda x: torch.pow(2.5, x), torch.randn(5))
    same(torch.pow, torch.rand(3, 1) + 0.5, torch.randn(4))
    same(lambda x: x**2, torch.arange(-3, 4))
    same(lambda x: x**5, torch.arange(-3, 4))


@pytest.mark.parametrize(
    ("low", "high"), [(None, 0.5), (-0.5, None), (-0.5, 0.5), (0.5, -0.5)], ids=["high", "low", "both", "crossed"]
)
def test_clamp(low: float | None, high: float | None, same: Check) -> None:
    same(lambda x: torch.clamp(x, low, high), torch.tensor([-1.0, math.nan, 0.0, 1.0, math.inf]))
    same(lambda x: torch.clamp(x, low, high), torch.arange(-2, 3))


def test_clamp_to_tensors(same: Check) -> None:
    same(torch.clamp, torch.randn(4, 3), torch.full((3,), -0.3), torch.full((4, 1), 0.4))


@pytest.mark.parametrize("function", [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor], ids=["and", "or", "xor"])
def test_bits(function: Callable[..., Any], same: Check) -> None:
    same(function, torch.tensor([5, -3, 12]), torch.tensor([3, 6, -1]))
    same(function, torch.tensor([True, False]), torch.tensor([True, True]))
    same(torch.bitwise_not, torch.tensor([5, -3], dtype=torch.int32))


@pytest.mark.parametrize("function", [torch.logical_and, torch.logical_or, torch.logical_xor], ids=["and", "or", "xor"])
def test_logic_of_numbers(function: Callable[..., Any], same: Check) -> None:
    same(function, torch.tensor([0.0, 2.0, math.nan]), torch.tensor([1, 0, 0]))


@pytest.mark.parametrize(
    "function",
    [
        lambda dy, x: aten.threshold_backward(dy, x, 0), lambda dy, x: aten.threshold_backward(dy, x, 0.3),
        lambda dy, x: aten.gelu_backward(dy, x), lambda dy, x: aten.gelu_backward(dy, x, approximate="tanh"),
        lambda dy, x: aten.sigmoid_backward(dy, torch.sigmoid(x)), lambda dy, x: aten.tanh_backward(dy, torch.tanh(x)),
        lambda dy, x: aten.silu_backward(dy, x), lambda dy, x: aten.elu_backward(dy, 1.0, 1.0, 1.0, False, x),
    ],
    ids=["relu", "threshold", "gelu", "gelu_tanh", "sigmoid", "tanh", "silu", "elu"],
)  # fmt: skip
def test_gradients(function: Callable[..., Any], same: Check) -> None:
    same(function, torch.randn(5, 4), torch.cat([torch.randn(4, 4), torch.zeros(1, 4)]))


def test_the_present_of_two_numbers(same: Check) -> None:
    x, y = torch.tensor([1.0, math.nan, 3.0, math.nan]), torch.tensor([2.0, 5.0, math.nan, math.nan])
    same(lambda a, b: (torch.fmax(a, b), torch.fmin(a, b)), x, y)
    same(torch.fmax, torch.tensor([1, 5]), torch.tensor([2, 3]))


@pytest.mark.parametrize("decimals", [0, 1, 3, -1])
def test_rounding_to_decimals(decimals: int, same: Check) -> None:
    same(lambda x: torch.round(x, decimals=decimals), torch.tensor([0.125, 2.5, -3.5, 123.456, 1e6]))


def test_lerp_addcmul_addcdiv(same: Check) -> None:
    x, y, z = torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4) + 0.5
    same(lambda a, b, c: torch.addcmul(a, b, c, value=0.5), x, y, z)
    same(lambda a, b, c: torch.addcdiv(a, b, c, value=-2), x, y, z)
    same(lambda a, b: torch.add(a, b, alpha=3), x, y)
    same(lambda a, b: torch.lerp(a, b, 0.25), x, y)
