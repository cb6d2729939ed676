"""Launches in several passes: right for any number of parts, the same bits in any order, and planned where they pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cuda import kernel_runs
from tests.cuda.kernel_runs import (
    disagreements,
    findings,
    has_compiler,
    launch_of,
    launches_of,
    pick,
    run,
    with_sizes,
)
from umd_core import dtypes
from umd_core.device import Binding
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.kernels.geometry import Flat
from umd_core.testing.launches import Launch
from umd_core.testing.recording import Recording
from umd_cuda import plans, sources
from umd_cuda.device import CudaDevice
from umd_cuda.host_driver import HostDriver
from umd_cuda.plans import Plan
from umd_cuda.recording import RecordingDriver
from umd_cuda.sources import KernelSource

compiled = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

BY_ROWS = (
    "reduce_sum_kernel", "reduce_mean_kernel", "reduce_prod_kernel", "reduce_max_kernel", "reduce_min_kernel",
    "argmax_kernel", "argmin_kernel", "softmax_kernel", "log_softmax_kernel", "softmax_grad_kernel",
    "log_softmax_grad_kernel", "normalize_kernel",
)  # fmt: skip
BY_TILES = ("gemm_kernel", "conv_kernel", "conv_input_grad_kernel", "conv_weight_grad_kernel")
TYPES = {"gemm_kernel": dtypes.NUMERIC}


def cut(record: KernelRecord, flat: Flat, parts: int) -> Plan:
    """Returns the plan of a launch that is cut into parts, however small it is."""
    if record.row.name in BY_ROWS:
        return plans.split_rows(record, flat, parts)
    if record.row.name == "conv_input_grad_kernel":
        return plans.tiled_input_grad(record, flat)
    return plans.split_depth(record, flat, 1 if record.row.name == "conv_kernel" else parts)


def planned_in(launch: Launch, parts: int, grid: int = 0) -> Plan:
    """Returns `cut` for a launch; with a grid, that many workgroups a pass along each of the plan's axes."""
    plan = cut(launch.record, launch.record.struct.unpack(launch.parameters), parts)
    if not grid:
        return plan
    fewer = [(turn, ((grid, min(across[1], grid), min(across[2], grid)), block, shared))
             for turn, (across, block, shared) in plan.passes]  # fmt: skip
    return Plan(plan.scratch, tuple(fewer))


def bits(memories: Sequence[Any]) -> list[bytes]:
    """Returns the bytes of each memory."""
    return [memory.tobytes() for memory in memories]


@compiled
@pytest.mark.parametrize("name", BY_ROWS + BY_TILES)
def test_any_number_of_parts_is_right_and_any_grid_gives_the_same_bits(name: str) -> None:
    row, types = pick(name, turn=2)
    for number, launch in enumerate(launches_of(row, types, seed=11, count=7)):
        parts = (2, 3, 7)[number % 3]
        usual = run(launch, plan=planned_in(launch, parts))[0]
        assert not disagreements(launch, usual)
        for other in (planned_in(launch, parts, grid=1), planned_in(launch, parts, grid=3)):
            assert bits(run(launch, plan=other, seed=number + 1)[0]) == bits(usual)
        assert bits(run(launch, plan=planned_in(launch, parts), wide=True)[0]) == bits(usual)


@compiled
@pytest.mark.parametrize("name", BY_ROWS + BY_TILES)
def test_a_checked_run_finds_nothing_in_any_order(name: str) -> None:
    row, types = pick(name, turn=1)
    for number, launch in enumerate(launches_of(row, types, seed=12, count=4)):
        for seed in (0, number + 1):
            assert not findings(launch, seed, plan=planned_in(launch, 3))


@compiled
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
@pytest.mark.parametrize("name", BY_TILES)
def test_tiles_of_every_float_type(name: str, dtype: DType) -> None:
    row = BY_NAME[name]
    row = with_sizes(row, [allowed[0] for _, allowed in row.sizes])
    for launch in launches_of(row, (dtype,), seed=13, count=5):
        assert not disagreements(launch, run(launch, plan=planned_in(launch, 2))[0])


