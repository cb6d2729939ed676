"""Rows, matrices and images that lie more than 2^31 elements apart."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from tests.cuda.kernel_runs import function, has_compiler, launch_of
from umd_core import dtypes
from umd_core.kernels.geometry import Flat
from umd_core.testing.launches import Launch
from umd_cuda import plans, sources
from umd_cuda.plans import Plan
from umd_cuda.sources import needs_wide

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")


def flat_of(launch: Launch) -> Flat:
    """Returns the flat parameter block."""
    return launch.record.struct.unpack(launch.parameters)


_NO_RESERVE = 0x4000  # MAP_NORESERVE on Linux, which the module does not name


def far_memory(size: int) -> Any:
    """Returns (size,) uint8 that takes no room where nobody writes."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    return np.frombuffer(memory, np.uint8)


FAR = 2**31 + 64


def launch_far(launch: Launch, plan: Plan) -> None:
    """Makes a launch where its memories lie."""
    source = sources.source_for(launch.record, wide=True)
    assert source is not None
    assert needs_wide(launch.record, flat_of(launch))
    pointers = [np.uintp(memory.ctypes.data).tobytes() for memory in launch.memories]
    scratch = np.zeros(plan.scratch + 1, np.uint8)
    for turn, geometry in plan.passes:
        block = plans.block_of(launch.parameters, scratch.ctypes.data, turn)
        function(source).launch(*geometry, [*pointers, block])


def test_rows_beyond_2_to_the_31() -> None:
    x = far_memory(FAR + 3000).view(np.int8)
    x[:3000], x[FAR : FAR + 3000] = 1, 2
    for parts in (1, 3):
        out = np.zeros(2, np.int8)
        launch = launch_of("reduce_sum_kernel", (dtypes.int8,), [x, out], outer=(2,), inner=(3000,), x_strides=(FAR, 1))
        plan = plans.split_rows(launch.record, flat_of(launch), parts)
        launch_far(launch, plan)
        assert out.tolist() == [3000 % 256 - 256, 6000 % 256]


def test_matrices_beyond_2_to_the_31() -> None:
    a = far_memory(FAR + 64).view(np.int8)
    a[:4], a[FAR : FAR + 4] = (1, 2, 3, 4), (5, 6, 7, 8)
    b, out = np.array([1, 2, 3, 4], np.int8), np.zeros(2, np.int8)
    launch = launch_of(
        "gemm_kernel", (dtypes.int8,), [a, b, out], batch=(1,), rows=2, columns=1, depth=4,
        a_strides=(0, FAR, 1), b_strides=(0, 1, 1), out_strides=(0, 1, 1),
    )  # fmt: skip
    launch_far(launch, plans.whole(launch.record, flat_of(launch)))
    assert out.tolist() == [30, 70]


def test_images_beyond_2_to_the_31() -> None:
    x = far_memory(2 * FAR + 64).view(np.float16)
    x[:4], x[FAR : FAR + 4] = (1, 2, 3, 4), (5, 6, 7, 8)
    w, y = np.array([1, 10], np.float16), np.zeros(6, np.float16)
    launch = launch_of(
        "conv_kernel", (dtypes.float16,), [x, w, y], batch=2, groups=1, out_channels=1, output=(3,), in_channels=1,
        kernel=(2,), input=(4,), window_strides=(1,), dilations=(1,), pads=(0,),
        x_strides=(FAR, 0, 0, 1), w_strides=(0, 0, 0, 1), y_strides=(3, 0, 0, 1),
    )  # fmt: skip
    for plan in (plans.whole(launch.record, flat_of(launch)), plans.tiled_conv(launch.record, flat_of(launch))):
        y[:] = 0
        launch_far(launch, plan)
        assert y.tolist() == [21, 32, 43, 65, 76, 87]
