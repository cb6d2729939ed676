"""Random ops: the same numbers on every path, the right distribution, seeds that are inputs and seeds that are not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS, Array, laid_out, shapes
from tests.core.recipe_interpreter import launches
from umd_core import dtypes
from umd_core.dtypes import FLOATS, INTEGERS
from umd_core.errors import AttributeValueError, UmdError
from umd_core.ir import TensorDesc
from umd_core.testing.reference.random import philox
from umd_core.translate import translate

paths = pytest.mark.parametrize("path", PATHS)
SEEDS = st.integers(-(2**63), 2**63 - 1)
I64 = TensorDesc(dtypes.int64, ())
MANY = 20_000


def keys(seed: int, offset: int = 0) -> list[Array]:
    return [np.array(seed, np.int64), np.array(offset, np.int64)]


def fractions(seed: int, offset: int, count: int) -> Array:
    """Returns the first uniform float32 numbers of a seed and offset, exactly."""
    low, high = (np.array([value], np.int64).view(np.uint32).tolist() for value in (seed, offset))
    words = [philox((at, 0, high[0], high[1]), (low[0], low[1])) for at in range(-(-count // 4))]
    return np.array([w >> 8 for block in words for w in block][:count]) / 2**24


@paths
@settings(max_examples=15)
@given(seed=SEEDS, offset=SEEDS, shape=shapes(max_rank=3))
def test_uniform_numbers_are_those_of_the_kernel(path: str, seed: int, offset: int, shape: tuple[int, ...]) -> None:
    (y,) = PATHS[path]("umd.RandomUniform", keys(seed, offset), {"shape": list(shape)})
    assert (y.dtype, y.shape) == (np.float32, shape)
    np.testing.assert_array_equal(y.reshape(-1), fractions(seed, offset, y.size))


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(FLOATS), seed=SEEDS, low=st.floats(-100, 100), width=st.floats(0, 200),
)  # fmt: skip
def test_uniform_numbers_stay_below_high(dtype: dtypes.DType, seed: int, low: float, width: float) -> None:
    attributes = {"shape": [64], "dtype": dtype.name, "low": low, "high": low + width}
    (y,) = PATHS["sim"]("umd.RandomUniform", keys(seed), attributes)
    start, end = (np.asarray(v).astype(dtype.numpy).astype(np.float64) for v in (low, low + width))
    wide = y.astype(np.float64)
    slack = 4 * float(ml_dtypes.finfo(dtype.numpy).eps) * abs(start)
    assert (wide >= start - slack).all()
    assert (wide < end).all() if end > start else (wide <= start).all()


@paths
def test_uniform_numbers_up_to_beyond_their_type(path: str) -> None:
    (y,) = PATHS[path]("umd.RandomUniform", keys(3), {"shape": [4000], "dtype": "float16", "low": 65000.0, "high": 7e4})
    assert 65000 <= y.min() <= y.max() == np.finfo(np.float16).max


@paths
def test_normal_numbers_have_mean_and_scale(path: str) -> None:
    (plain,) = PATHS[path]("umd.RandomNormal", keys(3), {"shape": [512]})
    (moved,) = PATHS[path]("umd.RandomNormal", keys(3), {"shape": [512], "mean": 5.0, "scale": 0.25})
    np.testing.assert_allclose(moved, 5 + 0.25 * plain, rtol=1e-6)
    u = fractions(3, 0, 512).reshape(-1, 2)
    radius, angle = np.sqrt(-2 * np.log1p(-u[:, 0])), 2 * np.pi * u[:, 1]
    want = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)
    np.testing.assert_allclose(plain, want, atol=4e-6)


@paths
@settings(max_examples=10)
@given(data=st.data(), dtype=st.sampled_from(INTEGERS), seed=SEEDS)
def test_integers_lie_in_their_range(path: str, data: st.DataObject, dtype: dtypes.DType, seed: int) -> None:
    info = np.iinfo(dtype.numpy)
    ends = st.integers(max(int(info.min), -(2**63)), min(int(info.max) + 1, 2**63))
    low, high = sorted(data.draw(st.lists(ends, min_size=2, max_size=2, unique=True)))
    attributes = {"shape": [33], "dtype": dtype.name, "low": low, "high": high}
    (y,) = PATHS[path]("umd.RandomInteger", keys(seed), attributes)
    assert y.dtype == dtype.numpy
    assert low <= int(y.min())
    assert int(y.max()) < high


@paths
@settings(max_examples=10)
@given(data=st.data(), seed=SEEDS, dtype=st.sampled_from(FLOATS))
def test_a_truth_has_the_chance_of_its_element(path: str, data: st.DataObject, seed: int, dtype: dtypes.DType) -> None:
    shape = data.draw(shapes(max_rank=3))
    chances = np.random.default_rng(data.draw(st.integers(0, 99))).uniform(0, 1, shape).astype(dtype.numpy)
    given = data.draw(laid_out(chances))
    (y,) = PATHS[path]("umd.Bernoulli", [given, *keys(seed)], {"dtype": "bool"})
    if dtype is not dtypes.float64:
        want = fractions(seed, 0, y.size).reshape(shape) < chances.astype(np.float64)
        np.testing.assert_array_equal(y, want)
    (numbers,) = PATHS[path]("umd.Bernoulli", [given, *keys(seed)], {})
    assert numbers.dtype == dtype.numpy
    np.testing.assert_array_equal(numbers != 0, y)


# dropout


@paths
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_dropout_keeps_a_share_and_scales_it(path: str, dtype: dtypes.DType, ratio: float) -> None:
    x = np.random.default_rng(0).normal(0, 1, (8, 129)).astype(dtype.numpy)
    y, mask = PATHS[path]("umd.Dropout", [x, *keys(11)], {"ratio": ratio}, 2)
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(mask.reshape(-1), fractions(11, 0, x.size) < np.float32(1 - ratio))
    want = np.where(mask, x.astype(np.float64) / (1 - ratio or 1), 0)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=float(ml_dtypes.finfo(dtype.numpy).eps) * 2)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean(ratio: float) -> None:
    y, mask = PATHS["sim"]("umd.Dropout", [np.ones(MANY, np.float32), *keys(12)], {"ratio": ratio}, 2)
    assert abs(mask.mean() - (1 - ratio)) < 4 * math.sqrt(ratio * (1 - ratio) / MANY)
    assert abs(y.mean() - 1) < 4 * math.sqrt(ratio / (1 - ratio) / MANY)


@paths
def test_onnx_dropout(path: str) -> None:
    x = np.random.default_rng(0).normal(0, 1, (4, 33)).astype(np.float32)
    training, ratio = np.array(True), np.array(0.25, np.float32)
    y, mask = PATHS[path]("Dropout", [x, ratio, training], {"seed": 5}, 2)
    np.testing.assert_array_equal(mask.reshape(-1), fractions(5, 0, x.size) < 0.75)
    np.testing.assert_allclose(y, np.where(mask, x / 0.75, 0), rtol=1e-6)
    again, _ = PATHS[path]("Dropout", [x, ratio, training], {"seed": 5}, 2)
    np.testing.assert_array_equal(again, y)
    other, _ = PATHS[path]("Dropout", [x, ratio, training], {"seed": 6}, 2)
    assert not np.array_equal(other, y)
    for inputs in ([x], [x, ratio], [x, ratio, np.array(False)], [x, np.array(0, np.float32), training]):
        same, all_true = PATHS[path]("Dropout", inputs, {"seed": 5} if len(inputs) == 3 else {}, 2)
        np.testing.assert_array_equal(same, x)
        assert all_true.all()
    with pytest.raises(AttributeValueError, match="the same elements at each run"):
        PATHS[path]("Dropout", [x, ratio, training], {}, 2)


# seeds


ONNX: tuple[tuple[str, list[Array], Mapping[str, Any]], ...] = (
    ("RandomUniform", [], {"shape": [40]}),
    ("RandomNormal", [], {"shape": [40], "dtype": "float16", "mean": 1.0}),
    ("RandomUniformLike", [np.zeros((5, 8), np.int32)], {"dtype": "float64", "low": -1.0}),
    ("RandomNormalLike", [np.zeros((5, 8), np.float32)], {}),
    ("Bernoulli", [np.full((5, 8), 0.5)], {"dtype": "int8"}),
)


@paths
@pytest.mark.parametrize(("op", "inputs", "attributes"), ONNX, ids=lambda v: v if isinstance(v, str) else "")
def test_onnx_ops_draw_by_the_seed_of_their_attribute(
    path: str, op: str, inputs: list[Array], attributes: Mapping[str, Any]
) -> None:
    (first,), (again,), (other,) = (PATHS[path](op, inputs, {**attributes, "seed": seed}) for seed in (1.5, 1.5, 2.5))
    assert first.size == 40
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    with pytest.raises(AttributeValueError, match="the same numbers at each run"):
        PATHS[path](op, inputs, attributes)


def test_a_program_has_seed_and_offset_as_arguments() -> None:
    buffers = [translate("umd.RandomUniform", [I64, I64], shape=[4]) for _ in range(2)]
    assert bytes(buffers[0]) == bytes(buffers[1])
    assert launches("umd.RandomUniform", keys(1), {"shape": [4]}) == ["random_uniform_kernel"]


BAD: tuple[tuple[str, list[TensorDesc], dict[str, Any], str], ...] = (
    ("umd.RandomUniform", [I64, I64], {"shape": [-1]}, "'shape'"),
    ("umd.RandomUniform", [I64, I64], {"shape": [1], "dtype": "int32"}, "'dtype'"),
    ("umd.RandomUniform", [I64, I64], {"shape": [1], "low": 2.0}, "'high'"),
    ("umd.RandomUniform", [TensorDesc(dtypes.int64, (2,)), I64], {"shape": [1]}, "'seed'"),
    ("umd.RandomUniform", [TensorDesc(dtypes.int32, ()), I64], {"shape": [1]}, "'seed'"),
    ("umd.RandomNormal", [I64, I64], {"shape": [1], "scale": -1.0}, "'scale'"),
    ("umd.RandomInteger", [I64, I64], {"shape": [1], "high": 0}, "'high'"),
    ("umd.RandomInteger", [I64, I64], {"shape": [1], "high": 257, "dtype": "uint8"}, "'high'"),
    ("umd.RandomInteger", [I64, I64], {"shape": [1], "high": 2**64, "dtype": "uint64"}, "'high'"),
    ("umd.Dropout", [TensorDesc(dtypes.float32, (2,)), I64, I64], {"ratio": 1.5}, "'ratio'"),
    ("umd.Dropout", [TensorDesc(dtypes.float32, (2,)), I64, TensorDesc(dtypes.int64, (3,))], {}, "'offset'"),
    ("umd.Bernoulli", [TensorDesc(dtypes.int32, (2,)), I64, I64], {}, "'input'"),
)


@pytest.mark.parametrize(("op", "inputs", "attributes", "word"), BAD)
def test_what_does_not_fit_is_refused_by_name(
    op: str, inputs: list[TensorDesc], attributes: dict[str, Any], word: str
) -> None:
    with pytest.raises(UmdError, match=word) as caught:
        translate(op, inputs, **attributes)
    assert op in str(caught.value)
