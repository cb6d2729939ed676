"""CupyDriver over a stand-in for CuPy: what it asks of CuPy, and what becomes of CuPy's errors. No GPU is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tests.cuda.cuda_samples import COUNT, SIZE, Sources, adding
from tests.cuda.fake_cupy import FakeCupy
from umd_core.device import Binding
from umd_core.errors import DeviceLostError, InternalError
from umd_cuda.cupy_driver import CupyDriver, fault_of
from umd_cuda.device import CudaDevice
from umd_cuda.driver import DriverError, DriverMemoryError, Geometry

BLOCK = bytes(range(24))
GEOMETRY = Geometry((3, 2, 1), (64, 1, 1), 128)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def driver(cupy: FakeCupy) -> Iterator[CupyDriver]:
    driver = CupyDriver(1)
    yield driver
    assert (cupy.devices, cupy.streams) == ([], [])


def test_importing_the_driver_does_not_import_cupy() -> None:
    code = "import sys, umd_cuda.cupy_driver, umd_cuda.plugin; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_name_says_what_it_is(driver: CupyDriver) -> None:
    assert driver.name == "Test GPU, compute capability 9.1"


def test_bytes_go_there_and_back(driver: CupyDriver, cupy: FakeCupy) -> None:
    memory = driver.allocate(64)
    driver.write(memory, 8, memoryview(b"abcdefgh"))
    assert cupy.log == ["malloc", "copy_from_host_async", "synchronize"]
    driver.copy(memory, 32, memory, 10, 4)
    assert bytes(driver.read(memory, 32, 4)) == b"cdef"
    assert cupy.log[3:] == ["copy_from_device_async", "copy_to_host_async", "synchronize"]
    assert (memory.address, memory.size) == (memory.owner.ptr, 64)


@pytest.mark.parametrize(
    ("pattern", "how"), [(b"\7", "memset_async"), (b"\0" * 8, "memset_async"), (b"ab", "ndarray.fill"),
                         (b"abcd", "ndarray.fill"), (b"abcdefgh", "ndarray.fill")],
)  # fmt: skip
def test_fills_of_every_width(driver: CupyDriver, cupy: FakeCupy, pattern: bytes, how: str) -> None:
    memory = driver.allocate(64)
    driver.fill(memory, 16, pattern, 4)
    assert bytes(driver.read(memory, 16, 4 * len(pattern))) == 4 * pattern
    assert bytes(driver.read(memory, 15, 1)) == bytes(driver.read(memory, 16 + 4 * len(pattern), 1)) == b"\xcd"
    assert how in cupy.log


def test_memory_is_given_back(driver: CupyDriver, cupy: FakeCupy) -> None:
    memory = driver.allocate(1000)
    assert driver.memory_info() == (cupy.capacity - 1000, cupy.capacity)
    driver.free(memory)
    assert driver.memory_info() == (cupy.capacity, cupy.capacity)
    with pytest.raises(DriverMemoryError):
        driver.allocate(cupy.capacity + 1)


def test_a_launch_passes_pointers_and_the_block_by_value(driver: CupyDriver, cupy: FakeCupy) -> None:
    function = driver.function(driver.load("source", ["-DA", "--std=c++17"]), "kernel")
    launch = driver.prepare(function, GEOMETRY, [1 << 40, 2], BLOCK)
    assert cupy.log == [("RawModule", "source", ("-DA", "--std=c++17"), "nvrtc"), ("get_function", "kernel"), "compile"]
    launch()
    launch()
    assert cupy.log[3:] == 2 * [("launch", "kernel", (3, 2, 1), (64, 1, 1), [1 << 40, 2], BLOCK, 128)]


def test_much_workgroup_memory_is_asked_for(driver: CupyDriver, cupy: FakeCupy) -> None:
    function = driver.function(driver.load("", []), "kernel")
    driver.prepare(function, Geometry((1, 1, 1), (1, 1, 1), 100_000), [], BLOCK)()
    assert function.max_dynamic_shared_size_bytes == 100_000
    assert cupy.log[-1][-1] == 100_000


def test_what_is_captured_runs_later_as_a_whole(driver: CupyDriver, cupy: FakeCupy) -> None:
    launch = driver.prepare(driver.function(driver.load("", []), "kernel"), GEOMETRY, [5], BLOCK)
    before = len(cupy.log)
    driver.begin_capture()
    launch()
    replay = driver.end_capture()
    assert cupy.log[before:] == ["begin_capture", "end_capture"]
    assert replay is not None
    replay()
    assert cupy.log[before + 2 :] == ["graph.launch", ("launch", "kernel", (3, 2, 1), (64, 1, 1), [5], BLOCK, 128)]


def test_a_capture_that_is_refused_gives_none(driver: CupyDriver, cupy: FakeCupy) -> None:
    cupy.fail["end_capture"] = 901
    driver.begin_capture()
    assert driver.end_capture() is None
    cupy.fail["end_capture"] = 700
    driver.begin_capture()
    with pytest.raises(DriverError, match="cudaError 700"):
        driver.end_capture()


@pytest.mark.parametrize(
    ("status", "fatal"), [(1, False), (9, False), (701, False), (700, True), (716, True), (719, True)]
)
def test_faults_are_told_apart(driver: CupyDriver, cupy: FakeCupy, status: int, fatal: bool) -> None:
    launch = driver.prepare(driver.function(driver.load("", []), "kernel"), GEOMETRY, [5], BLOCK)
    for action, call in (("launch", launch), ("synchronize", driver.synchronise)):
        cupy.fail[action] = status
        with pytest.raises(DriverError, match=f"CUDARuntimeError: cudaError {status}") as caught:
            call()
        assert caught.value.fatal is fatal


def test_an_out_of_memory_error_of_cupy_s_pool_is_one() -> None:
    error = type("OutOfMemoryError", (MemoryError,), {})("full")
    assert isinstance(fault_of(error), DriverMemoryError)


def test_a_source_that_does_not_compile_is_a_fault(driver: CupyDriver, cupy: FakeCupy) -> None:
    module = driver.load("nonsense", [])
    cupy.fail["compile"] = 218
    with pytest.raises(DriverError) as caught:
        driver.function(module, "kernel")
    assert not caught.value.fatal
    cupy.fail["compile"] = 218
    device = CudaDevice(driver, "cuda:1", None, Sources())
    with pytest.raises(InternalError, match=r"cuda:1: .*cudaError 218 while elementwise_add_kernel<float32> is loaded"):
        device.load(bytes(adding()))


def test_a_device_over_cupy_replays_and_is_lost_by_a_fault(cupy: FakeCupy) -> None:
    device = CudaDevice(CupyDriver(0), "cuda:0", None, Sources())
    assert device.caps().flags == {"trim", "prepare"}
    assert device.caps().memory == cupy.capacity // 10 * 9
    bindings = [Binding(device.allocate(SIZE), 0, SIZE) for _ in range(3)]
    assert bytes(device.read(*bindings[0])) == bytes(SIZE)
    program = device.load(bytes(adding()))
    for _ in range(3):
        device.submit(program, bindings).wait()
    launches = [entry for entry in cupy.log if entry[0] == "launch"]
    assert len(launches) == 3
    assert launches[0] == launches[2]
    assert launches[0][4] == [b.buffer.memory.address for b in bindings]
    assert len(launches[0][5]) == 8 + 8 + 3 * 16
    assert cupy.log.count("graph.launch") == 1
    cupy.fail["synchronize"] = 700
    with pytest.raises(DeviceLostError, match="cudaError 700"):
        device.submit(program, bindings).wait()
    with pytest.raises(DeviceLostError):
        device.tensor(np.zeros(COUNT))
    device.close()
