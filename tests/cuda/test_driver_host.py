"""cuda-cpu: HostDriver, and the device over it: memory without copies, sources that fail, index errors, threads."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.cuda.cuda_samples import ADD, SIZE, adding
from umd_core import dtypes
from umd_core.device import Binding
from umd_core.errors import IndexRangeError, OutOfMemoryError, PoisonedError, Status
from umd_core.kernels import KernelRecord
from umd_core.kernels.geometry import Flat
from umd_cuda import disk, host, sources
from umd_cuda.device import CudaDevice
from umd_cuda.driver import DriverMemoryError, Geometry
from umd_cuda.host_driver import HostDriver, describe_compiler
from umd_cuda.libraries import Gemm, Matrix

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")

SCALE = """
struct Parameters { unsigned long long count; double factor; };
extern "C" __global__ void scale(const float* x, float* y, const Parameters p) {
  unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.count) y[i] = x[i] * (float)(p.factor FACTOR);
}
"""


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    driver = HostDriver()
    yield driver
    driver.close()


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    device = umd.open_device("cuda-cpu:0?memory=1MiB")
    assert isinstance(device, CudaDevice)
    yield device
    device.close()


def test_a_launch_gets_pointers_and_a_struct(driver: HostDriver) -> None:
    function = driver.function(driver.load(SCALE, ["-DFACTOR=+1"]), "scale")
    x, y = driver.allocate(4000), driver.allocate(4000)
    assert x.address % 256 == y.address % 256 == 0
    driver.write(x, 0, np.arange(1000, dtype=np.float32).data.cast("B"))
    driver.fill(y, 0, b"\0\0\x80\xbf", 1000)
    block = np.array([(999, 1.5)], "u8, f8").tobytes()
    launch = driver.prepare(function, Geometry((4, 1, 1), (256, 1, 1), 0), [x.address, y.address], block)
    for _ in range(2):
        launch()
        result = np.frombuffer(driver.read(y, 0, 4000), np.float32)
        np.testing.assert_array_equal(result[:999], np.arange(999, dtype=np.float32) * 2.5)
        assert result[999] == -1
        driver.copy(x, 0, y, 0, 4)


def test_the_driver_has_no_blas_and_captures_nothing(driver: HostDriver) -> None:
    matrix = Matrix(0, 0, False, 1, 0)
    assert driver.gemm(Gemm(dtypes.float32, 1, 1, 1, 1, matrix, matrix, matrix), [0]) is None
    driver.begin_capture()
    assert driver.end_capture() is None


def test_memory_beyond_the_machine_is_refused(driver: HostDriver) -> None:
    with pytest.raises(DriverMemoryError):
        driver.allocate(1 << 60)


def test_host_arrays_are_bound_without_a_copy(device: CudaDevice) -> None:
    x = np.arange(5, dtype=np.float32)
    buffer = device.wrap(x)
    assert buffer.memory.address == x.ctypes.data
    program = device.load(bytes(adding()))
    out = device.allocate(SIZE)
    device.submit(program, [Binding(buffer, 0, SIZE), Binding(buffer, 0, SIZE), Binding(out, 0, SIZE)]).wait()
    np.testing.assert_array_equal(np.frombuffer(device.read(out, 0, SIZE), np.float32), 2 * x)
    in_use = device.pool.in_use
    device.free(buffer)
    assert device.pool.in_use == in_use


def test_ops_translate_and_run(device: CudaDevice) -> None:
    random = np.random.default_rng(1)
    a, b = random.standard_normal((3, 20, 7)), random.standard_normal((7, 33))
    np.testing.assert_allclose(device.run(umd.translate("MatMul", [a, b]), [a, b])[0].numpy(), a @ b, rtol=1e-12)
    h = a.astype(np.float16)
    got = device.run(umd.translate("Exp", [h]), [h])[0].numpy()
    np.testing.assert_allclose(got, np.exp(h.astype(np.float32)).astype(np.float16), rtol=2e-3)
    soft = device.run(umd.translate("Softmax", [a], axis=1), [a])[0].numpy()
    np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-12)


def test_an_index_out_of_range_is_found_and_the_next_run_is_clean(device: CudaDevice) -> None:
    data, bad = np.arange(5, dtype=np.float32), np.array([0, 1, 5, 2, 3])
    program = umd.translate("Gather", [data, bad])
    with pytest.raises(IndexRangeError) as caught:
        device.run(program, [data, bad])
    assert (caught.value.kernel, caught.value.value, caught.value.extent) == ("gather_kernel", 5, 5)
    out = device.run(program, [data, np.array([4, -5, 3, -1, 0])])[0].numpy()
    np.testing.assert_array_equal(out, [4, 0, 3, 4, 0])


def test_failed_work_poisons_what_it_should_have_written(device: CudaDevice) -> None:
    data, bad = np.arange(5, dtype=np.float32), np.array([9])
    program = device.program(umd.translate("Gather", [data, bad]))
    tensors = [device.tensor(data), device.tensor(bad)]
    out = device.allocate(4)
    with pytest.raises(IndexRangeError):
        device.submit(program, [*(t.binding for t in tensors), Binding(out, 0, 4)]).wait()
    with pytest.raises(PoisonedError):
        device.read(out, 0, 4)


def test_out_of_memory_says_what_is_there(device: CudaDevice) -> None:
    held = device.allocate(600 << 10)
    with pytest.raises(OutOfMemoryError, match="wait in the pool") as caught:
        device.allocate(500 << 10)
    assert (caught.value.used, caught.value.capacity) == (600 << 10, 1 << 20)
    device.free(held)
    assert device.allocate(1 << 20).size == 1 << 20


class Broken:
    """Sources of which one does not compile, until it is mended."""

    def __init__(self) -> None:
        self.broken = True

    def source_for(self, record: KernelRecord, wide: bool = False) -> Any:
        source = sources.source_for(record, wide)
        assert source is not None
        return source._replace(text=source.text + "nonsense;\n") if self.broken and record is ADD else source

    def needs_wide(self, record: KernelRecord, flat: Flat) -> bool:
        return sources.needs_wide(record, flat)

    def launch_geometry(self, record: KernelRecord, flat: Flat) -> sources.Geometry:
        return sources.launch_geometry(record, flat)


def test_a_source_that_does_not_compile_is_an_error_of_load_and_is_tried_again() -> None:
    broken = Broken()
    device = CudaDevice(HostDriver(("-O1",)), "cuda-cpu:0", None, broken)
    with pytest.raises(host.CompileError, match="nonsense") as caught:
        device.load(bytes(adding()))
    assert caught.value.status == Status.UNSUPPORTED
    broken.broken = False
    x = np.ones(5, np.float32)
    np.testing.assert_array_equal(device.run(umd.translate("Add", [x, x]), [x, x])[0].numpy(), 2 * x)
    device.close()


@pytest.mark.parametrize("damage", ["a file in its place", "no room"])
def test_a_cache_that_cannot_be_written_is_named_once_and_kernels_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "cache"
    if damage == "no room":
        monkeypatch.setattr(tempfile, "mkstemp", full)
    else:
        folder.write_text("")
    monkeypatch.setenv("UMD_CUDA_CACHE", str(folder))
    disk.warn_unkept.cache_clear()
    device = CudaDevice(HostDriver(("-O1",)), "cuda-cpu:0")
    x = np.ones(5, np.float32)
    for op in ("Add", "Sub"):
        assert device.run(umd.translate(op, [x, x]), [x, x])[0].numpy().tolist() == [2.0 if op == "Add" else 0.0] * 5
    device.close()
    (record,) = caplog.records
    assert f"cannot be kept in {folder}: " in record.getMessage()


def test_a_second_device_takes_compiled_kernels_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMD_CUDA_CACHE", str(tmp_path))

    def libraries() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")}

    x = np.ones(5, np.float32)
    seen = []
    for _ in range(2):
        device = CudaDevice(HostDriver(("-O1",)), "cuda-cpu:0")
        device.run(umd.translate("Add", [x, x]), [x, x])
        device.close()
        seen.append(libraries())
    assert len(seen[0]) == 1
    assert seen[0] == seen[1]


def test_devices_on_many_threads_do_not_disturb_each_other() -> None:
    random = np.random.default_rng(2)
    rows = [random.standard_normal((40, 300)).astype(np.float32) for _ in range(4)]
    program = umd.translate("ReduceSum", [rows[0], np.array([1])], keepdims=0)
    wrong: list[str] = []

    def work(x: np.ndarray[Any, Any]) -> None:
        device = umd.open_device("cuda-cpu:0")
        for _ in range(30):
            got = device.run(program, [x])[0].numpy()
            if not np.allclose(got, x.sum(axis=1), rtol=1e-4, atol=1e-4):
                wrong.append(str(got))
        device.close()

    threads = [threading.Thread(target=work, args=(x,)) for x in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_compiler_is_named() -> None:
    line, reason = describe_compiler()
    assert line.startswith("this machine's processor, by ")
    assert reason == ""
