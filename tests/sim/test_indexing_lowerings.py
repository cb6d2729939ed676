"""Gather, scatter and iota against loops over indices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.errors import IndexRangeError
from umd_core.kernels import BY_NAME

Array = NDArray[Any]
COMBINE: dict[str, Any] = {
    "scatter_add_kernel": np.add, "scatter_mul_kernel": np.multiply, "scatter_max_kernel": np.maximum,
    "scatter_min_kernel": np.minimum,
}  # fmt: skip
NAMES = ("gather_kernel", "scatter_kernel", *COMBINE)
CASES = [
    (name, types) for name in NAMES for types in itertools.product(*(allowed for _, allowed in BY_NAME[name].types))
]


def launched(
    case: tuple[str, tuple[DType, ...]],
    shape: tuple[int, ...],
    axis: int,
    seed: int,
    outside: int | None = None,
) -> Any:
    name, types = case
    rank = sim.rank_class(len(shape))
    rng = np.random.default_rng(seed)

    def make(operand: str, extents: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if operand != "index":
            made: Array = sim.values(rng, extents, dtype)
            return made
        index = rng.integers(-axis, max(axis, 1 - axis), extents).astype(dtype)
        if outside is not None:
            index.flat[rng.integers(0, index.size)] = outside
        return index

    extents = {"extents": sim.padded(shape, rank), "axis": axis}
    return sim.launch(name, types, (rank,), extents, seed=seed, make=make, plain=seed % 5 == 0)


def gathered(inputs: dict[str, Array]) -> Array:
    out = np.empty(inputs["index"].shape, inputs["data"].dtype)
    for e in np.ndindex(*out.shape):
        out[e] = inputs["data"][(*e, int(inputs["index"][e]))]
    return out


def check(case: tuple[str, tuple[DType, ...]], shape: tuple[int, ...], axis: int, seed: int) -> None:
    name, types = case
    launch = launched(case, shape, axis, seed)
    got = launch.run()["out"]
    if name == "gather_kernel":
        np.testing.assert_array_equal(got, gathered(launch.inputs))
        return
    expected = scattered(launch, COMBINE.get(name))
    if types[0].is_float:
        scale = scattered(launch, np.add, magnitude=True) if name == "scatter_add_kernel" else np.abs(expected)
        sim.close(got, expected, BY_NAME[name].tolerance, got.dtype, scale)
    else:
        np.testing.assert_array_equal(got, expected)


def scattered(launch: Any, combine: Any, *, magnitude: bool = False) -> Array:
    """Returns the result, element by element over the positions in memory, which extents may share."""
    view = next(v for v in launch.record.views(launch.block) if v.name == "out")
    dtype = launch.inputs["out"].dtype
    wide = np.float64 if dtype.kind not in "biu" else dtype
    offsets = sum(
        (
            np.arange(e).reshape([-1 if a == i else 1 for a in range(len(view.shape))]) * s
            for i, (e, s) in enumerate(zip(view.shape, view.strides, strict=True))
        ),
        start=np.zeros(view.shape, np.int64),
    )
    memory = {
        int(o): abs(v) if magnitude else v
        for o, v in zip(offsets.reshape(-1), launch.inputs["out"].reshape(-1).astype(wide), strict=True)
    }
    with np.errstate(all="ignore"):
        for e in np.ndindex(*launch.inputs["index"].shape):
            k = int(launch.inputs["index"][e])
            k += view.shape[-1] if k < 0 else 0
            at, update = int(offsets[(*e, k)]), launch.inputs["updates"][e].astype(wide)
            update = abs(update) if magnitude else update
            memory[at] = update if combine is None else combine(memory[at], update)
    return np.array([memory[int(o)] for o in offsets.reshape(-1)], wide).reshape(view.shape)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join([case[0], *(t.name for t in case[1])]))
def test_every_kernel_and_type(case: tuple[str, tuple[DType, ...]]) -> None:
    for seed, (shape, axis) in enumerate((((3, 4), 5), ((6,), 3), ((), 2), ((2, 3, 2, 1, 2), 4), ((0, 3), 2))):
        check(case, shape, axis, seed)


@given(
    case=st.sampled_from(CASES),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    axis=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_any_layout(case: tuple[str, tuple[DType, ...]], shape: tuple[int, ...], axis: int, seed: int) -> None:
    check(case, shape, axis, seed)


@given(
    case=st.sampled_from(CASES),
    shape=st.lists(st.integers(1, 4), max_size=3).map(tuple),
    axis=st.integers(0, 5),
    beyond=st.integers(0, 2**31 - 6),
    below=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_an_index_out_of_range_is_named_and_nothing_is_written(
    case: tuple[str, tuple[DType, ...]],
    shape: tuple[int, ...],
    axis: int,
    beyond: int,
    below: bool,
    seed: int,
) -> None:
    wrong = -axis - 1 - beyond if below else axis + beyond
    launch = launched(case, shape, axis, seed, outside=wrong)
    if axis == 0:
        wrong = int(launch.inputs["index"].flat[0])
    with pytest.raises(IndexRangeError) as caught:
        launch.run()
    assert (caught.value.value, caught.value.extent, caught.value.kernel) == (wrong, axis, case[0])


@pytest.mark.parametrize("dtype", BY_NAME["gather_kernel"].types[0][1], ids=str)
def test_rows_of_a_table(dtype: DType) -> None:
    record = BY_NAME["gather_kernel"].record((dtype, dtypes.int64), (4,))
    rng = np.random.default_rng(0)
    table = sim.values(rng, (10, 6), dtype.numpy)
    index = np.array([[3, -1, 0], [9, 3, -10]], np.int64)
    out = np.zeros((2, 3, 6), dtype.numpy)
    block = record.pack(
        extents=(1, 2, 3, 6), axis=10, data_offset=0, data_strides=(0, 0, 0, 1, 6), index_offset=0,
        index_strides=(0, 3, 1, 0), out_offset=0, out_strides=(0, 18, 6, 1),
    )  # fmt: skip
    sim.run(record, block, [table, index, out])
    np.testing.assert_array_equal(out, table[index])


@pytest.mark.parametrize("dtype", BY_NAME["iota_kernel"].types[0][1], ids=str)
@pytest.mark.parametrize("count", [0, 1, 7, 40000])
def test_iota(dtype: DType, count: int) -> None:
    for seed in range(3):
        launch = sim.launch("iota_kernel", (dtype,), (), {"count": count}, seed=seed)
        got = launch.run()["out"]
        start, step = (launch.inputs[name].reshape(()) for name in ("start", "step"))
        if dtype.is_float:
            along = np.arange(count) * float(step)
            sim.close(got, float(start) + along, 4.0, got.dtype, np.abs(along) + abs(float(start)))
        else:
            bits = 8 * dtype.size
            wrapped = [(int(start) + i * int(step)) % (1 << bits) for i in range(count)]
            np.testing.assert_array_equal(got, np.array(wrapped, np.uint64).astype(f"u{dtype.size}").view(dtype.numpy))
