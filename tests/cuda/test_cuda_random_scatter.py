"""Random numbers and the combining scatters in CUDA C: every type, any grid, the checked build, known answers."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.resources

import numpy as np
import pytest

from tests.core.philox_answers import KNOWN, Known
from tests.cuda import kernel_runs
from tests.cuda.kernel_runs import disagreements, findings, has_compiler, launches_of, run, with_sizes
from umd_core import dtypes
from umd_core.commands import Flag
from umd_core.dtypes import DType
from umd_core.errors import UnsupportedError
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.kernels.geometry import Flat
from umd_core.registry import open_device
from umd_core.testing.harness import check_launch, record_launch
from umd_core.testing.launches import Launch, Piece, type_arguments
from umd_cuda import host
from umd_cuda import sources as gpu_sources
from umd_cuda.any_order import AnyOrder
from umd_cuda.geometry import Geometry, serial_geometry
from umd_cuda.scatters import is_unordered
from umd_cuda.sources import KernelSource, source_for

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

RANDOM = sorted(name for name, row in BY_NAME.items() if row.family == "random")
COMBINING = [f"scatter_{program}_kernel" for program in ("add", "max", "min", "mul")]
FEW = (dtypes.bfloat16, dtypes.float64, dtypes.int8, dtypes.uint64)
CASES = [
    (name, dtype)
    for name in RANDOM + COMBINING
    for dtype in dict(BY_NAME[name].types)["T"]
    if dtype in FEW or name in ("random_uniform_kernel", "scatter_max_kernel")
]
"""The conformance kit runs the other types."""


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_any_grid_gives_the_same_bytes(name: str, dtype: DType) -> None:
    row = with_sizes(BY_NAME[name], [4])
    types = next(types for types in type_arguments(row) if types[0] is dtype)
    for launch in launches_of(row, types, seed=11, count=5):
        usual, _ = run(launch)
        assert not disagreements(launch, usual)
        alone = run(launch, geometry=serial_geometry)[0]
        few = run(launch, geometry=lambda record, flat: ((2, 1, 1), (32, 1, 1), 0))[0]
        assert [m.tobytes() for m in usual] == [m.tobytes() for m in alone] == [m.tobytes() for m in few]


@pytest.mark.parametrize("name", RANDOM + COMBINING)
def test_both_index_widths_give_the_same_bytes(name: str) -> None:
    row = with_sizes(BY_NAME[name], [1])
    types = type_arguments(row)[-1]
    for launch in launches_of(row, types, seed=12, count=5):
        assert [m.tobytes() for m in run(launch)[0]] == [m.tobytes() for m in run(launch, wide=True)[0]]


CHECKED = [
    ("random_uniform_kernel", dtypes.float16), ("random_normal_kernel", dtypes.float64),
    ("random_bernoulli_kernel", dtypes.float32), ("random_integer_kernel", dtypes.uint8),
    ("scatter_mul_kernel", dtypes.bfloat16), ("scatter_mul_kernel", dtypes.int64), ("scatter_add_kernel", dtypes.int32),
    ("scatter_max_kernel", dtypes.float32), ("scatter_min_kernel", dtypes.int16),
    ("scatter_min_kernel", dtypes.float64),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), CHECKED, ids=str)
def test_a_checked_run_finds_nothing(name: str, dtype: DType) -> None:
    row = with_sizes(BY_NAME[name], [1])
    types = next(types for types in type_arguments(row) if types[0] is dtype)
    for number, launch in enumerate(launches_of(row, types, seed=13, count=4)):
        for seed in (0, number + 1):
            assert not findings(launch, seed)


def colliding(name: str, dtype: DType) -> Launch:
    """Returns a scatter of 64 updates into 4 elements."""
    record = with_sizes(BY_NAME[name], [1]).record((dtype, dtypes.int64), (1,))
    rng = np.random.default_rng(0)
    arrays = (rng.integers(-9, 9, 64).astype(dtype.numpy), rng.integers(-4, 4, 64), np.ones(4, dtype.numpy))
    block = record.pack(
        extents=(64,), axis=4, updates_offset=0, updates_strides=(1,), index_offset=0, index_strides=(1,), out_offset=0,
        out_strides=(0, 1),
    )  # fmt: skip
    pieces = tuple(Piece(number, 0, array.nbytes, (), 0) for number, array in enumerate(arrays))
    return Launch(record, block, tuple(array.view(np.uint8) for array in arrays), pieces)


def two_groups(record: KernelRecord, flat: Flat) -> Geometry:
    return (2, 1, 1), (32, 1, 1), 0


COLLIDING = [
    ("scatter_max_kernel", dtypes.float64), ("scatter_min_kernel", dtypes.int32), ("scatter_mul_kernel", dtypes.uint64),
    ("scatter_add_kernel", dtypes.int64), ("scatter_mul_kernel", dtypes.float16),
    ("scatter_add_kernel", dtypes.float32),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), COLLIDING, ids=str)
def test_updates_that_collide_are_no_race(name: str, dtype: DType) -> None:
    for seed in (0, 1, 2):
        assert not findings(colliding(name, dtype), seed, two_groups)


PLANTED = (
    ("random_uniform_kernel", dtypes.float32, "if (i >= count) break;", "", "out-of-bounds write"),
    ("random_bernoulli_kernel", dtypes.float32, "args.p_offset +", "args.p_offset - 4096 +", "out-of-bounds read"),
    ("random_integer_kernel", dtypes.int8, "counter < counters;", "counter + 1 < counters;", "differ"),
    ("scatter_max_kernel", dtypes.float32, "found = atomicCAS(at, held,", "found = *at = (", "race"),
    ("scatter_add_kernel", dtypes.int32, "ATOMIC(to, update);", "*to += update;", "race"),
)  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted[0]}-{planted[4]}")
def test_a_planted_fault_is_found(planted: tuple[str, DType, str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    name, dtype, old, new, word = planted

    def faulty(record: KernelRecord, wide: bool = False) -> KernelSource:
        given = source_for(record, wide)
        assert given is not None
        assert old in given.text
        return given._replace(text=given.text.replace(old, new))

    monkeypatch.setattr(kernel_runs, "source_for", faulty)
    row = with_sizes(BY_NAME[name], [1])
    launches = [colliding(name, dtype)] if row.atomic else launches_of(row, (dtype,), seed=14, count=8)
    reports = [findings(launch, 0, two_groups) for launch in launches if all(p.length for p in launch.pieces)]
    assert any(word in text for report in reports for text in report), reports


ANSWER = """
extern "C" __global__ void answer(const unsigned long long* given, unsigned* out) {
  const Words words = philox(given[0], given[1], given[2]);
  for (int i = 0; i < 4; ++i) out[i] = words.w[i];
}
"""


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.counter[0]:08x}")
def test_the_generator_gives_the_known_answers(known: Known) -> None:
    code = importlib.resources.files("umd_cuda").joinpath("kernels", "philox.cuh").read_text("utf-8") + ANSWER
    given = np.array([*known.counter, *known.key], np.uint32).view(np.uint64)
    out = np.zeros(4, np.uint32)
    host.RawKernel(code, "answer")((1,), (1,), (given, out))
    assert tuple(out.tolist()) == known.words


def test_what_no_order_changes_runs_by_atomics() -> None:
    unordered = {
        (program, dtype.name)
        for program in ("set", "add", "mul", "max", "min")
        for dtype in dtypes.NUMERIC
        if is_unordered(
            BY_NAME["scatter_kernel" if program == "set" else f"scatter_{program}_kernel"].record(
                (dtype, dtypes.int64), (1,)
            )
        )
    }
    programs, names = ("add", "mul", "max", "min"), ("int32", "int64", "uint32", "uint64")
    integers = {(program, name) for program in programs for name in names}
    floats = {(program, name) for program in ("max", "min") for name in ("float32", "float64")}
    assert unordered == integers | floats


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("program", ["max", "min"])
def test_an_extreme_by_atomics_has_the_same_bits_in_any_order(program: str, dtype: DType) -> None:
    record = with_sizes(BY_NAME[f"scatter_{program}_kernel"], [1]).record((dtype, dtypes.int64), (1,))
    source = source_for(record)
    assert source is not None
    block = record.pack(
        extents=(3,), axis=2, updates_offset=0, updates_strides=(1,), index_offset=0, index_strides=(1,), out_offset=0,
        out_strides=(0, 1),
    )  # fmt: skip
    index, status = np.array([0, 0, 1], np.int64), np.zeros(2, np.int64)
    found = set()
    for updates in ([0.0, -0.0, np.nan], [-0.0, 0.0, -np.nan]):
        out = np.full(2, -0.0 if program == "max" else 0.0, dtype.numpy)
        arrays = (np.array(updates, dtype.numpy), index, out, status)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        kernel_runs.function(source).launch((1, 1, 1), (32, 1, 1), 0, [*pointers, block])
        found.add(out.tobytes())
    zero = np.array(0.0 if program == "max" else -0.0, dtype.numpy).tobytes()
    assert len(found) == 1
    assert found.pop().startswith(zero)


# floats in any order, where a device is opened so


ANY_ORDER = [(program, dtype) for program in ("add", "mul") for dtype in (dtypes.float32, dtypes.float64)]


@pytest.mark.parametrize(("program", "dtype"), ANY_ORDER, ids=str)
def test_sums_and_products_by_atomics(program: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = AnyOrder(gpu_sources)
    monkeypatch.setattr(kernel_runs, "source_for", sources.source_for)
    name = f"scatter_{program}_kernel"
    launches = [*launches_of(with_sizes(BY_NAME[name], [1]), (dtype, dtypes.int32), seed=15), colliding(name, dtype)]
    for launch in launches:
        source = sources.source_for(launch.record)
        assert source is not None
        assert "atomic" in source.text
        for seed in (0, 1):
            assert not findings(launch, seed, two_groups)


def test_the_option_chooses_atomics_and_refuses_deterministic_programs() -> None:
    launch = colliding("scatter_add_kernel", dtypes.float32)
    command_buffer = record_launch(launch)
    exact = bytes(dataclasses.replace(command_buffer, flags=Flag.DETERMINISTIC))
    with contextlib.closing(open_device("cuda-cpu:0?atomics=1")) as device:
        check_launch(device, launch)
        with pytest.raises(UnsupportedError, match="DETERMINISTIC") as caught:
            device.load(exact)
        assert caught.value.kernel == "scatter_add_kernel"
    with contextlib.closing(open_device("cuda-cpu:0")) as device:
        assert device.load(exact).command_buffer.flags == Flag.DETERMINISTIC
