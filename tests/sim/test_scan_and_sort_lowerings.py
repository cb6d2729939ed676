"""Scans and sorts against loops over rows, in every layout, in pieces too."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
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
from umd_sim.lowerings import sorting

Array = NDArray[Any]
SCANS = [(row, dtype) for row in BY_NAME.values() if row.family == "scan" for dtype in row.types[0][1]]
SORT = BY_NAME["sort_kernel"]
OUTER = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def _extreme(wins: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    return lambda a, b: a if a != a or wins(a, b) else b


COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "mul": operator.mul, "max": _extreme(operator.gt), "min": _extreme(operator.lt),
}  # fmt: skip


def nothing(program: str, dtype: DType) -> Any:
    """Returns what an exclusive scan begins with."""
    if program in ("add", "mul"):
        return 0 if program == "add" else 1
    if dtype.is_float:
        return -math.inf if program == "max" else math.inf
    return getattr(np.iinfo(dtype.numpy), "min" if program == "max" else "max")


def scan_row(program: str, row: list[Any], dtype: DType, *, exclusive: bool, reverse: bool) -> list[Any]:
    """Returns the running results of a row."""
    results = list(itertools.accumulate(row[::-1] if reverse else row, COMBINE[program]))
    if exclusive and row:
        results = [nothing(program, dtype), *results[:-1]]
    return results[::-1] if reverse else results


def check_scan(case: tuple[KernelRow, DType], outer: tuple[int, ...], length: int, seed: int) -> None:
    row, dtype = case
    rank = sim.rank_class(len(outer))
    exclusive, reverse = bool(seed & 1), bool(seed & 2)
    launch = sim.launch(
        row.name, (dtype,), (rank,), {"outer": sim.padded(outer, rank), "length": length},
        fields={"exclusive": int(exclusive), "reverse": int(reverse)}, seed=seed,
        special=row.program in ("max", "min"), plain=seed % 5 == 0,
    )  # fmt: skip
    got = launch.run()["out"]
    number = float if dtype.is_float else int
    rows = [[number(v) for v in r] for r in launch.inputs["x"].reshape(math.prod(outer), length)]
    wanted = [v for r in rows for v in scan_row(row.program, r, dtype, exclusive=exclusive, reverse=reverse)]
    if dtype.is_float:
        sizes = [[abs(v) for v in r] for r in rows]
        scale = [s for r in sizes for s in scan_row("add", r, dtype, exclusive=exclusive, reverse=reverse)]
        adds = row.program == "add"
        sim.close(got.reshape(-1), np.array(wanted), row.tolerance, got.dtype, np.array(scale) if adds else None)
    else:
        bits = 8 * dtype.size
        wrapped = np.array([v % (1 << bits) for v in wanted], np.uint64).astype(f"u{dtype.size}").view(dtype.numpy)
        np.testing.assert_array_equal(got.reshape(-1), wrapped)


@pytest.mark.parametrize("case", SCANS, ids=lambda case: f"{case[0].name}-{case[1]}")
def test_every_scan_and_type(case: tuple[KernelRow, DType]) -> None:
    for seed, (outer, length) in enumerate([((3, 2), 5), ((), 7), ((4,), 1), ((2,), 0), ((0,), 3), ((2, 1, 3), 4)]):
        for way in range(4):
            check_scan(case, outer, length, 4 * seed + way)


@given(case=st.sampled_from(SCANS), outer=OUTER, length=st.integers(0, 9), seed=st.integers(0, 2**32))
def test_scans_in_any_layout(case: tuple[KernelRow, DType], outer: tuple[int, ...], length: int, seed: int) -> None:
    check_scan(case, outer, length, seed)


def test_long_running_sums_keep_their_digits() -> None:
    launch = sim.launch(
        "scan_sum_kernel", (dtypes.float32,), (1,), {"outer": (1,), "length": 200_000},
        fields={"exclusive": 0, "reverse": 0}, seed=0, plain=True,
    )  # fmt: skip
    launch.inputs["x"][...] = 0.1
    np.testing.assert_allclose(launch.run()["out"][0], np.arange(1, 200_001) * 0.1, rtol=3e-7)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_scan_in_place(exclusive: int, reverse: int) -> None:
    x = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    want = [scan_row("add", r, dtypes.int32, exclusive=bool(exclusive), reverse=bool(reverse)) for r in x.tolist()]
    record = BY_NAME["scan_sum_kernel"].record((dtypes.int32,), (1,))
    block = record.pack(
        outer=(3,), length=4, x_offset=0, x_strides=(4, 1), out_offset=0, out_strides=(4, 1), exclusive=exclusive,
        reverse=reverse,
    )  # fmt: skip
    sim.run(record, block, [x, x])
    assert x.tolist() == want


# sorting


def sort_row(row: list[Any], *, descending: bool) -> list[int]:
    """Returns positions in order: numbers, then NaN, the whole turned round if descending; equal ones as they come."""
    numbers = [i for i, v in enumerate(row) if v == v]
    missing = [i for i, v in enumerate(row) if v != v]
    numbers.sort(key=lambda i: row[i], reverse=descending)
    return missing + numbers if descending else numbers + missing


def check_sort(dtype: DType, outer: tuple[int, ...], length: int, count: int, seed: int) -> None:
    rank = sim.rank_class(len(outer))
    launch = sim.launch(
        "sort_kernel", (dtype,), (rank,), {"outer": sim.padded(outer, rank), "length": length, "count": count},
        fields={"descending": seed & 1}, seed=seed, special=seed % 3 > 0, plain=seed % 5 == 0,
    )  # fmt: skip
    got = launch.run()
    rows = launch.inputs["x"].reshape(math.prod(outer), length)
    index = np.full((len(rows), count), -1)
    values = np.zeros((len(rows), count), dtype.numpy)
    for at, row in enumerate(rows):
        first = sort_row([v if dtype.is_integer else float(v) for v in row], descending=bool(seed & 1))[:count]
        index[at, : len(first)], values[at, : len(first)] = first, row[first]
    np.testing.assert_array_equal(got["index"].reshape(-1), index.reshape(-1))
    np.testing.assert_array_equal(got["values"].reshape(-1).astype("f8"), values.reshape(-1).astype("f8"))


SIZES = [((3, 2), 5, 5), ((), 9, 2), ((4,), 1, 1), ((2,), 0, 2), ((0,), 3, 3), ((2,), 3, 0), ((2, 2), 3, 5)]


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_type_sorts(dtype: DType) -> None:
    for number, (outer, length, count) in enumerate([*SIZES, ((2,), 100, 100), ((3,), 100, 3)]):
        for seed in range(4 * number, 4 * number + 4):
            check_sort(dtype, outer, length, count, seed)


SORTED = {
    "dtype": st.sampled_from(dtypes.ALL), "outer": OUTER, "length": st.integers(0, 9), "count": st.integers(0, 10),
    "seed": st.integers(0, 2**32),
}  # fmt: skip


@given(**SORTED)
def test_sorts_in_any_layout(dtype: DType, outer: tuple[int, ...], length: int, count: int, seed: int) -> None:
    check_sort(dtype, outer, length, count, seed)


@pytest.mark.parametrize("piece", [1, 6, 40])
@pytest.mark.parametrize("long", [1, 3, 7])
def test_sorts_in_pieces_are_the_same(piece: int, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "PIECE", piece)
    monkeypatch.setattr(sorting, "LONG", long)
    for seed, dtype in enumerate((*dtypes.FLOATS, dtypes.int8, dtypes.uint32, dtypes.int64, dtypes.bool_)):
        for outer, length, count in [*SIZES, ((2, 3), 30, 1), ((3,), 41, 3), ((), 50, 6)]:
            check_sort(dtype, outer, length, count, seed)
