"""Elementwise ops against NumPy and torch over shapes, layouts and dtypes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import (
    PATHS,
    Array,
    arrays,
    broadcastable,
    check,
    check_floats,
    epsilon,
    laid_out,
    shapes,
    some_values,
)
from tests.core.recipe_interpreter import launches
from umd_core import dtypes
from umd_core.dtypes import BOOL, FLOATS, INTEGERS, NUMERIC, SIGNED, DType


def comparable(x: Array) -> Array:
    """Returns floats as float64 (bfloat16 warns when it compares NaN), all else as it is."""
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


paths = pytest.mark.parametrize("path", PATHS)


def in_torch(function: Callable[..., Any]) -> Callable[..., Array]:
    """Returns a torch function as one of float64 arrays."""
    return lambda *args: np.asarray(function(*[torch.from_numpy(np.array(a, np.float64)) for a in args]))


FLOAT_UNARY: dict[str, tuple[Callable[[Array], Array], float]] = {
    "Neg": (in_torch(torch.neg), 1), "Abs": (in_torch(torch.abs), 1), "Reciprocal": (in_torch(torch.reciprocal), 4),
    "Sign": (lambda x: np.where(np.isnan(x), np.nan, in_torch(torch.sign)(x)), 1), "Exp": (in_torch(torch.exp), 16),
    "Log": (in_torch(torch.log), 16), "Sqrt": (in_torch(torch.sqrt), 4), "Sin": (in_torch(torch.sin), 64),
    "Cos": (in_torch(torch.cos), 64), "Tanh": (in_torch(torch.tanh), 16), "Sigmoid": (in_torch(torch.sigmoid), 16),
    "Erf": (in_torch(torch.erf), 16), "Floor": (in_torch(torch.floor), 1), "Ceil": (in_torch(torch.ceil), 1),
    "Round": (in_torch(torch.round), 1), "Relu": (in_torch(torch.relu), 1), "umd.Rsqrt": (in_torch(torch.rsqrt), 4),
    "umd.Log1p": (in_torch(torch.log1p), 16), "umd.Expm1": (in_torch(torch.expm1), 16),
    "umd.Trunc": (in_torch(torch.trunc), 1),
}  # fmt: skip


@paths
@pytest.mark.parametrize("op", FLOAT_UNARY)
@settings(max_examples=25)
@given(x=arrays(shapes(), FLOATS))
def test_float_unary(op: str, path: str, x: Array) -> None:
    oracle, tolerance = FLOAT_UNARY[op]
    (y,) = PATHS[path](op, [x])
    assert y.dtype == x.dtype
    check_floats(y, oracle(x), tolerance)


INTEGER_UNARY: dict[str, tuple[tuple[DType, ...], Callable[[Array], Array]]] = {
    "Neg": (SIGNED, np.negative), "Abs": (INTEGERS, np.abs), "Sign": (INTEGERS, np.sign),
    "Relu": (INTEGERS, lambda x: np.maximum(x, 0)), "BitwiseNot": (INTEGERS, np.invert), "Not": (BOOL, np.logical_not),
}  # fmt: skip


@paths
@pytest.mark.parametrize("op", INTEGER_UNARY)
@settings(max_examples=25)
@given(data=st.data())
def test_integer_unary(op: str, path: str, data: st.DataObject) -> None:
    types, oracle = INTEGER_UNARY[op]
    x = data.draw(arrays(shapes(), types))
    with np.errstate(over="ignore"):
        want = oracle(x)
    (y,) = PATHS[path](op, [x])
    check(y, want, dtypes.dtype(x.dtype))


@paths
@settings(max_examples=25)
@given(x=arrays(shapes(), FLOATS))
def test_nan_and_infinity_are_found(path: str, x: Array) -> None:
    wide = x.astype(np.float64)
    check(PATHS[path]("IsNaN", [x])[0], np.isnan(wide), dtypes.bool_)
    for negative, positive in itertools.product((False, True), repeat=2):
        want = (np.isposinf(wide) & positive) | (np.isneginf(wide) & negative)
        (y,) = PATHS[path]("IsInf", [x], {"detect_negative": negative, "detect_positive": positive})
        check(y, want, dtypes.bool_)


def pairs(a: Array, b: Array) -> list[tuple[int, int]]:
    """Returns the elements of two arrays as Python integers, which never overflow."""
    return list(zip(map(int, a.flat), map(int, b.flat), strict=True))


def wrapped(exact: Array, dtype: DType) -> Array:
    """Returns Python integers modulo 2^bits in a dtype."""
    bits = 8 * dtype.size
    unsigned = np.array([int(v) % (1 << bits) for v in exact.flat], np.uint64).astype(f"u{dtype.size}")
    return unsigned.view(dtype.numpy).reshape(exact.shape)


EXACT: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: 0 if b == 0 else abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1),
    "Mod": lambda a, b: 0 if b == 0 else a % b,
    "BitwiseAnd": lambda a, b: a & b,
    "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
}


@paths
@pytest.mark.parametrize("op", EXACT)
@settings(max_examples=25)
@given(operands=broadcastable(INTEGERS))
def test_integer_binary(op: str, path: str, operands: list[Array]) -> None:
    a, b = np.broadcast_arrays(*operands)
    exact = np.array([EXACT[op](x, y) for x, y in pairs(a, b)], object).reshape(a.shape)
    dtype = dtypes.dtype(a.dtype)
    check(PATHS[path](op, operands)[0], wrapped(exact, dtype), dtype)


FLOAT_BINARY: dict[str, Callable[..., Array]] = {
    "Add": in_torch(torch.add), "Sub": in_torch(torch.sub), "Mul": in_torch(torch.mul), "Div": in_torch(torch.div),
}  # fmt: skip


@paths
@pytest.mark.parametrize("op", FLOAT_BINARY)
@settings(max_examples=25)
@given(operands=broadcastable(FLOATS))
def test_float_binary(op: str, path: str, operands: list[Array]) -> None:
    check(PATHS[path](op, operands)[0], FLOAT_BINARY[op](*operands), dtypes.dtype(operands[0].dtype))


@paths
@settings(max_examples=40)
@given(operands=broadcastable(FLOATS), fmod=st.booleans())
def test_float_remainder(path: str, operands: list[Array], fmod: bool) -> None:
    a, b = (x.astype(np.float64) for x in operands)
    (y,) = PATHS[path]("Mod", operands, {"fmod": fmod})
    with np.errstate(invalid="ignore"):
        want = np.fmod(a, b) if fmod else np.mod(a, b)
    check(y, want, dtypes.dtype(operands[0].dtype))


@paths
@settings(max_examples=25)
@given(operands=broadcastable(INTEGERS))
def test_integer_fmod_has_the_sign_of_the_dividend(path: str, operands: list[Array]) -> None:
    a, b = np.broadcast_arrays(*operands)
    exact = [0 if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1) for x, y in pairs(a, b)]
    dtype = dtypes.dtype(a.dtype)
    want = np.array(exact, dtype.numpy).reshape(a.shape)
    check(PATHS[path]("Mod", operands, {"fmod": 1})[0], want, dtype)


COMPARE: dict[str, tuple[tuple[DType, ...], Callable[[Array, Array], Array]]] = {
    "Equal": (dtypes.ALL, np.equal), "umd.NotEqual": (dtypes.ALL, np.not_equal), "Less": (NUMERIC, np.less),
    "LessOrEqual": (NUMERIC, np.less_equal), "Greater": (NUMERIC, np.greater),
    "GreaterOrEqual": (NUMERIC, np.greater_equal), "And": (BOOL, np.logical_and), "Or": (BOOL, np.logical_or),
    "Xor": (BOOL, np.logical_xor),
}  # fmt: skip


@paths
@pytest.mark.parametrize("op", COMPARE)
@settings(max_examples=25)
@given(data=st.data())
def test_comparison_and_logic(op: str, path: str, data: st.DataObject) -> None:
    types, oracle = COMPARE[op]
    a, b = data.draw(broadcastable(types))
    if a.shape == b.shape and data.draw(st.booleans()):
        b = np.where(some_values(7, b.shape, dtypes.bool_), a, b)
    check(PATHS[path](op, [a, b])[0], oracle(comparable(a), comparable(b)), dtypes.bool_)


VARIADIC: dict[str, tuple[tuple[DType, ...], Callable[[list[Array]], Array]]] = {
    "Max": (NUMERIC, lambda xs: np.maximum.reduce(np.broadcast_arrays(*xs))),
    "Min": (NUMERIC, lambda xs: np.minimum.reduce(np.broadcast_arrays(*xs))),
    "Sum": (NUMERIC, lambda xs: np.add.reduce(np.broadcast_arrays(*xs))),
    "Mean": (FLOATS, lambda xs: np.mean(np.broadcast_arrays(*xs), axis=0)),
}


@paths
@pytest.mark.parametrize("op", VARIADIC)
@settings(max_examples=30)
@given(data=st.data())
def test_variadic(op: str, path: str, data: st.DataObject) -> None:
    types, oracle = VARIADIC[op]
    xs = data.draw(broadcastable(types, data.draw(st.integers(1, 5))))
    dtype = dtypes.dtype(xs[0].dtype)
    wide = [x.astype(np.float64) if dtype.is_float else x for x in xs]
    with np.errstate(all="ignore"):
        want = oracle(wide)
        largest = np.max([np.abs(x) for x in np.broadcast_arrays(*wide)], axis=0) if dtype.is_float else None
    (y,) = PATHS[path](op, xs)
    if largest is None:
        check(y, want.astype(dtype.numpy), dtype)
        return
    assert (y.dtype, y.shape) == (dtype.numpy, want.shape)
    close = np.isfinite(want) & (largest < 1e4)  # sums round after each term: the error is relative to the largest
    error = np.abs(np.where(close, y.astype(np.float64) - np.where(close, want, 0), 0))
    assert np.all(error <= 8 * epsilon(dtype.numpy) * np.where(close, largest, 0))
    np.testing.assert_array_equal(np.isnan(y.astype(np.float64)), np.isnan(want))


@paths
@settings(max_examples=80)
@given(data=st.data())
def test_power_keeps_the_dtype_of_its_base(path: str, data: st.DataObject) -> None:
    base_type, exponent_type = data.draw(st.sampled_from(NUMERIC)), data.draw(st.sampled_from(NUMERIC))
    shape = data.draw(shapes(max_rank=3))
    base = some_values(data.draw(st.integers(0, 999)), shape, base_type, special=False)
    exponent = some_values(data.draw(st.integers(0, 999)), shape, exponent_type, special=False)
    base, exponent = data.draw(laid_out(base)), data.draw(laid_out(exponent))
    (y,) = PATHS[path]("Pow", [base, exponent])
    if base_type.is_integer and exponent_type.is_integer:
        bits = 8 * base_type.size
        exact = [
            pow(x, n, 1 << bits) if n >= 0 else (0 if abs(x) != 1 else x ** (-n)) for x, n in pairs(base, exponent)
        ]
        check(y, wrapped(np.array(exact, object).reshape(shape), base_type), base_type)
        return
    with np.errstate(all="ignore"):
        want = np.power(base.astype(np.float64), exponent.astype(np.float64))
    if base_type.is_float:
        check(y, want, base_type, 64)
    else:
        limits = np.iinfo(base_type.numpy)
        inside = (want > max(limits.min, -(2.0**52))) & (want < min(limits.max, 2.0**52))
        near = np.isclose(want, np.rint(want), rtol=1e-9) & ~(want == np.rint(want))
        kept = inside & ~near
        np.testing.assert_array_equal(np.where(kept, y, 0), np.trunc(np.where(kept, want, 0)).astype(base_type.numpy))


@paths
@settings(max_examples=60)
@given(data=st.data(), with_low=st.booleans(), with_high=st.booleans())
def test_clip(path: str, data: st.DataObject, with_low: bool, with_high: bool) -> None:
    x = data.draw(arrays(shapes(), NUMERIC))
    dtype = dtypes.dtype(x.dtype)
    low, high = (some_values(data.draw(st.integers(0, 999)), (), dtype, special=False) for _ in range(2))
    inputs = [x, low if with_low else None, high if with_high else None]
    (y,) = PATHS[path]("Clip", inputs[: 1 + 2 * (with_low or with_high)])
    want = np.maximum(comparable(x), comparable(low)) if with_low else comparable(x)
    check(y, np.minimum(want, comparable(high)) if with_high else want, dtype, 0)


@paths
@settings(max_examples=40)
@given(data=st.data())
def test_where(path: str, data: st.DataObject) -> None:
    condition, a, b = data.draw(broadcastable(BOOL, 3))
    dtype = data.draw(st.sampled_from(dtypes.ALL))
    a, b = (data.draw(laid_out(some_values(i, x.shape, dtype))) for i, x in enumerate((a, b)))
    check(PATHS[path]("Where", [condition, a, b])[0], np.where(condition, a, b), dtype, 0)


def cast(x: Array, dtype: DType) -> Array:
    """Returns the array as another dtype, element by element in Python's own arithmetic."""
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return x.astype(dtype.numpy)
    if dtype.kind == "b":
        return np.not_equal(x, 0)
    limits, result = np.iinfo(dtype.numpy), []
    for value in x.flat:
        if dtypes.dtype(x.dtype).is_float:
            number = float(value)
            whole = (
                0
                if math.isnan(number)
                else max(limits.min, min(limits.max, int(number) if math.isfinite(number) else number))
            )
            result.append(int(whole))
        else:
            result.append(int(value))
    return wrapped(np.array(result, object).reshape(x.shape), dtype)