@compiled
@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in BY_TILES if "conv" in name])
def test_tiles_of_windows_with_any_stride_dilation_and_padding(name: str, spatial: int) -> None:
    row = with_sizes(BY_NAME[name], [spatial])
    rng = np.random.default_rng(5)
    for launch in launches_of(row, (dtypes.float32,), seed=14, count=5):
        parameters = launch.record.unpack(launch.parameters)
        least = int(name == "conv_input_grad_kernel")
        for field, low, high in (("window_strides", least, 5), ("dilations", 0, 5), ("pads", -2, 5)):
            parameters[field] = tuple(int(v) for v in rng.integers(low, high, spatial))
        changed = replace(launch, parameters=launch.record.pack(**parameters))
        assert not disagreements(changed, run(changed, plan=planned_in(changed, 2))[0])


def wide_conv(name: str, batch: int, channels: int, filters: int, size: int, stride: int = 1, groups: int = 1) -> Any:
    """Returns (record, parameters by name, shapes by operand) of a padded 3 × 3 convolution, contiguous."""
    row = BY_NAME[name]
    record = row.record((dtypes.float32,), (2,))
    output = (size - 1) // stride + 1
    parameters: dict[str, Any] = {
        "batch": batch, "groups": groups, "out_channels": filters // groups, "in_channels": channels // groups,
        "output": (output, output), "kernel": (3, 3), "input": (size, size),
        "window_strides": (stride, stride), "dilations": (1, 1), "pads": (1, 1),
    }  # fmt: skip
    shapes = {}
    for operand in row.operands:
        shape: tuple[int, ...] = ()
        for extent in operand.box:
            value = parameters[extent]
            shape += value if isinstance(value, tuple) else (value,)
        strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        parameters |= {f"{operand.name}_offset": 0, f"{operand.name}_strides": tuple(strides)}
        shapes[operand.name] = shape
    return record, parameters, shapes


@compiled
@pytest.mark.parametrize("name", [name for name in BY_TILES if "conv" in name])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_real_convolution_is_made_of_tiles_and_equals_the_direct_one(name: str, stride: int) -> None:
    record, parameters, shapes = wide_conv(name, 4, 48, 70, 13, stride)
    rng = np.random.default_rng(stride)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
    launch = launch_of(name, (dtypes.float32,), arrays, sizes=(2,), **parameters)
    plan = plans.plan_for(record, record.struct.unpack(launch.parameters))
    assert plan != plans.whole(record, record.struct.unpack(launch.parameters))
    tiled = run(launch, plan=plan)[0][2].view(np.float32)
    direct = run(launch, planned=False, geometry=lambda *_: ((8, 1, 1), (32, 1, 1), 0))[0][2].view(np.float32)
    scale = np.abs(direct).max()
    np.testing.assert_allclose(tiled, direct, rtol=1e-4, atol=1e-5 * scale)


def conv_plan(name: str, *sizes: int, **more: int) -> tuple[Plan, Plan]:
    """Returns the plan of a convolution and the plan that is one launch."""
    record, parameters, _ = wide_conv(name, *sizes, **more)
    flat = record.struct.unpack(record.pack(**parameters))
    return plans.plan_for(record, flat), plans.whole(record, flat)


@pytest.mark.parametrize("name", [name for name in BY_TILES if "conv" in name])
def test_depthwise_and_small_convolutions_are_direct(name: str) -> None:
    for plan, whole in (
        conv_plan(name, 32, 64, 64, 28, groups=64), conv_plan(name, 1, 1, 1, 8), conv_plan(name, 2, 3, 2, 5),
    ):  # fmt: skip
        assert plan == whole
    plan, whole = conv_plan(name, 32, 64, 128, 28)
    assert plan != whole


def test_a_gradient_by_a_deep_weight_is_cut_and_its_scratch_is_bounded() -> None:
    plan, _ = conv_plan("conv_weight_grad_kernel", 256, 64, 64, 56)
    assert [turn & 255 for turn, _ in plan.passes] == [1, 2]
    parts = plan.passes[0][0] >> 8
    assert parts > 8
    assert plan.scratch == 8 * parts * 64 * 64 * 9 <= plans.MOST_SCRATCH
    plan, _ = conv_plan("conv_weight_grad_kernel", 256, 4096, 4096, 56)
    assert plan.scratch <= plans.MOST_SCRATCH


def rows_plan(name: str, rows: int, length: int) -> Plan:
    """Returns the plan of a launch over contiguous float32 rows."""
    row = BY_NAME[name]
    kinds = [dtypes.float32] * len(row.types)
    record = row.record(kinds, (1, 1))
    parameters: dict[str, Any] = {field.name: 0 for field in row.fields} | {"outer": (rows,), "inner": (length,)}
    for operand in row.operands:
        strides = (length, 1) if len(operand.box) == 2 else (1,)
        parameters |= {f"{operand.name}_offset": 0, f"{operand.name}_strides": strides}
    return plans.plan_for(record, record.struct.unpack(record.pack(**parameters)))


