"""Reductions and arg-reductions against loops over rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME, KernelRow

Array = NDArray[Any]
CASES = [
    (row, dtype) for row in BY_NAME.values() if row.family in ("reduce", "arg_reduce") for dtype in row.types[0][1]
]
SHAPES = [
    ((3, 4), (5,)),
    ((7,), (3, 2)),
    ((), (4, 3)),
    ((2, 3), ()),
    ((2, 1, 3), (2, 2)),
    ((0, 2), (3,)),
    ((3,), (0, 2)),
]


def reduce_row(program: str, row: list[Any], dtype: DType) -> Any:
    if program in ("max", "min"):
        if not row:
            if dtype.is_float:
                return -math.inf if program == "max" else math.inf
            return getattr(np.iinfo(dtype.numpy), "min" if program == "max" else "max")
        if any(v != v for v in row):
            return math.nan
        return max(row) if program == "max" else min(row)
    if program == "mean":
        return math.nan if not row else np.float64(sum(row, 0.0)) / len(row)
    total: Any = (1.0 if program == "mul" else 0.0) if dtype.is_float else (1 if program == "mul" else 0)
    for value in row:
        total = total * value if program == "mul" else total + value
    return total


def arg_row(program: str, row: list[Any], last: bool) -> int:
    if not row:
        return 0
    numbers = list(enumerate(row))
    nans = [i for i, v in numbers if v != v]
    extreme = max(row) if program == "max" else min(row)
    best = nans or [i for i, v in numbers if v == extreme]
    return best[-1] if last else best[0]


def check(case: tuple[KernelRow, DType], shapes: tuple[tuple[int, ...], tuple[int, ...]], seed: int) -> None:
    row, dtype = case
    outer, inner = shapes
    ranks = (sim.rank_class(len(outer)), sim.rank_class(len(inner)))
    last = seed % 2
    launch = sim.launch(
        row.name,
        (dtype,),
        ranks,
        {"outer": sim.padded(outer, ranks[0]), "inner": sim.padded(inner, ranks[1])},
        fields={"select_last": last} if row.family == "arg_reduce" else {},
        seed=seed,
        special=seed % 3 == 1 and row.program in ("max", "min"),
        plain=seed % 5 == 0,
    )
    got = launch.run()["out"]
    count = math.prod(inner)
    rows = launch.inputs["x"].reshape(math.prod(outer), count)
    numbers = [[float(v) if dtype.is_float else int(v) for v in r] for r in rows]
    if row.family == "arg_reduce":
        expected = np.array([arg_row(row.program, r, bool(last)) for r in numbers], np.int64)
        np.testing.assert_array_equal(got.reshape(-1), expected)
        return
    results = [reduce_row(row.program, r, dtype) for r in numbers]
    if dtype.is_float:
        scale = [
            max(abs(v), sum(abs(x) for x in r)) if row.program != "mul" else abs(v)
            for r, v in zip(numbers, results, strict=True)
        ]
        sim.close(got.reshape(-1), np.array(results), row.tolerance, got.dtype, np.array(scale))
    else:
        bits = 8 * dtype.size
        wrapped = (
            np.array([int(v) % (1 << bits) for v in results], np.uint64).astype(f"u{dtype.size}").view(dtype.numpy)
        )
        np.testing.assert_array_equal(got.reshape(-1), wrapped)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[1]}")
def test_every_kernel_and_type(case: tuple[KernelRow, DType]) -> None:
    for seed, shapes in enumerate(SHAPES):
        check(case, shapes, seed)


@given(
    case=st.sampled_from(CASES),
    outer=st.lists(st.integers(0, 4), max_size=5).map(tuple),
    inner=st.lists(st.integers(0, 4), max_size=5).map(tuple),
    seed=st.integers(0, 2**32),
)
def test_any_layout(case: tuple[KernelRow, DType], outer: tuple[int, ...], inner: tuple[int, ...], seed: int) -> None:
    check(case, (outer, inner), seed)


@pytest.mark.parametrize(
    "shapes",
    [
        ((300,), (5,)),
        ((260,), (3, 4)),
        ((4,), (9000,)),
        ((9,), (900, 7)),
        ((), (30000,)),
        ((70,), (24,)),
        ((100,), (16,)),
        ((90,), (3,)),
        ((300,), (64,)),
        ((80,), (40,)),
    ],
)
@pytest.mark.parametrize("name", ["reduce_sum_kernel", "reduce_mean_kernel", "reduce_max_kernel", "argmax_kernel"])
def test_rows_of_every_length(name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for seed in (0, 1, 2, 10):
        check((BY_NAME[name], dtypes.float32), shapes, seed)
    if name != "reduce_mean_kernel":
        check((BY_NAME[name], dtypes.int16), shapes, 0)


def test_long_sums_keep_their_digits() -> None:
    # Rows that lie across memory are added one by one: 0.1 a hundred thousand times drifts in float32.
    record = BY_NAME["reduce_sum_kernel"].record((dtypes.float32,), (1, 1))
    count = 100_000
    block = record.pack(outer=(2,), inner=(count,), x_offset=0, x_strides=(1, 2), out_offset=0, out_strides=(1,))
    x, out = np.full(2 * count, 0.1, np.float32), np.zeros(2, np.float32)
    sim.run(record, block, [x, out])
    np.testing.assert_allclose(out, float(np.float32(0.1)) * count, rtol=1e-6)
