"""Matrix products against sums in float64 or Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME

Array = NDArray[Any]
TYPES = BY_NAME["gemm_kernel"].types[0][1]


def check(dtype: DType, batch: tuple[int, ...], matrix: tuple[int, int, int], seed: int) -> None:
    rank = sim.rank_class(len(batch))
    rows, columns, depth = matrix
    extents = {"batch": sim.padded(batch, rank), "rows": rows, "columns": columns, "depth": depth}
    launch = sim.launch("gemm_kernel", (dtype,), (rank,), extents, seed=seed, plain=seed % 4 == 0)
    got = launch.run()["out"]
    wide = np.float64 if dtype.is_float else object
    a, b = launch.inputs["a"].astype(wide), launch.inputs["b"].astype(wide)
    expected = np.zeros(got.shape, wide)
    scale = np.zeros(got.shape)
    for k in range(depth):
        term = a[..., :, k, None] * b[..., None, k, :]
        expected = expected + term
        scale = scale + np.abs(term.astype(np.float64))
    if dtype.is_float:
        sim.close(got, expected, 4.0 + depth, got.dtype, scale)
    elif got.size:
        bits = 1 << 8 * dtype.size
        wrapped = np.vectorize(lambda v: int(v) % bits, otypes=[np.uint64])(expected)
        np.testing.assert_array_equal(got, wrapped.astype(f"u{dtype.size}").view(dtype.numpy))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type(dtype: DType) -> None:
    shapes = (
        ((), (3, 4, 5)),
        ((2,), (1, 4, 7)),
        ((2, 3), (4, 1, 2)),
        ((), (0, 2, 3)),
        ((2,), (2, 3, 0)),
        ((0,), (2, 2, 2)),
    )
    for seed, (batch, matrix) in enumerate((*shapes, ((), (33, 17, 65)), ((1, 2, 1, 2, 1), (2, 2, 2)))):
        check(dtype, batch, matrix, seed)


@given(
    dtype=st.sampled_from(TYPES),
    batch=st.lists(st.integers(0, 3), max_size=5).map(tuple),
    matrix=st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)),
    seed=st.integers(0, 2**32),
)
def test_any_layout(dtype: DType, batch: tuple[int, ...], matrix: tuple[int, int, int], seed: int) -> None:
    check(dtype, batch, matrix, seed)


def test_one_matrix_for_the_whole_batch() -> None:
    record = BY_NAME["gemm_kernel"].record((dtypes.float32,), (4,))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 4, 5)).astype(np.float32), rng.standard_normal((5, 6)).astype(np.float32)
    out = np.zeros((2, 3, 4, 6), np.float32)
    block = record.pack(
        batch=(1, 1, 2, 3), rows=4, columns=6, depth=5, a_offset=0, a_strides=(0, 0, 60, 20, 5, 1),
        b_offset=0, b_strides=(0, 0, 0, 0, 6, 1), out_offset=0, out_strides=(0, 0, 72, 24, 6, 1),
    )  # fmt: skip
    sim.run(record, block, [a, b, out])
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16], ids=str)
def test_short_integers_wrap_exactly(dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)

    def make(name: str, shape: tuple[int, ...], numpy: np.dtype[Any]) -> Array:
        return np.full(shape, limits.min if name == "a" and limits.min else limits.max, numpy)

    extents = {"batch": (1,), "rows": 2, "columns": 2, "depth": 1001}
    launch = sim.launch("gemm_kernel", (dtype,), (1,), extents, make=make)
    expected = 1001 * int(limits.min or limits.max) * int(limits.max) % (1 << 8 * dtype.size)
    assert (launch.run()["out"].view(f"u{dtype.size}") == expected).all()


def test_long_sums_of_short_integers_stay_exact() -> None:
    # 65535² summed 2^21 + 101 times is odd and leaves what float64 can count.
    depth = (1 << 21) + 101
    record = BY_NAME["gemm_kernel"].record((dtypes.uint16,), (1,))
    block = record.pack(
        batch=(1,), rows=1, columns=1, depth=depth, a_offset=0, a_strides=(0, 0, 0), b_offset=0, b_strides=(0, 0, 0),
        out_offset=0, out_strides=(0, 0, 0),
    )  # fmt: skip
    out = np.zeros(1, np.uint16)
    sim.run(record, block, [np.full(1, 65535, np.uint16), np.full(1, 65535, np.uint16), out])
    assert out[0] == depth * 65535 * 65535 % 65536
