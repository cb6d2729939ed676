"""What the kernels promise beyond numbers: order, status words, index widths, layouts, in-place launches."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cuda.kernel_runs import (
    disagreements,
    function,
    has_compiler,
    launch_of,
    launches_of,
    pick,
    run,
    with_sizes,
)
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME, KERNELS
from umd_core.testing.launches import Launch, Piece, type_arguments
from umd_cuda.geometry import launch_geometry, serial_geometry
from umd_cuda.sources import needs_wide, source_for

compiled = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")


@pytest.mark.parametrize("wide", [False, True])
def test_every_record_has_a_source_whose_struct_is_the_block(wide: bool) -> None:
    for row in KERNELS.values():
        for at, types in enumerate(type_arguments(row)):
            record = row.record(types, [allowed[at % len(allowed)] for _, allowed in row.sizes])
            source = source_for(record, wide)
            assert source is not None
            assert source.entry == row.name
            assert f"sizeof(Parameters) == {record.size + 16 * (source.plan is not None)}," in source.text
            assert f"#define WIDE {int(wide)}\n" in source.text
            assert "UMD_SIGNATURE" not in source.text
            assert '#include "' not in source.text


def test_index_widths() -> None:
    record = BY_NAME["elementwise_copy_kernel"].record((dtypes.uint8,), (1,))

    def wide(count: int, stride: int, offset: int = 0) -> bool:
        block = record.pack(
            extents=(count,), x_offset=offset, x_strides=(stride,), out_offset=0, out_strides=(1,)
        )  # fmt: skip
        return needs_wide(record, record.struct.unpack(block))

    assert not wide(2**30, 1)
    assert wide(2**31, 1)
    assert wide(2**31, 0)
    assert wide(2, 2**31)
    assert wide(2, -(2**31), 2**31)


def test_windows_need_64_bits_where_their_positions_do() -> None:
    record = BY_NAME["average_pool_kernel"].record((dtypes.float32,), (1,))
    block = record.pack(
        batch=1, output=(2,), input=(2,), kernel=(1,), x_offset=0, x_strides=(0, 1), y_offset=0, y_strides=(0, 1),
        window_strides=(2**31,), dilations=(1,), pads=(0,), count_pad=0, pads_end=(0,),
    )  # fmt: skip
    assert needs_wide(record, record.struct.unpack(block))


@compiled
def test_elements_beyond_2_to_the_31() -> None:
    far = 2**31 + 5
    memory = mmap.mmap(-1, far + 16)
    source = np.frombuffer(memory, np.uint8)
    source[0], source[far] = 3, 4
    launch = launch_of(
        "elementwise_copy_kernel", (dtypes.uint8,), [source[:1], np.zeros(2, np.uint8)], extents=(2,), x_strides=(far,)
    )
    assert needs_wide(launch.record, launch.record.struct.unpack(launch.parameters))
    text = source_for(launch.record, wide=True)
    assert text is not None
    out = np.zeros(2, np.uint8)
    pointers = [np.uintp(array.ctypes.data).tobytes() for array in (source, out)]
    function(text).launch((1, 1, 1), (32, 1, 1), 0, [*pointers, launch.parameters])
    assert out.tolist() == [3, 4]


@compiled
@pytest.mark.parametrize("lead", [0, 1, 4])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8, dtypes.float16, dtypes.int64], ids=str)
def test_contiguous_elements_at_every_alignment(dtype: DType, lead: int) -> None:
    rng = np.random.default_rng(lead)
    a, b = (rng.integers(-20, 20, 1007 + lead).astype(dtype.numpy) for _ in range(2))
    out = np.zeros_like(a)
    launch = launch_of("elementwise_add_kernel", (dtype,), [a, b, out], extents=(1007,), a_offset=lead, out_offset=lead)
    memories, _ = run(launch)
    assert memories[2].view(dtype.numpy)[lead:].tolist() == (a[lead:] + b[:1007]).tolist()
    assert memories[2].view(dtype.numpy)[:lead].tolist() == [0] * lead


@compiled
def test_a_scalar_and_a_contiguous_operand_in_place() -> None:
    a, scale = np.arange(1001, dtype=np.float32), np.full(1, 3, np.float32)
    launch = launch_of("elementwise_mul_kernel", (dtypes.float32,), [a, scale, a], extents=(1001,), b_strides=(0,))
    memories, _ = run(launch)
    assert memories[0].view(np.float32).tolist() == (a * 3).tolist()


@compiled
@pytest.mark.parametrize("geometry", [launch_geometry, serial_geometry])
def test_the_last_update_wins(geometry: Any) -> None:
    rng = np.random.default_rng(0)
    index, updates = rng.integers(-7, 7, 300), rng.integers(0, 2**31, 300).astype(np.int32)
    out = np.zeros(7, np.int32)
    launch = launch_of(
        "scatter_kernel", (dtypes.int32, dtypes.int64), [updates, index, out],
        extents=(300,), axis=7, out_strides=(0, 1),
    )  # fmt: skip
    memories, status = run(launch, geometry=geometry)
    for k, update in zip(index, updates, strict=True):
        out[k] = update
    assert status == (0, 0)
    assert memories[2].view(np.int32).tolist() == out.tolist()


@compiled
@pytest.mark.parametrize("geometry", [launch_geometry, serial_geometry])
def test_sums_are_formed_in_the_order_of_the_table(geometry: Any) -> None:
    rng = np.random.default_rng(1)
    rows, width = 200, 6
    index = rng.integers(0, 5, rows).astype(np.int32)
    updates = (rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-6, 6, (rows, width))).astype(np.float32)
    expected = np.zeros((5, width), np.float32)
    np.add.at(expected, index, updates)
    row = with_sizes(BY_NAME["scatter_add_kernel"], [4])
    record = row.record((dtypes.float32, dtypes.int32), (4,))
    block = record.pack(
        extents=(rows, width, 1, 1), axis=5, updates_offset=0, updates_strides=(width, 1, 0, 0), index_offset=0,
        index_strides=(1, 0, 0, 0), out_offset=0, out_strides=(0, 1, 0, 0, width),
    )  # fmt: skip
    memories = tuple(a.reshape(-1).view(np.uint8) for a in (updates, index, np.zeros_like(expected)))
    pieces = tuple(Piece(at, 0, memory.size, (), 0) for at, memory in enumerate(memories))
    after, _ = run(Launch(record, block, memories, pieces), geometry=geometry)
    assert after[2].view(np.float32).tobytes() == expected.tobytes()


@compiled
def test_a_sum_of_halves_is_rounded_once() -> None:
    updates, index = np.full(4096, 0.25, np.float16), np.zeros(4096, np.int32)
    out = np.full(1, 1024, np.float16)
    launch = launch_of(
        "scatter_add_kernel", (dtypes.float16, dtypes.int32), [updates, index, out],
        extents=(4096,), axis=1, out_strides=(0, 1),
    )  # fmt: skip
    memories, _ = run(launch, geometry=serial_geometry)
    assert memories[2].view(np.float16).tolist() == [2048.0]


@compiled
@pytest.mark.parametrize("wrong", [5, -6, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("name", ["gather_kernel", "scatter_kernel", "scatter_add_kernel"])
def test_an_index_out_of_range_sets_the_status_word(name: str, wrong: int) -> None:
    index = np.array([0, wrong, -5, 4], np.int32)
    table, line = np.arange(5, dtype=np.int32), np.full(4, 9, np.int32)
    if name == "gather_kernel":
        arrays, strides, written = [table, index, line], {"data_strides": (0, 1)}, 2
        expected = [0, 9, 0, 4]
    else:
        arrays, strides, written = [line, index, table], {"out_strides": (0, 1)}, 2
        add = name == "scatter_add_kernel"
        expected = [18, 1, 2, 3, 13] if add else [9, 1, 2, 3, 9]
    launch = launch_of(name, (dtypes.int32, dtypes.int32), arrays, extents=(4,), axis=5, **strides)
    memories, status = run(launch)
    assert status == (1, wrong)
    assert memories[written].view(np.int32).tolist() == expected


@compiled
@pytest.mark.parametrize(
    "name",
    [
        "conv_kernel", "conv_input_grad_kernel", "conv_weight_grad_kernel", "max_pool_index_kernel",
        "average_pool_kernel", "average_pool_grad_kernel",
    ],
)  # fmt: skip
def test_windows_with_any_stride_dilation_and_padding(name: str) -> None:
    row, _ = pick(name, turn=1)
    rng = np.random.default_rng(5)
    for launch in launches_of(row, (dtypes.float32,), seed=7, count=5):
        parameters = launch.record.unpack(launch.parameters)
        axes = launch.record.sizes[0]
        for field, low, high in (("window_strides", 0, 4), ("dilations", 0, 4), ("pads", -2, 5), ("pads_end", 0, 3)):
            if field in parameters:
                parameters[field] = tuple(int(v) for v in rng.integers(low, high, axes))
        changed = replace(launch, parameters=launch.record.pack(**parameters))
        memories, _ = run(changed)
        assert not disagreements(changed, memories)
