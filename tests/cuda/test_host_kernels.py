"""Kernels as public projects write them run unmodified on the CPU, equal NumPy, and are clean when checked."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.cuda.host_cases import CASES, KERNELS, TAPS, Case, needs_compiler
from umd_cuda import host

pytestmark = needs_compiler


def _compare(case: Case, function: host.RawKernel, args: list[Any], expected: dict[str, Any]) -> None:
    names = [parameter.name for parameter in function.parameters]
    for name, wanted in expected.items():
        got = args[names.index(name)]
        got = np.sort(got) if case.sort and got.ndim and got.size > 1 else got
        assert np.abs(np.asarray(wanted, np.float64)).max() > 0
        exact = np.asarray(wanted).dtype.kind in "iu"
        tolerance = 0 if exact else case.tolerance
        np.testing.assert_allclose(
            got.astype(np.float64), np.asarray(wanted).astype(np.float64), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_equals_numpy(case: Case, seed: int) -> None:
    args = case.args(np.random.default_rng(1))
    expected = case.expected(case.args(np.random.default_rng(1)))
    function = case.function()
    function(case.grid, case.block, args, shared_mem=case.shared, seed=seed)
    _compare(case, function, args, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_clean_when_checked(case: Case) -> None:
    args = case.args(np.random.default_rng(2))
    expected = case.expected(case.args(np.random.default_rng(2)))
    function = case.function()
    # what keeps no order differs between orders rightly
    orders = 0 if case.sort else 3
    report = function.check(case.grid, case.block, args, shared_mem=case.shared, outputs=case.outputs, orders=orders)
    assert report, str(report)
    _compare(case, function, args, expected)


def test_constant_memory_is_written_through_the_modules_global() -> None:
    module = host.RawModule(code=(KERNELS / "elementwise.cu").read_text(), name="elementwise.cu")
    module.get_global("taps").view(np.float32)[:] = TAPS
    x = np.random.default_rng(3).standard_normal(300).astype(np.float32)
    y = np.zeros_like(x)
    module.get_function("filter5")((3,), (128,), (x, y, 300))
    np.testing.assert_allclose(y, np.convolve(x, TAPS, "same"), rtol=1e-5, atol=1e-6)


def test_kernels_that_do_not_synchronise_run_as_a_loop() -> None:
    fibers = {case.kernel: case.module().compile().function(case.kernel).fibers for case in CASES}
    loops = {kernel for kernel, needs in fibers.items() if not needs}
    assert loops == {
        "my_add", "test_sum", "saxpy", "fx3<double>", "fx3<int>", "project", "haxpy", "gelu_bf16", "segment_sum",
    }  # fmt: skip


def test_launches_from_many_threads() -> None:
    case = next(case for case in CASES if case.kernel == "softmax")
    function = case.function()
    inputs = [case.args(np.random.default_rng(seed)) for seed in range(8)]
    wanted = [case.expected(args)["y"] for args in inputs]

    def work(args: list[Any]) -> None:
        for _ in range(20):
            function(case.grid, case.block, args, shared_mem=case.shared)

    threads = [threading.Thread(target=work, args=(args,)) for args in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for args, want in zip(inputs, wanted, strict=True):
        np.testing.assert_allclose(args[1], want, rtol=1e-5)


def test_launch_takes_bytes_and_ctypes_values() -> None:
    import ctypes

    module = host.compile((KERNELS / "elementwise.cu").read_text(), name="elementwise.cu")
    saxpy = module.function("saxpy")
    x, y = np.arange(10, dtype=np.float32), np.ones(10, np.float32)

    def address(array: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.ctypes.data)

    saxpy.launch((1,), (32,), 0, [ctypes.c_int(10), ctypes.c_float(2), address(x), address(y)])
    np.testing.assert_array_equal(y, 2 * np.arange(10) + 1)
    packed = [v.tobytes() for v in (np.int32(10), np.float32(2), np.uint64(x.ctypes.data), np.uint64(y.ctypes.data))]
    array = saxpy.arguments(packed)
    del packed
    for _ in range(2):
        saxpy.launch((1, 1, 1), (1, 1, 1), 0, array)
    np.testing.assert_array_equal(y, 6 * np.arange(10) + 1)


@pytest.mark.parametrize(
    ("grid", "block", "shared", "what"),
    [
        ((1,), (1025,), 0, "blockDim.x"),
        ((1,), (32, 33), 0, "the number of threads in a block"),
        ((0,), (32,), 0, "gridDim.x"),
        ((1, 65536), (32,), 0, "gridDim.y"),
        ((1,), (1, 1, 65), 0, "blockDim.z"),
        ((1,), (32,), 300_000, "dynamic workgroup memory in bytes"),
    ],
)
def test_launch_limits(grid: tuple[int, ...], block: tuple[int, ...], shared: int, what: str) -> None:
    from umd_core.errors import LimitError

    x = np.zeros(4, np.float32)
    kernel = host.RawKernel((KERNELS / "elementwise.cu").read_text(), "saxpy")
    with pytest.raises(LimitError) as raised:
        kernel(grid, block, (4, 1.0, x, x.copy()), shared_mem=shared)
    assert raised.value.what == what