@pytest.mark.parametrize("name", BY_ROWS)
def test_few_long_rows_are_cut_and_others_are_not(name: str) -> None:
    for rows, length in ((1, 1000), (10**6, 100), (4096, 10**5), (0, 10**8), (100, 0)):
        assert len(rows_plan(name, rows, length).passes) == 1
    for rows, length in ((1, 10**8), (64, 800_000), (200, 10**5)):
        plan = rows_plan(name, rows, length)
        (first, (grid, block, _)), (second, _) = plan.passes
        assert (first & 255, second & 255) == (1, 2)
        assert first >> 8 == second >> 8
        assert grid[0] == rows * (first >> 8) >= plans.WANTED // 2
        assert block == (256, 1, 1)
        assert plan.scratch <= 16 * 4096


@compiled
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.int32], ids=str)
def test_the_sum_of_a_million_elements_is_within_its_tolerance(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    count = 10**6 + 3
    x = (rng.standard_normal(count) * 10).astype(dtype.numpy)
    out = np.zeros(1, dtype.numpy)
    launch = launch_of("reduce_sum_kernel", (dtype,), [x, out], outer=(1,), inner=(count,), x_strides=(0, 1))
    flat = launch.record.struct.unpack(launch.parameters)
    assert len(plans.plan_for(launch.record, flat).passes) == 2
    got = run(launch)[0][1].view(dtype.numpy)[0]
    exact = float(np.sum(x.astype(np.float64)))
    unit = np.finfo(dtype.numpy).eps if dtype.is_float else 0
    assert abs(float(got) - exact) <= 256 * unit * max(abs(exact), 1) + 1e-7 * float(np.abs(x.astype(np.float64)).sum())


@compiled
@pytest.mark.parametrize("where", [0, 5, 99_999, 8192 * 5])
@pytest.mark.parametrize("last", [0, 1])
def test_the_first_or_last_of_equals_wins_across_parts(where: int, last: int) -> None:
    x = np.zeros(100_000, np.float32)
    x[[where, (where + 40_000) % x.size]] = np.nan
    out = np.zeros(1, np.int64)
    launch = launch_of(
        "argmax_kernel", (dtypes.float32,), [x, out],
        outer=(1,), inner=(x.size,), x_strides=(0, 1), select_last=last,
    )  # fmt: skip
    assert len(plans.plan_for(launch.record, launch.record.struct.unpack(launch.parameters)).passes) == 2
    places = np.flatnonzero(np.isnan(x))
    assert run(launch)[0][1].view(np.int64).tolist() == [places[-1 if last else 0]]


@compiled
@pytest.mark.parametrize("name", ["softmax_kernel", "log_softmax_kernel"])
@pytest.mark.parametrize("inside", [(), (-np.inf,), (np.nan,), (np.inf,)], ids=str)
def test_softmax_of_a_long_row_with_parts_of_infinities(name: str, inside: Sequence[float]) -> None:
    x = np.random.default_rng(4).standard_normal(30_000).astype(np.float32)
    x[:9000] = -np.inf  # a whole part
    x[12_000 : 12_000 + len(inside)] = inside
    launch = launch_of(
        name, (dtypes.float32,), [x, np.zeros_like(x)],
        outer=(1,), inner=(x.size,), x_strides=(0, 1), y_strides=(0, 1),
    )  # fmt: skip
    assert len(plans.plan_for(launch.record, launch.record.struct.unpack(launch.parameters)).passes) == 2
    assert not disagreements(launch, run(launch)[0])


# on a device

COUNT = 200_000
SUM = BY_NAME["reduce_sum_kernel"].record((dtypes.float32,), (1, 1))
SUM_BLOCK = SUM.pack(outer=(1,), inner=(COUNT,), x_offset=0, x_strides=(0, 1), out_offset=0, out_strides=(1,))


def summing() -> bytes:
    """Returns a program that adds COUNT elements up."""
    recording = Recording()
    places = [(recording.argument(), 0, 4 * COUNT), (recording.argument(), 0, 4)]
    recording.dispatch(SUM, SUM_BLOCK, places)
    return bytes(recording.finish())


def submit(device: CudaDevice, x: Any) -> tuple[Any, Any, Any]:
    """Returns a program that has run, its input and its output: as long as all live, it stays bound."""
    program, tensor, out = device.load(summing()), device.tensor(x), device.allocate(4)
    device.submit(program, [tensor.binding, Binding(out, 0, 4)]).wait()
    return program, tensor, out


def test_the_passes_of_a_launch_share_scratch_memory() -> None:
    driver = RecordingDriver()
    device = CudaDevice(driver, "cuda:0")
    submit(device, np.zeros(COUNT, np.float32))
    first, second = (launched for launched in driver.launches if launched.kernel == "reduce_sum_kernel")
    parts = -(-COUNT // plans.PART)
    (scratch, turn), (same, then) = (plans.EXTRA.unpack(launched.block[SUM.size :]) for launched in (first, second))
    assert (turn, then) == (plans.pass_of(1, parts), plans.pass_of(2, parts))
    assert scratch == same
    assert scratch not in first.addresses
    driver.at(scratch, 16 * parts)
    assert first.block[: SUM.size] == second.block[: SUM.size] == SUM_BLOCK
    assert (first.geometry.grid, second.geometry.grid) == ((parts, 1, 1), (1, 1, 1))
    device.close()


@compiled
def test_a_device_runs_all_passes_and_takes_the_scratch_memory_back() -> None:
    device = CudaDevice(HostDriver(("-O1",)), "cuda-cpu:0", None, sources)
    x = np.random.default_rng(7).standard_normal(COUNT).astype(np.float32)
    program, tensor, out = submit(device, x)
    got = np.frombuffer(device.read(out, 0, 4), np.float32)[0]
    assert abs(got - x.sum(dtype=np.float64)) < 1e-2
    parts = -(-COUNT // plans.PART)
    assert device.used == 4 * COUNT + 4 + 16 * parts
    del program, tensor
    device.trim()
    assert device.used == 4
    device.close()


# kernel, what is replaced in its source, by what, and a word of what must be reported
PLANTED = (
    ("gemm_kernel", "    __syncthreads();\n    if (more) {", "    if (more) {", "race"),
    ("gemm_kernel", "part < PARTS; ++part", "part <= PARTS; ++part", "differ"),
    *(
        (name, "prepare(first, 0);\n      __syncthreads();", f"prepare(first, 0);{instead}", word)
        for name in ("conv_kernel", "conv_input_grad_kernel", "conv_weight_grad_kernel")
        for instead, word in (("", "race"), (" if (threadIdx.x < 32) __syncthreads();", "barrier"))
    ),
    ("conv_kernel", "position >= 0 && ", "", "out-of-bounds read in 'x'"),
    ("conv_kernel", "      prepare(first, 0);\n", "", "uninitialised read"),
    ("conv_input_grad_kernel", "top + TILE_ROW(r) < gather.rows", "true", "out-of-bounds write"),
    ("conv_weight_grad_kernel", "+ m) * columns + column] = sum", "+ m) * columns] = sum", "race between two writes"),
    ("softmax_kernel", "if (threadIdx.x == 0) found[n]", "found[n]", "race between two writes"),
    (
        "normalize_kernel",
        "found + part.row * parts",
        "found + (part.row + 1) * parts",
        "out-of-bounds read in 'scratch'",
    ),
    ("reduce_sum_kernel", "found[n * PARTS + i]", "found[n * PARTS + i + 1]", "differ"),
    ("argmin_kernel", "begin + least(share, length - begin)", "begin + share", "out-of-bounds read in 'x'"),
)


@compiled
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted[0]}-{planted[3]}-{planted[2].strip()}")
def test_planted_faults_are_found(planted: tuple[str, str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    name, old, new, word = planted

    def faulty(record: KernelRecord, wide: bool = False, planned: bool = True) -> KernelSource:
        given = sources.source_for(record, wide, planned)
        assert given is not None
        assert old in given.text
        return given._replace(text=given.text.replace(old, new))

    monkeypatch.setattr(kernel_runs, "source_for", faulty)
    row, types = pick(name, turn=1)
    launches = [launch for launch in launches_of(row, types, seed=8) if all(piece.length for piece in launch.pieces)]
    reports = [findings(launch, plan=planned_in(launch, 2)) for launch in launches]
    assert any(word in text for report in reports for text in report), reports
