"""Casts between every two element types."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType

PAIRS = list(itertools.product(dtypes.ALL, dtypes.ALL))


def convert(value: Any, target: DType) -> Any:
    """Returns what a Python number becomes."""
    if target.kind == "b":
        return value != 0
    if target.is_float:
        return float(value)
    limits = np.iinfo(target.numpy)
    if isinstance(value, float):
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return limits.max if value > 0 else limits.min
        return max(limits.min, min(limits.max, math.trunc(value)))
    bits = 8 * target.size
    wrapped = int(value) % (1 << bits)
    return wrapped - (1 << bits) if target.kind == "i" and wrapped >> (bits - 1) else wrapped


def check(pair: tuple[DType, DType], shape: tuple[int, ...], seed: int, **options: Any) -> None:
    source, target = pair
    rank = sim.rank_class(len(shape))
    extents = {"extents": sim.padded(shape, rank)}
    launch = sim.launch("elementwise_cast_kernel", pair, (rank,), extents, seed=seed, **options)
    got = launch.run()["out"]
    if got.size == 0:
        return
    given_values = launch.inputs["x"]
    numbers = [float(v) if source.is_float else v.item() for v in given_values.reshape(-1)]
    expected = np.array([convert(n, target) for n in numbers], np.float64 if target.is_float else target.numpy)
    sim.close(got, expected.reshape(got.shape), 1.0, got.dtype)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_every_pair(pair: tuple[DType, DType]) -> None:
    for seed, shape in enumerate(((3, 4, 5), (), (50,), (2, 0))):
        check(pair, shape, seed, special=True)
    check(pair, (100, 90), 9)


@given(
    pair=st.sampled_from([(s, t) for s, t in PAIRS if s.is_float and t.is_integer]),
    numbers=st.lists(
        st.floats(width=16)
        | st.integers(6, 66).flatmap(
            lambda k: st.sampled_from([2.0**k, -(2.0**k), 2.0**k - 1, 0.5 - 2.0**k, 2.0**k + 1])
        ),
        min_size=1,
        max_size=9,
    ),
)
def test_floats_saturate_around_the_limits(pair: tuple[DType, DType], numbers: list[float]) -> None:
    def make(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        with np.errstate(all="ignore"):
            return np.resize(np.array(numbers), shape).astype(dtype)

    check(pair, (len(numbers),), 1, make=make, plain=True)


@pytest.mark.parametrize(
    "pair", [(s, t) for s, t in PAIRS if s.is_float and t.is_integer], ids=lambda p: f"{p[0]}-{p[1]}"
)
def test_the_ends_of_the_integers(pair: tuple[DType, DType]) -> None:
    limits = np.iinfo(pair[1].numpy)
    ends = [2.0**k * sign for k in (7, 8, 15, 16, 31, 32, 63, 64) for sign in (1, -1)]
    numbers = [*ends, *(e - 1 for e in ends), *(e + 1 for e in ends), 0.99, -0.99, float(limits.max), float(limits.min)]

    def make(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        with np.errstate(all="ignore"):
            return np.array(numbers).astype(dtype)

    check(pair, (len(numbers),), 0, make=make, plain=True)
