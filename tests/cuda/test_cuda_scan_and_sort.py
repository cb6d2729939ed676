"""Scans and sorts on long rows, and in every block that they may be launched with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda import kernel_runs
from tests.cuda.kernel_runs import disagreements, findings, has_compiler, launches_of, pick, run, with_sizes
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.ir import Array
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.testing.launches import Launch, Piece
from umd_cuda.geometry import SORTED_ALONE, Geometry, launch_geometry, serial_geometry
from umd_cuda.sources import KernelSource, source_for

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

LENGTH = 5000
GEOMETRIES: dict[str, Any] = {
    "gpu": launch_geometry,
    "serial": serial_geometry,
    "64": lambda record, flat: ((2, 1, 1), (64, 1, 1), 0),
}
by_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)


def geometry_of(block: tuple[int, int, int]) -> Any:
    """Returns a geometry of three workgroups."""
    return lambda record, flat: ((3, 1, 1), block, 0)


def row_launch(name: str, x: Array, results: list[Array], **parameters: Any) -> Launch:
    """Returns a launch over one row, operand by operand; the same array twice means in place."""
    row = BY_NAME[name]
    record = with_sizes(row, [1]).record([dtypes.dtype(x.dtype)], [1])
    arrays = [x, *results]
    memories = [a.view(np.uint8) for at, a in enumerate(arrays) if not any(a is other for other in arrays[:at])]
    pieces = []
    for operand, array in zip(row.operands, arrays, strict=True):
        at = next(i for i, a in enumerate(arrays) if a is array)
        pieces.append(Piece(at, 0, array.nbytes, (), 0))
        parameters |= {f"{operand.name}_offset": 0, f"{operand.name}_strides": (0, 1)}
    return Launch(record, record.pack(outer=(1,), length=x.size, **parameters), tuple(memories), tuple(pieces))


def numbers(dtype: DType, count: int) -> Array:
    """Returns elements of which some are equal, with NaN, infinities and both zeros."""
    rng = np.random.default_rng(count)
    if not dtype.is_float:
        return rng.integers(0, 2 if dtype.kind == "b" else 100, count).astype(dtype.numpy)
    x = rng.normal(0, 100, count).round(1)
    special = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], count)
    return np.where(rng.random(count) < 0.1, special, x).astype(dtype.numpy)


@by_geometry
@pytest.mark.parametrize("count", [LENGTH, 100, LENGTH - 1, 1])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int64, dtypes.uint8, dtypes.bool_], ids=str)
def test_long_rows_sort(dtype: DType, count: int, geometry: Any) -> None:
    x = numbers(dtype, LENGTH)
    wide = x.astype(np.float64)
    for descending in (0, 1):
        values, index = np.zeros(count, dtype.numpy), np.zeros(count, np.int64)
        launch = row_launch("sort_kernel", x, [values, index], count=count, descending=descending)
        memories, _ = run(launch, geometry=geometry)
        want = np.argsort(wide, kind="stable")  # NumPy, too, sorts NaN behind every number
        if descending:
            want = LENGTH - 1 - np.argsort(wide[::-1], kind="stable")[::-1]
        np.testing.assert_array_equal(memories[2].view(np.int64), want[:count])
        np.testing.assert_array_equal(memories[1].view(dtype.numpy).astype(np.float64), wide[want[:count]])


@by_geometry
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.int16], ids=str)
def test_long_running_sums_keep_their_digits(dtype: DType, geometry: Any) -> None:
    count = 100_000
    x = np.full(count, 0.1 if dtype.is_float else 3).astype(dtype.numpy)
    launch = row_launch("scan_sum_kernel", x, [x], exclusive=0, reverse=1)
    memories, _ = run(launch, geometry=geometry)
    got = memories[0].view(dtype.numpy)[::-1]
    exact = np.arange(1, count + 1) * float(x[0])
    if dtype.is_float:
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2 * float(np.finfo(dtype.numpy).eps))
    else:
        np.testing.assert_array_equal(got, exact.astype(np.int64).astype(dtype.numpy))


def test_what_a_gpu_gets() -> None:
    def of(name: str, length: int) -> Geometry:
        count = {"count": 1, "descending": 0} if name == "sort_kernel" else {"exclusive": 0, "reverse": 0}
        x = np.zeros(length, np.float32)
        rest: list[Array] = [np.zeros(1, np.float32), np.zeros(1, np.int64)]
        launch = row_launch(name, x, rest if name == "sort_kernel" else [x], **count)
        return launch_geometry(launch.record, launch.record.struct.unpack(launch.parameters))

    assert [of("sort_kernel", n)[1] for n in (SORTED_ALONE, SORTED_ALONE + 1)] == [(1, 256, 1), (256, 1, 1)]
    assert [of("scan_sum_kernel", n)[1] for n in (8, 9, 1025)] == [(1, 256, 1), (32, 4, 1), (256, 1, 1)]


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_type_sorts_alike_in_every_block(dtype: DType) -> None:
    for launch in launches_of(with_sizes(BY_NAME["sort_kernel"], [4]), (dtype,), seed=11, count=10):
        seen = set()
        for block in ((1, 16, 1), (32, 1, 1), (256, 1, 1)):
            memories, _ = run(launch, geometry=geometry_of(block))
            assert not disagreements(launch, memories)
            seen.add(tuple(memory.tobytes() for memory in memories))
        assert len(seen) == 1


@pytest.mark.parametrize("name", ["scan_sum_kernel", "scan_prod_kernel", "scan_min_kernel"])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.int8, dtypes.uint64], ids=str)
def test_every_scan_in_every_block(name: str, dtype: DType) -> None:
    for launch in launches_of(with_sizes(BY_NAME[name], [4]), (dtype,), seed=12, count=10):
        for block in ((1, 16, 1), (32, 4, 1), (64, 1, 1), (256, 1, 1)):
            memories, _ = run(launch, geometry=geometry_of(block))
            assert not disagreements(launch, memories)


@pytest.mark.parametrize("block", [(1, 16, 1), (64, 1, 1)], ids=str)
@pytest.mark.parametrize("name", ["scan_sum_kernel", "sort_kernel"])
def test_nothing_is_found_in_random_thread_orders(name: str, block: tuple[int, int, int]) -> None:
    row, types = pick(name)
    for number, launch in enumerate(launches_of(row, types, seed=13)):
        for seed in (0, number + 1):
            assert not findings(launch, seed, geometry_of(block))


DISTURBED = {
    "keys": (
        "return row.descending ?",
        "key ^= (Key)(disturbance += 2654435761u) >> 3 & MOST;\n  return row.descending ?",
    ),
    "positions": (
        "return position < row.length",
        "position ^= (disturbance += 2654435761u) >> 3;\n  return position < row.length",
    ),
}
"""What another command that writes to x or to the index meanwhile does to each look at a key or a position."""


@pytest.mark.parametrize("block", [(1, 16, 1), (64, 1, 1)], ids=str)
@pytest.mark.parametrize("what", DISTURBED)
def test_data_that_changes_meanwhile_leads_nowhere_else(
    what: str, block: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = DISTURBED[what]

    def disturbed(record: KernelRecord, wide: bool = False) -> KernelSource:
        given = source_for(record, wide)
        assert given is not None
        assert old in given.text
        return given._replace(text="__device__ unsigned disturbance;\n" + given.text.replace(old, new))

    monkeypatch.setattr(kernel_runs, "source_for", disturbed)
    row = with_sizes(BY_NAME["sort_kernel"], [1])
    reports = [
        text
        for launch in launches_of(row, (dtypes.float32,), seed=14, count=10)
        for text in findings(launch, 0, geometry_of(block))
    ]
    assert any("differ" in text for text in reports)
    assert not [text for text in reports if "out-of-bounds" in text]