@paths
@pytest.mark.parametrize("to", dtypes.ALL, ids=str)
@settings(max_examples=30)
@given(x=arrays(shapes(max_rank=3), dtypes.ALL))
def test_cast(to: DType, path: str, x: Array) -> None:
    (y,) = PATHS[path]("Cast", [x], {"to": to})
    check(y, cast(x, to), to, 0)


def test_a_cast_to_the_same_dtype_launches_nothing() -> None:
    assert launches("Cast", [np.zeros(3, np.float32)], {"to": "float32"}) == []
    assert launches("Cast", [np.zeros(3, np.float32)], {"to": 11}) == ["elementwise_cast_kernel"]


# gradients, against torch's own


def gradient_of(forward: Callable[[Any], Any]) -> Callable[[Array, Array], Array]:
    """Returns torch's gradient of a function at x, for the gradient dy of its result."""

    def backward(dy: Array, x: Array) -> Array:
        point = torch.from_numpy(np.array(x, np.float64)).requires_grad_()
        forward(point).backward(torch.from_numpy(np.array(dy, np.float64)))
        assert point.grad is not None
        return point.grad.numpy()

    return backward


GRADIENTS: dict[str, tuple[Callable[[Any], Any], bool, float, dict[str, str]]] = {
    "umd.ReluGrad": (torch.relu, True, 4, {}),
    "umd.SigmoidGrad": (torch.sigmoid, True, 16, {}),
    "umd.TanhGrad": (torch.tanh, True, 16, {}),
    "umd.GeluGrad": (torch.nn.functional.gelu, False, 64, {}),
    "umd.GeluGrad tanh": (
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        False,
        64,
        {"approximate": "tanh"},
    ),
}


