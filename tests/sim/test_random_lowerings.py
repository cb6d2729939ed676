"""Random numbers: known answers of the generator, distributions, and what a number may depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.core.philox_answers import KNOWN, Known
from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME
from umd_core.testing.reference.random import philox as reference_philox
from umd_sim.lowerings.random import PIECE, philox
from umd_sim.scratch import Scratch

Array = NDArray[Any]
SEEDS = st.integers(-(2**63), 2**63 - 1)


def draw(
    name: str, dtype: DType, shape: Sequence[int], seed: int = 1, offset: int = 0, *given: Any, order: Any = None
) -> Array:
    """Returns what a random kernel makes of whole row-major operands; `order`: of the axes of `out` in memory."""
    row = BY_NAME[f"random_{name}_kernel"]
    rank = sim.rank_class(len(shape))
    extents = sim.padded(shape, rank)
    axes = list(order or range(len(shape)))
    stored = np.zeros([shape[a] for a in axes], np.bool_ if name == "bernoulli" else dtype.numpy)
    out = stored.transpose(np.argsort(axes))
    arrays = [np.int64(seed).reshape(1), np.int64(offset).reshape(1), *map(np.atleast_1d, given), stored]
    strides = {operand.name: (0,) * rank for operand in row.operands}
    strides["out"] = (0,) * (rank - len(shape)) + tuple(s // stored.itemsize for s in out.strides)
    boxed = {f"{o.name}_strides": strides[o.name] for o in row.operands if o.box}
    offsets = {f"{o.name}_offset": 0 for o in row.operands}
    record = row.record((dtype,), (rank,))
    sim.run(record, record.pack(extents=extents, **offsets, **boxed), arrays)
    return out


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.counter[0]:08x}")
def test_the_generator_gives_the_known_answers(known: Known) -> None:
    counter = [np.full(3, word, np.uint64) for word in known.counter]
    words = philox(counter, known.key, Scratch())
    assert [word.tolist() for word in words] == [[word] * 3 for word in known.words]
    assert reference_philox(known.counter, known.key) == known.words


def test_the_first_words_of_seed_0_are_the_published_ones() -> None:
    whole = draw("integer", dtypes.uint64, (2,), 0, 0, np.int64(0), np.int64(0))
    assert [int(v) for v in whole] == [0xE169C58D6627E8D5, 0x9B00DBD8BC57AC4C]
    units = draw("uniform", dtypes.float32, (4,), 0)
    assert units.tolist() == [(w >> 8) / 2**24 for w in KNOWN[0].words]


@given(seed=SEEDS, offset=SEEDS, count=st.integers(1, 40))
def test_a_number_depends_on_seed_offset_and_place_alone(seed: int, offset: int, count: int) -> None:
    whole = draw("uniform", dtypes.float32, (2, 4, 5), seed, offset)
    assert whole.reshape(-1)[:count].tolist() == draw("uniform", dtypes.float32, (count,), seed, offset).tolist()
    moved = draw("uniform", dtypes.float32, (2, 4, 5), seed, offset, order=(2, 0, 1))
    assert not moved.flags.c_contiguous
    assert moved.tolist() == whole.tolist()


@pytest.mark.parametrize("count", [1, 4 * PIECE - 1, 4 * PIECE + 3, 9 * PIECE])
def test_pieces_make_one_whole(count: int) -> None:
    got = draw("uniform", dtypes.float32, (count,), 7, 9)
    for at in (0, count // 2, count - 1):
        word = reference_philox((at // 4, 0, 9, 0), (7, 0))[at % 4]
        assert got[at] == np.float32((word >> 8) / 2**24)


@given(seed=SEEDS, other=SEEDS)
def test_other_seeds_and_offsets_give_other_numbers(seed: int, other: int) -> None:
    a = draw("uniform", dtypes.float64, (8,), seed, 0)
    assert not np.array_equal(a, draw("uniform", dtypes.float64, (8,), seed, 1))
    assert (seed == other) == np.array_equal(a, draw("uniform", dtypes.float64, (8,), other, 0))


@given(low=SEEDS, width=st.integers(1, 2**63), seed=SEEDS)
def test_integers_lie_in_their_range(low: int, width: int, seed: int) -> None:
    high = min(low + width, 2**63 - 1)
    got = (
        draw("integer", dtypes.int64, (64,), seed, 0, np.int64(low), np.int64(high)) if high > low else np.array([low])
    )
    assert low <= got.min()
    assert got.max() < max(high, low + 1)


# distributions: the largest distance between the empirical and the true distribution function (Kolmogorov-Smirnov)

COUNT = 200_000
BOUND = 1.95 / math.sqrt(COUNT)
"""The distance that one sample in a thousand exceeds."""


def distance(sample: Array, distribution: Callable[[Array], Array]) -> float:
    ordered = np.sort(sample.astype(np.float64))
    true = distribution(ordered)
    ranks = np.arange(1, ordered.size + 1) / ordered.size
    return float(max(np.abs(true - ranks).max(), np.abs(true - ranks + 1 / ordered.size).max()))


def normal(x: Array) -> Array:
    return np.array([(1 + math.erf(v / math.sqrt(2))) / 2 for v in x])


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_uniform_and_normal_numbers_are_spread_as_they_should_be(dtype: DType) -> None:
    uniform = draw("uniform", dtype, (COUNT,), 42).astype(np.float64)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert distance(uniform, lambda x: x) < BOUND
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.01
    bell = draw("normal", dtype, (COUNT,), 43).astype(np.float64)
    assert distance(bell, normal) < BOUND
    assert abs(bell.mean()) < 0.01
    assert abs(bell.std() - 1) < 0.01
    assert abs(np.corrcoef(bell[0::2], bell[1::2])[0, 1]) < 0.02


@pytest.mark.parametrize(("dtype", "digits"), [(dtypes.float16, 11), (dtypes.bfloat16, 8)], ids=str)
def test_short_floats_are_the_same_fractions_cut_off(dtype: DType, digits: int) -> None:
    exact = draw("uniform", dtypes.float32, (COUNT,), 5).astype(np.float64)
    short = draw("uniform", dtype, (COUNT,), 5).astype(np.float64)
    assert np.array_equal(short, np.floor(exact * 2**digits) / 2**digits)
    assert short.max() < 1
    rounded = draw("normal", dtypes.float32, (COUNT,), 5).astype(dtype.numpy)
    assert np.array_equal(draw("normal", dtype, (COUNT,), 5), rounded)


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_truths_are_as_frequent_as_their_chance(chance: float) -> None:
    got = draw("bernoulli", dtypes.float32, (COUNT,), 6, 0, np.float32(chance))
    assert abs(got.mean() - chance) <= 4 * math.sqrt(chance * (1 - chance) / COUNT)


def test_integers_are_equally_frequent() -> None:
    got = draw("integer", dtypes.int16, (COUNT,), 8, 0, np.int64(-3), np.int64(7))
    found, counts = np.unique(got, return_counts=True)
    assert found.tolist() == list(range(-3, 7))
    assert ((counts - COUNT / 10) ** 2 / (COUNT / 10)).sum() < 27.9  # chi-square, 9 degrees of freedom, 1 in 1000
    whole = draw("integer", dtypes.uint8, (COUNT,), 8, 0, np.int64(0), np.int64(256))
    assert np.unique(whole).size == 256
