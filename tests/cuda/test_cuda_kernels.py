"""Every CUDA kernel, compiled for the processor, against the naive reference."""

from __future__ import annotations

import pytest

from tests.cuda.kernel_runs import disagreements, has_compiler, launches_of, pick, run, with_sizes
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME
from umd_core.testing.launches import type_arguments
from umd_cuda.geometry import serial_geometry

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

OF_EVERY_TYPE = ("elementwise_mod_kernel", "reduce_sum_kernel")
OF_EVERY_INTEGER = ("elementwise_div_kernel", "elementwise_pow_kernel")
OF_EVERY_FLOAT = ("softmax_kernel", "conv_kernel", "adamw_kernel", "gemm_kernel")
BY_ROWS = (
    "reduce_mean_kernel", "argmax_kernel", "softmax_kernel", "normalize_kernel", "conv_weight_grad_kernel",
    "scan_sum_kernel", "attention_kernel", "attention_grad_kernel",
)  # fmt: skip
EACH_FILE = (
    "elementwise_select_kernel", "elementwise_cast_kernel", "reduce_min_kernel", "argmax_kernel", "log_softmax_kernel",
    "softmax_grad_kernel", "normalize_kernel", "gemm_kernel", "conv_kernel", "conv_input_grad_kernel",
    "conv_weight_grad_kernel", "max_pool_index_kernel", "average_pool_kernel", "average_pool_grad_kernel",
    "gather_kernel", "scatter_kernel", "scatter_add_kernel", "iota_kernel", "sgd_kernel", "sgd_momentum_kernel",
    "adamw_kernel", "scan_sum_kernel", "sort_kernel", "attention_kernel", "attention_grad_kernel",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_kernel(name: str) -> None:
    row, types = pick(name)
    for launch in launches_of(row, types):
        memories, status = run(launch)
        assert status == (0, 0)
        assert not disagreements(launch, memories)


def _typed() -> list[tuple[str, DType]]:
    cases = [(name, dtype) for name in OF_EVERY_TYPE for dtype in dtypes.NUMERIC]
    cases += [(name, dtype) for name in OF_EVERY_INTEGER for dtype in dtypes.INTEGERS]
    return cases + [(name, dtype) for name in OF_EVERY_FLOAT for dtype in dtypes.FLOATS]


@pytest.mark.parametrize(("name", "dtype"), _typed(), ids=str)
def test_every_type(name: str, dtype: DType) -> None:
    row = BY_NAME[name]
    row = with_sizes(row, [allowed[0] for _, allowed in row.sizes])
    types = next(types for types in type_arguments(row) if types[0] is dtype)
    for launch in launches_of(row, types, seed=1):
        memories, _ = run(launch)
        assert not disagreements(launch, memories)


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_casts(source: DType) -> None:
    target = dtypes.ALL[(dtypes.ALL.index(source) + 6) % len(dtypes.ALL)]
    row = with_sizes(BY_NAME["elementwise_cast_kernel"], [1])
    for launch in launches_of(row, (source, target), seed=2):
        memories, _ = run(launch)
        assert not disagreements(launch, memories)


@pytest.mark.parametrize("name", EACH_FILE)
def test_both_index_widths_give_the_same_bytes(name: str) -> None:
    row, types = pick(name)
    for launch in launches_of(row, types, seed=3):
        narrow, wide = run(launch)[0], run(launch, wide=True)[0]
        assert not disagreements(launch, narrow)
        assert [memory.tobytes() for memory in narrow] == [memory.tobytes() for memory in wide]


@pytest.mark.parametrize("name", [n for n in EACH_FILE if n not in BY_ROWS])
def test_any_grid_gives_the_same_bytes(name: str) -> None:
    row, types = pick(name)
    for launch in launches_of(row, types, seed=4, count=5):
        usual = run(launch)[0]
        alone = run(launch, geometry=serial_geometry)[0]
        few = run(launch, geometry=lambda record, flat: ((2, 1, 1), (256, 1, 1) if "gemm" in name else (32, 1, 1), 0))[
            0
        ]
        assert [m.tobytes() for m in usual] == [m.tobytes() for m in alone] == [m.tobytes() for m in few]


@pytest.mark.parametrize("block", [(1, 256, 1), (32, 4, 1), (64, 1, 1), (256, 1, 1)], ids=str)
@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_are_right_for_every_block(name: str, block: tuple[int, int, int]) -> None:
    row, types = pick(name)
    for launch in launches_of(row, types, seed=5):
        memories, _ = run(launch, geometry=lambda record, flat: ((3, 1, 1), block, 0))
        assert not disagreements(launch, memories)
