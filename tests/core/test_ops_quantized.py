"""Quantised numbers: rounding, saturation, scales per axis and block, and integer products that are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS
from umd_core.errors import AttributeValueError, DTypeError, ShapeError, UmdError
from umd_core.ir import TensorDesc
from umd_core.translate import translate

Array = np.ndarray[Any, Any]
SMALL = st.sampled_from((np.int8, np.uint8, np.int16, np.uint16))
SEEDS = st.integers(0, 2**32)


def bytes_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def spread(value: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """Returns a scale or zero point for every element of `shape`."""
    if value.ndim == 0:
        return np.broadcast_to(value, shape)
    if block:
        return np.repeat(value, block, axis).take(range(shape[axis]), axis)
    return np.broadcast_to(value.reshape([-1 if a == axis else 1 for a in range(len(shape))]), shape)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=30)
@given(
    seed=SEEDS,
    dtype=SMALL,
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    granularity=st.sampled_from(("tensor", "axis", "block")),
    zero=st.booleans(),
    data=st.data(),
)
def test_there_and_back(
    path: str, seed: int, dtype: Any, shape: tuple[int, ...], granularity: str, zero: bool, data: st.DataObject
) -> None:
    rng, axis = np.random.default_rng(seed), data.draw(st.integers(-len(shape), len(shape) - 1))
    place, block = axis % len(shape), data.draw(st.integers(1, 3)) if granularity == "block" else 0
    own: tuple[int, ...] = ()
    if granularity == "axis":
        own = (shape[place],)
    elif block:
        own = (*shape[:place], -(-shape[place] // block), *shape[place + 1 :])
    scale = rng.choice(np.array([0.25, 0.5, 2], np.float32), own)
    point = np.asarray(bytes_of(rng, own, dtype)) if zero else None
    x = (rng.integers(-100, 100, shape) / 8).astype(np.float32)  # so that quotients end in exact halves, too
    x.reshape(-1)[0] = 1e9
    attributes = {"axis": axis, "block_size": block}
    if point is None:
        attributes["output_dtype"] = {np.int8: 3, np.uint8: 2, np.int16: 5, np.uint16: 4}[dtype]
    (got,) = PATHS[path]("QuantizeLinear", [x, scale, point][: 3 if zero else 2], attributes)
    every = spread(scale, shape, place, block).astype(np.float64)
    offset = 0 if point is None else spread(point, shape, place, block).astype(np.float64)
    limits = np.iinfo(dtype)
    want = np.clip(np.rint(x / every) + offset, limits.min, limits.max).astype(dtype)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want)

    attributes.pop("output_dtype", None)
    (back,) = PATHS[path]("DequantizeLinear", [got, scale, point][: 3 if zero else 2], attributes)
    np.testing.assert_allclose(back, (want - offset) * every, rtol=1e-6)


def test_what_is_no_number_or_beyond_all_saturates() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.5, 1.5, 2.5, -0.5], np.float32)
    (got,) = PATHS["sim"]("QuantizeLinear", [x, np.array(1, np.float32), np.array(1, np.int8)])
    np.testing.assert_array_equal(got, np.array([0, 127, -128, 1, 1, 3, 3, 1], np.int8))


@pytest.mark.parametrize("values", [[0, 0, 0], [1, 2, 5], [-3, -1], [-0.5, 7, 2.25], [300.0]])
def test_a_range_becomes_a_scale_and_zero_point(values: list[float]) -> None:
    x = np.array(values, np.float32)
    y, scale, zero = PATHS["sim"]("DynamicQuantizeLinear", [x], None, 3)
    span = np.float32(max(*values, 0.0) - min(*values, 0.0))
    assert scale == (span / np.float32(255) if span else 1)
    assert zero == np.rint(-min(*values, 0.0) / scale)
    np.testing.assert_array_equal(y, np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=25)
@given(
    seed=SEEDS,
    types=st.tuples(*[st.sampled_from((np.int8, np.uint8))] * 2),
    depth=st.sampled_from((1, 7, 300)),
    shapes=st.sampled_from((((2,), (3,)), ((2, 3, 4), (4,)), ((), ()), ((3, 2), ()))),
    zeros=st.sampled_from(("none", "all", "each")),
)
def test_matmul_integer_is_exact(
    path: str, seed: int, types: tuple[Any, Any], depth: int, shapes: Any, zeros: str
) -> None:
    rng = np.random.default_rng(seed)
    (rows, columns) = shapes
    a, b = bytes_of(rng, (*rows, depth), types[0]), bytes_of(rng, (depth, *columns), types[1])
    points: list[Array] = []
    if zeros != "none":
        each = zeros == "each"
        points = [
            bytes_of(rng, rows[-1:] if each and len(rows) == 1 else (), types[0]),
            bytes_of(rng, columns if each else (), types[1]),
        ]
    (got,) = PATHS[path]("MatMulInteger", [a, b, *points])
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    if points:
        wide_a = wide_a - (points[0][:, None] if points[0].ndim else points[0])
        wide_b = wide_b - points[1]
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, wide_a @ wide_b)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("depth", [1, 40])
@pytest.mark.parametrize("group", [1, 2])
def test_conv_integer_is_exact_and_pads_with_the_zero_point(path: str, depth: int, group: int) -> None:
    rng = np.random.default_rng(depth)
    x, w = bytes_of(rng, (2, depth * group, 4, 3), np.uint8), bytes_of(rng, (4, depth, 3, 2), np.int8)
    x_zero, w_zero = np.array(131, np.uint8), bytes_of(rng, (4,), np.int8)
    attributes = {"pads": [1, 1, 1, 0], "group": group}
    (got,) = PATHS[path]("ConvInteger", [x, w, x_zero, w_zero], attributes)
    wide = [x.astype(np.float64) - 131, w.astype(np.float64) - w_zero[:, None, None, None]]
    (want,) = PATHS["sim"]("Conv", wide, attributes)
    np.testing.assert_array_equal(got, want.astype(np.int64))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=20)
@given(seed=SEEDS, each=st.booleans(), dtype=st.sampled_from((np.int8, np.uint8)))
def test_qlinear_products_are_products_of_what_the_bytes_stand_for(
    path: str, seed: int, each: bool, dtype: Any
) -> None:
    rng = np.random.default_rng(seed)
    a, b = bytes_of(rng, (3, 5), np.uint8), bytes_of(rng, (5, 4), np.int8)
    a_zero, b_zero, y_zero = np.uint8(7), bytes_of(rng, (4,) if each else (), np.int8), dtype(3)
    scales = np.float32(0.5), rng.choice(np.array([0.25, 2], np.float32), (4,) if each else ()), np.float32(1024)
    inputs = [a, scales[0], a_zero, b, scales[1], b_zero, scales[2], y_zero]
    limits = np.iinfo(dtype)

    def quantised(real: Array) -> Array:
        return np.asarray(np.clip(np.rint(real / 1024) + 3, limits.min, limits.max).astype(dtype))

    left, right = (a - np.float64(7)) * 0.5, (b - b_zero.astype(np.float64)) * scales[1]
    (got,) = PATHS[path]("QLinearMatMul", inputs)
    np.testing.assert_array_equal(got, quantised(left @ right))

    bias = rng.integers(-9999, 9999, 4).astype(np.int32)
    x, w = a.reshape(1, 5, 3), np.ascontiguousarray(b.T).reshape(4, 5, 1)
    image = [x, scales[0], a_zero, w, scales[1], b_zero, scales[2], y_zero, bias]
    (got,) = PATHS[path]("QLinearConv", image)
    real = right.T @ (x[0] - np.float64(7)) * 0.5 + (bias * 0.5 * scales[1])[:, None]
    np.testing.assert_array_equal(got, quantised(real)[None])


def f32(*shape: int) -> TensorDesc:
    return TensorDesc("f32", shape)


def u8(*shape: int) -> TensorDesc:
    return TensorDesc("u8", shape)


REFUSED: list[tuple[str, list[Any], dict[str, Any], type[UmdError], str]] = [
    ("QuantizeLinear", [f32(2, 3), f32(2)], {}, ShapeError, "'y_scale'"),
    ("QuantizeLinear", [f32(2, 3), f32(3), u8(2)], {}, ShapeError, "'y_zero_point'"),
    ("QuantizeLinear", [f32(2, 3), f32(2, 3)], {"block_size": 2}, ShapeError, "'y_scale'"),
    ("QuantizeLinear", [f32(2, 3), f32(3)], {"axis": 2}, AttributeValueError, "axis"),
    ("QuantizeLinear", [f32(2, 3), f32()], {"block_size": -1}, AttributeValueError, "block_size"),
    ("QuantizeLinear", [f32(2, 3), f32()], {"output_dtype": 17}, AttributeValueError, "output_dtype"),
    ("QuantizeLinear", [f32(2, 3), f32(), u8()], {"output_dtype": 3}, AttributeValueError, "output_dtype"),
    ("QuantizeLinear", [f32(2, 3), f32()], {"precision": 11}, AttributeValueError, "precision"),
    ("QuantizeLinear", [TensorDesc("f64", (2,)), f32()], {}, DTypeError, "'x'"),
    ("DequantizeLinear", [f32(2), f32()], {}, DTypeError, "'x'"),
    ("DequantizeLinear", [u8(2, 3), f32(3), u8()], {}, ShapeError, "'x_zero_point'"),
    ("MatMulInteger", [u8(2, 3), u8(4, 2)], {}, ShapeError, "'B'"),
    ("MatMulInteger", [u8(2, 3), u8(3, 2), u8(3)], {}, ShapeError, "'a_zero_point'"),
    ("MatMulInteger", [u8(2, 3), u8(3, 4), None, u8(3)], {}, ShapeError, "'b_zero_point'"),
    ("QLinearMatMul", [u8(2, 3), f32(3), u8(), u8(3, 2), f32(), u8(), f32(), u8()], {}, ShapeError, "'a_scale'"),
    ("ConvInteger", [u8(1, 2, 3), u8(1, 2, 2), u8(2)], {}, ShapeError, "'x_zero_point'"),
    ("ConvInteger", [u8(1, 2, 3), u8(1, 2, 2), None, u8(2)], {}, ShapeError, "'w_zero_point'"),
    (
        "QLinearConv",
        [u8(1, 2, 3), f32(), u8(), u8(1, 2, 2), f32(), u8(), f32(), u8(), TensorDesc("i32", (2,))],
        {},
        ShapeError,
        "'B'",
    ),
]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error", "word"), REFUSED, ids=[f"{n}-{case[0]}" for n, case in enumerate(REFUSED)]
)
def test_refused(op: str, inputs: list[Any], attributes: dict[str, Any], error: type[UmdError], word: str) -> None:
    with pytest.raises(error, match=word):
        translate(op, inputs, **attributes)
