"""Which matrix products go to BLAS, and that BLAS is asked for the right ones; BLAS is played by NumPy."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.cuda.cuda_samples import recorded
from tests.cuda.fake_cupy import FakeCupy
from tests.cuda.kernel_runs import function, has_compiler
from umd_core import dtypes
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.testing.recording import Recording
from umd_cuda.cupy_driver import CupyDriver
from umd_cuda.device import CudaDevice
from umd_cuda.libraries import LEAST_WORK, ROUTINES, Gemm, gemm_for
from umd_cuda.options import Options
from umd_cuda.recording import RecordingDriver
from umd_cuda.sources import launch_geometry, source_for

ROW = BY_NAME["gemm_kernel"]
NAMES = ("a", "b", "out")


def record_of(dtype: dtypes.DType) -> KernelRecord:
    return ROW.record((dtype,), (4,))


def parameters(record: KernelRecord, batch: tuple[int, ...], sizes: tuple[int, int, int], **places: Any) -> list[Any]:
    """Returns the flat block; `places` are (offset, strides of batch and matrix) per operand."""
    padding = 4 - len(batch)
    fields: dict[str, Any] = {"batch": (1,) * padding + batch}
    fields.update(zip(("rows", "columns", "depth"), sizes, strict=True))
    for name, (offset, strides) in places.items():
        fields[f"{name}_offset"], fields[f"{name}_strides"] = offset, (0,) * padding + tuple(strides)
    return record.flatten(fields)


def dense(*shape: int) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def plain(m: int, n: int, k: int, dtype: dtypes.DType = dtypes.float32) -> Gemm | None:
    record = record_of(dtype)
    places = {"a": (0, dense(m, k)), "b": (0, dense(k, n)), "out": (0, dense(m, n))}
    return gemm_for(record, parameters(record, (), (m, n, k), **places))


def test_contiguous_matrices_of_some_size_go_to_blas() -> None:
    assert plain(32, 32, 32) is not None
    assert plain(32, 32, 32, dtypes.float64) is not None
    assert plain(32, 32, 31) is None
    assert plain(1 << 20, 0, 64) is None
    assert plain(64, 64, 64, dtypes.float16) is not None
    assert plain(64, 64, 64, dtypes.bfloat16) is not None
    assert plain(64, 64, 64, dtypes.int32) is None
    assert plain(LEAST_WORK, 1, 1) is not None
    assert plain(2**31, 1, 1) is None


@pytest.mark.parametrize(
    ("operand", "strides"),
    [("a", (-64, 1)), ("a", (128, 2)), ("b", (0, 1)), ("b", (63, 1)), ("out", (1, 64)), ("out", (128, 2))],
)
def test_what_blas_has_no_way_for_is_left_to_our_kernel(operand: str, strides: tuple[int, int]) -> None:
    record = record_of(dtypes.float32)
    places = {name: (0, dense(64, 64)) for name in NAMES} | {operand: (64 * 64, strides)}
    assert gemm_for(record, parameters(record, (), (64, 64, 64), **places)) is None


def test_a_batch_must_be_one_walk() -> None:
    record = record_of(dtypes.float32)

    def with_b(*batch_strides: int) -> Gemm | None:
        places = {name: (0, dense(3, 2, 32, 32)) for name in ("a", "out")} | {"b": (0, (*batch_strides, 32, 1))}
        return gemm_for(record, parameters(record, (3, 2), (32, 32, 32), **places))

    walked, shared = with_b(2048, 1024), with_b(0, 0)
    assert walked is not None
    assert shared is not None
    assert (walked.batch, walked.left.step, shared.left.step) == (6, 1024, 0)
    assert with_b(1024, 0) is None
    assert with_b(0, 1024) is None


@st.composite
def products(draw: st.DrawFn) -> tuple[KernelRecord, list[Any], tuple[int, ...], tuple[int, int, int]]:
    """Returns a product whose operands are plain, transposed or padded, in a batch that may share one of them."""
    record = record_of(draw(st.sampled_from(tuple(ROUTINES))))
    batch = draw(st.sampled_from(((), (1,), (3,), (2, 2))))
    m, n, k = (draw(st.sampled_from((1, 2, 33, 64))) for _ in range(3))
    places = {}
    for name, (down, across) in {"a": (m, k), "b": (k, n), "out": (m, n)}.items():
        gap = draw(st.sampled_from((0, 3)))
        if name != "out" and draw(st.booleans()):
            matrix, size = (1, down + gap), (down + gap) * across
        else:
            matrix, size = (across + gap, 1), down * (across + gap)
        shared = name != "out" and draw(st.booleans())
        steps = [0 if shared else size * step for step in dense(*batch)]
        places[name] = (draw(st.integers(0, 5)), (*steps, *matrix))
    return record, parameters(record, batch, (m, n, k), **places), batch, (m, n, k)


@settings(max_examples=60, deadline=None)
@given(products(), st.integers(0, 2**32))
def test_blas_computes_what_the_kernel_is_to(product: Any, seed: int) -> None:
    record, flat, _, _ = product
    gemm = gemm_for(record, flat)
    if gemm is None:
        return
    left, right, out = blas_of(record, flat, gemm, seed)
    wide = np.float64 if record.types[0] is dtypes.float64 else np.float32
    np.testing.assert_array_equal(out, (left.astype(wide) @ right.astype(wide)).astype(out.dtype))


def blas_of(record: KernelRecord, flat: list[Any], gemm: Gemm, seed: int) -> list[NDArray[Any]]:
    """Returns the operands' matrices after a product by the library."""
    random = np.random.default_rng(seed)
    numpy_type = record.types[0].numpy
    fake = FakeCupy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", fake)
        driver = CupyDriver(0)
        memories, views = [], []
        for view in record.views(record.struct.pack(*flat)):
            size = sum((e - 1) * s for e, s in zip(view.shape, view.strides, strict=True)) + view.offset
            memory = driver.allocate(size + view.dtype.size)
            memory.owner.mem.bytes.view(numpy_type)[...] = random.integers(-4, 5, memory.size // view.dtype.size)
            memories.append(memory)
            views.append(np.ndarray(view.shape, numpy_type, memory.owner.mem.bytes, view.offset, view.strides))
        call = driver.gemm(gemm, [memory.address for memory in memories])
        assert call is not None
        call()
    assert fake.log[-1] == "gemm"
    assert fake.math_mode == 0, "the handle is everybody's: its mode is put back"
    return views


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("dtype", ROUTINES, ids=lambda dtype: dtype.name)
def test_blas_and_our_kernel_agree_bit_for_bit_on_small_integers(dtype: dtypes.DType) -> None:
    record, (m, n, k) = record_of(dtype), (40, 33, 65)
    places = {"a": (3, dense(2, m, k)), "b": (0, (0, 1, k)), "out": (1, (m * (n + 2), n + 2, 1))}
    flat = parameters(record, (2,), (m, n, k), **places)
    gemm = gemm_for(record, flat)
    assert gemm is not None
    left, right, out = blas_of(record, flat, gemm, 5)
    source = source_for(record, wide=False, planned=False)
    assert source is not None
    ours = np.zeros(2 * m * (n + 2) + 1, out.dtype)
    pointers = [ctypes.c_void_p(v.ctypes.data - size * v.itemsize) for v, size in ((left, 3), (right, 0))]
    grid, block, shared = launch_geometry(record, flat)
    arguments = [*pointers, ctypes.c_void_p(ours.ctypes.data), record.struct.pack(*flat)]
    function(source).launch(grid, block, shared, arguments)
    np.testing.assert_array_equal(ours[1:].reshape(2, m, n + 2)[:, :, :n], out.reshape(2, m, n))


def product_of(device: CudaDevice, driver: RecordingDriver) -> str:
    record = record_of(dtypes.float32)
    flat = parameters(record, (), (32, 32, 32), **dict.fromkeys(NAMES, (0, (32, 1))))
    recording = Recording()
    recording.dispatch(record, record.struct.pack(*flat), [(recording.argument(), 0, 4096) for _ in NAMES])
    program = device.load(bytes(recording.finish()))
    from umd_core.device import Binding

    device.submit(program, [Binding(device.allocate(4096), 0, 4096) for _ in NAMES]).wait()
    return driver.launches[-1].kernel


def test_the_device_asks_the_driver_s_library_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from umd_cuda import sources

    for blas, options, wanted in (
        (True, Options(), "blas"),
        (True, Options(libraries=False), "gemm_kernel"),
        (False, Options(), "gemm_kernel"),
    ):
        driver = RecordingDriver(blas=blas)
        device = CudaDevice(driver, "cuda:0", options, sources)
        assert product_of(device, driver).split()[0] == wanted


def test_other_kernels_are_never_a_library_s() -> None:
    device, driver = recorded(RecordingDriver(blas=True))
    x = np.ones(5, np.float32)
    import umd_core as umd

    device.run(umd.translate("Add", [x, x]), [x, x])
    assert driver.launches[-1].kernel == "elementwise_add_kernel"