@paths
@pytest.mark.parametrize("name", GRADIENTS)
@settings(max_examples=25)
@given(data=st.data())
def test_activation_gradient(name: str, path: str, data: st.DataObject) -> None:
    forward, of_result, tolerance, attributes = GRADIENTS[name]
    dtype = data.draw(st.sampled_from(FLOATS))
    shape = data.draw(shapes())
    dy, x = (data.draw(laid_out(some_values(seed, shape, dtype, special=False))) for seed in (1, 2))
    given_value = forward(torch.from_numpy(np.array(x, np.float64))).numpy().astype(dtype.numpy) if of_result else x
    (dx,) = PATHS[path](name.partition(" ")[0], [dy, given_value], attributes)
    assert (dx.dtype, dx.shape) == (dtype.numpy, shape)
    want = gradient_of(forward)(dy, x)
    # The forward result is rounded to the dtype, and the terms cancel: the error is relative to dy.
    bound = (
        tolerance * epsilon(dtype.numpy) * np.abs(np.asarray(dy, np.float64)) * (1 + np.abs(np.asarray(x, np.float64)))
    )
    assert np.all(np.abs(dx.astype(np.float64) - want) <= bound)


@paths
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@settings(max_examples=25)
@given(x=arrays(shapes(), FLOATS, special=False))
def test_gelu(approximate: str, path: str, x: Array) -> None:
    (y,) = PATHS[path]("Gelu", [x], {"approximate": approximate})
    want = torch.nn.functional.gelu(torch.from_numpy(np.array(x, np.float64)), approximate=approximate).numpy()
    assert y.dtype == x.dtype
    bound = 8 * epsilon(x.dtype) * np.abs(np.asarray(x, np.float64))
    assert np.all(np.abs(y.astype(np.float64) - want) <= bound)
