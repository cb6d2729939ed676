"""Reductions, arg-reductions and matrix products against NumPy over shapes, layouts and dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS, Array, arrays, check, epsilon, laid_out, shapes, some_values
from tests.core.recipe_interpreter import launches
from umd_core import dtypes
from umd_core.dtypes import FLOATS, INTEGERS, NUMERIC, DType

paths = pytest.mark.parametrize("path", PATHS)
MEAN = (*FLOATS, dtypes.int32, dtypes.int64, dtypes.uint32, dtypes.uint64)
REDUCTIONS: dict[str, tuple[tuple[DType, ...], Callable[..., Any]]] = {
    "ReduceSum": (NUMERIC, np.sum), "ReduceMean": (MEAN, np.mean), "ReduceProd": (NUMERIC, np.prod),
    "ReduceMax": (dtypes.ALL, np.max), "ReduceMin": (dtypes.ALL, np.min),
}  # fmt: skip


@st.composite
def reduced(draw: st.DrawFn, op: str, *, special: bool) -> tuple[Array, list[int], dict[str, int]]:
    """An array, axes as ONNX takes them, attributes."""
    x = draw(arrays(shapes(), REDUCTIONS[op][0], special=special))
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True)) if x.ndim else []
    return x, axes, {"keepdims": draw(st.integers(0, 1))}


def least(dtype: DType, op: str) -> Any:
    """Returns what ReduceMax and ReduceMin give over nothing."""
    if dtype.is_float:
        return -np.inf if op == "ReduceMax" else np.inf
    if dtype.kind == "b":
        return op == "ReduceMin"
    return np.iinfo(dtype.numpy).min if op == "ReduceMax" else np.iinfo(dtype.numpy).max


def expected(op: str, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Returns NumPy's reduction in float64, or exactly in the integer type."""
    dtype, oracle = dtypes.dtype(x.dtype), REDUCTIONS[op][1]
    how: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    with np.errstate(all="ignore"):
        if op in ("ReduceMax", "ReduceMin"):
            wide = x.astype(np.float64) if dtype.is_float else x
            return np.asarray(oracle(wide, initial=least(dtype, op), **how))
        if dtype.is_float:
            if op == "ReduceMean":
                count = math.prod(x.shape[a] for a in axes)
                return np.asarray(np.sum(x.astype(np.float64), **how) / np.float64(count))
            return np.asarray(oracle(x.astype(np.float64), **how))
        if op == "ReduceMean":
            total, count = np.sum(x, dtype=x.dtype, **how), math.prod(x.shape[a] for a in axes)
            exact = [abs(int(v)) // count * (-1 if v < 0 else 1) if count else 0 for v in total.flat]
            return np.array(exact, x.dtype).reshape(total.shape)
        return np.asarray(oracle(x, dtype=x.dtype, **how))


@paths
@pytest.mark.parametrize("op", REDUCTIONS)
@settings(max_examples=40)
@given(data=st.data())
def test_reduction(op: str, path: str, data: st.DataObject) -> None:
    x, axes, attributes = data.draw(reduced(op, special=op in ("ReduceMax", "ReduceMin")))
    dtype = dtypes.dtype(x.dtype)
    named = [axis - data.draw(st.sampled_from((0, x.ndim))) for axis in axes]
    inputs = [x, np.array(named, np.int64)] if axes else [x]
    (y,) = PATHS[path](op, inputs, attributes)
    over = tuple(axes) or tuple(range(x.ndim))
    want = expected(op, x, over, bool(attributes["keepdims"]))
    if dtype.is_float and op in ("ReduceSum", "ReduceMean"):
        assert (y.dtype, y.shape) == (dtype.numpy, want.shape)
        size = np.sum(np.abs(x.astype(np.float64)), over, keepdims=bool(attributes["keepdims"]))
        finite = np.isfinite(want)
        error = np.abs(np.where(finite, y.astype(np.float64), 0) - np.where(finite, want, 0))
        assert np.all(error <= 4 * epsilon(dtype.numpy) * size)
        np.testing.assert_array_equal(np.isnan(y.astype(np.float64)), np.isnan(want))
    else:
        check(y, want, dtype, 64 if op == "ReduceProd" else 0)


@paths
@pytest.mark.parametrize("op", REDUCTIONS)
def test_without_axes_it_reduces_all_or_by_attribute_nothing(op: str, path: str) -> None:
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    empty: tuple[list[Array | None], ...] = ([x], [x, None], [x, np.zeros(0, np.int64)])
    for inputs in empty:
        (y,) = PATHS[path](op, inputs, {"keepdims": 0})
        check(y, REDUCTIONS[op][1](x), dtypes.float32)
        (y,) = PATHS[path](op, inputs, {"noop_with_empty_axes": 1})
        check(y, x, dtypes.float32)
    (y,) = PATHS[path](op, [np.array(3, np.float32)])
    check(y, 3.0, dtypes.float32)


@paths
def test_nan_wins(path: str) -> None:
    x = np.array([[1, np.nan, np.inf], [-np.inf, 2, 3]], np.float32)
    axes = np.array([1], np.int64)
    check(PATHS[path]("ReduceMax", [x, axes], {"keepdims": 0})[0], [np.nan, 3], dtypes.float32)
    check(PATHS[path]("ReduceMin", [x, axes], {"keepdims": 0})[0], [np.nan, -np.inf], dtypes.float32)
    check(PATHS[path]("ArgMax", [x], {"axis": 1, "keepdims": 0})[0], [1, 2], dtypes.int64)
    check(PATHS[path]("ArgMin", [x], {"axis": 1, "keepdims": 0})[0], [1, 0], dtypes.int64)


@paths
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@settings(max_examples=60)
@given(data=st.data())
def test_arg_reduction(op: str, path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(min_rank=1), NUMERIC, special=False))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    assume(x.shape[axis])
    last, keepdims = data.draw(st.booleans()), data.draw(st.booleans())
    (y,) = PATHS[path](op, [x], {"axis": axis, "select_last_index": last, "keepdims": keepdims})
    wide = x.astype(np.float64) if dtypes.dtype(x.dtype).is_float else x
    oracle = np.argmax if op == "ArgMax" else np.argmin
    where = oracle(np.flip(wide, axis) if last else wide, axis=axis, keepdims=keepdims)
    check(y, x.shape[axis] - 1 - where if last else where, dtypes.int64)


@paths
def test_arg_reduction_of_a_scalar(path: str) -> None:
    check(PATHS[path]("ArgMax", [np.array(3, np.float32)])[0], 0, dtypes.int64)


@st.composite
def products(draw: st.DrawFn, types: tuple[DType, ...]) -> tuple[Array, Array]:
    """Two arrays that NumPy's matmul takes."""
    dtype = draw(st.sampled_from(types))
    rows, depth, columns = (draw(st.integers(0, 5)) for _ in range(3))
    batch = draw(shapes(max_rank=2, max_extent=3))
    sides = []
    for matrix in ((rows, depth), (depth, columns)):
        own = tuple(
            1 if draw(st.integers(0, 3)) == 0 else extent for extent in batch[draw(st.integers(0, len(batch))) :]
        )
        sides.append(draw(arrays(own + matrix, [dtype], special=False)))
    a, b = sides
    if draw(st.integers(0, 4)) == 0:
        a = draw(arrays((depth,), [dtype], special=False))
    if draw(st.integers(0, 4)) == 0:
        b = draw(arrays((depth,), [dtype], special=False))
    return a, b


def check_product(y: Array, a: Array, b: Array, dtype: DType, more: Any = 0.0, scale: float = 1.0) -> None:
    """Checks scale · a · b + more: exactly for integers, else relative to the sum of magnitudes."""
    if not dtype.is_float:
        with np.errstate(over="ignore"):
            want = np.matmul(a, b) * dtype.numpy.type(int(scale)) + np.asarray(more).astype(dtype.numpy)
        check(y, want.astype(dtype.numpy), dtype)
        return
    wide = [v.astype(np.float64) for v in (a, b)]
    want = scale * np.matmul(*wide) + more
    bound = abs(scale) * np.matmul(*map(np.abs, wide)) + np.abs(more)
    assert (y.dtype, y.shape) == (dtype.numpy, want.shape)
    assert np.all(np.abs(y.astype(np.float64) - want) <= 8 * epsilon(dtype.numpy) * bound)


@paths
@settings(max_examples=100)
@given(sides=products(NUMERIC))
def test_matmul(path: str, sides: tuple[Array, Array]) -> None:
    (y,) = PATHS[path]("MatMul", list(sides))
    check_product(y, *sides, dtypes.dtype(sides[0].dtype))


@paths
@settings(max_examples=100)
@given(data=st.data())
def test_gemm(path: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from((*FLOATS, *INTEGERS)))
    rows, depth, columns = (data.draw(st.integers(0, 5)) for _ in range(3))
    a = data.draw(arrays((rows, depth), [dtype], special=False))
    b = data.draw(arrays((depth, columns), [dtype], special=False))
    factors = (0.0, 1.0, 0.5, -1.25) if dtype.is_float else (0.0, 1.0, 2.0, 3.0 if dtype.kind == "u" else -3.0)
    alpha, beta = data.draw(st.sampled_from(factors)), data.draw(st.sampled_from(factors))
    shape = data.draw(st.sampled_from([None, (), (1,), (columns,), (rows, 1), (1, columns), (rows, columns)]))
    c = None if shape is None else data.draw(laid_out(some_values(5, shape, dtype, special=False)))
    transposed = {"transA": data.draw(st.booleans()), "transB": data.draw(st.booleans())}
    sides = [m.T if flag else m for m, flag in zip((a, b), transposed.values(), strict=True)]
    inputs = sides if c is None else [*sides, c]
    (y,) = PATHS[path]("Gemm", inputs, {"alpha": alpha, "beta": beta, **transposed})
    more: Any = 0.0
    if c is not None:
        with np.errstate(over="ignore"):
            more = c.astype(np.float64) * beta if dtype.is_float else c * dtype.numpy.type(beta)
    check_product(y, a, b, dtype, more, alpha)


def test_a_product_and_its_bias_are_two_launches() -> None:
    a, c = np.zeros((4, 4), np.float32), np.zeros(4, np.float32)
    assert launches("MatMul", [a, a]) == ["gemm_kernel"]
    assert launches("Gemm", [a, a]) == ["gemm_kernel"]
    assert launches("Gemm", [a, a, c]) == ["gemm_kernel", "elementwise_add_kernel"]
    assert launches("Gemm", [a, a, c], {"beta": 0.0}) == ["gemm_kernel"]
    assert launches("Gemm", [a, a, c], {"beta": 0.5}) == ["gemm_kernel", "elementwise_multiply_add_kernel"]


@paths
def test_a_bias_that_beta_cancels_is_not_read(path: str) -> None:
    a, c = np.eye(2, dtype=np.float32), np.full(2, np.nan, np.float32)
    check(PATHS[path]("Gemm", [a, a, c], {"beta": 0.0})[0], np.eye(2), dtypes.float32)
