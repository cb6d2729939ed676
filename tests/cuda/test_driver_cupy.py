"""CupyDriver over a stand-in for CuPy: what it asks of CuPy, and what becomes of CuPy's errors. No GPU is needed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.cuda_samples import COUNT, SIZE, Sources, adding
from tests.cuda.fake_cupy import FakeCupy
from umd_core.device import Binding
from umd_core.errors import DeviceLostError, InternalError, UnsupportedError
from umd_cuda import disk, host
from umd_cuda.cupy_driver import FILL, CupyDriver, fault_of
from umd_cuda.device import CudaDevice
from umd_cuda.driver import DriverError, DriverMemoryError, Geometry
from umd_cuda.faults import FATAL
from umd_cuda.options import Options

BLOCK = bytes(range(24))
GEOMETRY = Geometry((3, 2, 1), (64, 1, 1), 128)
ONE, BLOCK_OF_256 = (1, 1, 1), (256, 1, 1)
OPTIONS = ("-I/cuda/include", "-ftz=true")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cupy"))
    monkeypatch.setenv("UMD_CUDA_CACHE", str(tmp_path / "umd"))
    return fake


@pytest.fixture
def driver(cupy: FakeCupy) -> Iterator[CupyDriver]:
    driver = CupyDriver(1)
    cupy.log.clear()
    yield driver
    driver.close()
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
    ("pattern", "how"), [(b"\7", "memset_async"), (b"\0" * 8, "memset_async"), (b"ab", ("fill_2", ONE, BLOCK_OF_256)),
                         (b"abcd", ("fill_4", ONE, BLOCK_OF_256)), (b"abcdefgh", ("fill_8", ONE, BLOCK_OF_256))],
)  # fmt: skip
def test_fills_of_every_width(driver: CupyDriver, cupy: FakeCupy, pattern: bytes, how: object) -> None:
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
    assert cupy.log == [
        ("compile", "source", ("-DA", "--std=c++17", *OPTIONS)), ("load", b"source for 1"), ("get_function", "kernel"),
    ]  # fmt: skip
    launch()
    launch()
    assert cupy.log[3:] == 2 * [("launch", "kernel", (3, 2, 1), (64, 1, 1), [1 << 40, 2], BLOCK, 128)]


def test_much_workgroup_memory_is_asked_for(driver: CupyDriver, cupy: FakeCupy) -> None:
    function = driver.function(driver.load("", []), "kernel")
    driver.prepare(function, Geometry((1, 1, 1), (1, 1, 1), 100_000), [], BLOCK)()
    assert function.most == 100_000
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


@pytest.mark.parametrize(("status", "fatal"), [(1, False), (9, False), (701, False), *((code, True) for code in FATAL)])
def test_faults_are_told_apart(driver: CupyDriver, cupy: FakeCupy, status: int, fatal: bool) -> None:
    launch = driver.prepare(driver.function(driver.load("", []), "kernel"), GEOMETRY, [5], BLOCK)
    for action, call in (("launch", launch), ("synchronize", driver.synchronise)):
        cupy.fail[action] = status
        with pytest.raises(DriverError, match=f"CUDARuntimeError: cudaError {status}") as caught:
            call()
        assert caught.value.fatal is fatal
        assert FATAL.get(status, "") in caught.value.reason


def test_an_out_of_memory_error_of_cupy_s_pool_is_one() -> None:
    error = type("OutOfMemoryError", (MemoryError,), {})("full")
    assert isinstance(fault_of(error), DriverMemoryError)


def test_a_source_that_does_not_compile_is_a_fault(driver: CupyDriver, cupy: FakeCupy) -> None:
    cupy.fail["compile"] = 218
    with pytest.raises(DriverError) as caught:
        driver.function(driver.load("nonsense", []), "kernel")
    assert not caught.value.fatal
    cupy.fail["compile"] = 218
    device = CudaDevice(driver, "cuda:1", None, Sources())
    with pytest.raises(InternalError, match=r"cuda:1: .*cudaError 218 while elementwise_add_kernel<float32> is loaded"):
        device.load(bytes(adding()))


def test_a_device_over_cupy_replays_and_is_lost_by_a_fault(cupy: FakeCupy) -> None:
    device = CudaDevice(CupyDriver(0), "cuda:0", None, Sources())
    assert device.caps().flags >= {"trim", "prepare", "queues"}
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
    cupy.fail["query"] = 700
    with pytest.raises(DeviceLostError, match=r"cudaError 700 \(a kernel accessed an illegal address\) \[in command 0"):
        device.submit(program, bindings).wait()
    with pytest.raises(DeviceLostError):
        device.tensor(np.zeros(COUNT))
    device.close()


# queues


def test_a_queue_is_a_stream_and_an_event_orders_two(driver: CupyDriver, cupy: FakeCupy) -> None:
    launch = driver.prepare(driver.function(driver.load("", []), "kernel"), GEOMETRY, [5], BLOCK)
    other = driver.queue()
    before = len(cupy.log)
    launch()
    first = driver.record()
    driver.use(other)
    driver.wait(first)
    launch()
    second = driver.record()
    driver.use(None)
    launch()
    names = [entry if isinstance(entry, str) else entry[0] for entry in cupy.log[before:]]
    assert names == ["launch", "record", "wait_event", "launch", "record", "launch"]
    assert cupy.used == [0, 1, 0]
    assert cupy.log[before + 2] == ("wait_event", 0, 1)
    assert driver.come(second)
    driver.synchronise(second)
    assert cupy.log[-2:] == ["query", "event.synchronize"]
    driver.synchronise()
    assert cupy.log[-2:] == ["synchronize", "synchronize"]


def test_a_graph_runs_on_the_queue_that_is_current(driver: CupyDriver, cupy: FakeCupy) -> None:
    launch = driver.prepare(driver.function(driver.load("", []), "kernel"), GEOMETRY, [5], BLOCK)
    other = driver.queue()
    driver.begin_capture()
    launch()
    replay = driver.end_capture()
    assert replay is not None
    driver.use(other)
    replay()
    assert cupy.graphs == [cupy.number(other)]


def test_devices_are_used_by_many_threads_in_turn(cupy: FakeCupy) -> None:
    """Three GPUs and six threads: every call goes to its device, whatever the thread did before."""
    devices = [CudaDevice(CupyDriver(i), f"cuda:{i}", Options(replay=bool(i)), Sources()) for i in range(3)]
    locks = [threading.Lock() for _ in devices]
    cupy.pause = 1e-4
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        order = random.Random(number)
        try:
            for turn in range(12):
                which = order.randrange(3)
                with locks[which]:
                    device = devices[which]
                    bindings = [Binding(device.allocate(SIZE), 0, SIZE) for _ in range(3)]
                    data = np.full(COUNT, number * 100 + turn, np.float32)
                    device.write(bindings[0].buffer, 0, data)
                    ticket = device.submit(device.load(bytes(adding())), bindings, queue=turn % 4)
                    assert bytes(device.read(*bindings[0])) == data.tobytes()
                    ticket.wait()
                    for binding in bindings:
                        device.free(binding.buffer)
        except BaseException as error:  # noqa: BLE001  # it belongs to the test
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for device in devices:
        device.close()


def test_the_stand_in_refuses_what_belongs_to_another_device(cupy: FakeCupy) -> None:
    first, second = CupyDriver(0), CupyDriver(1)
    second.use(first.queue())
    with pytest.raises(DriverError, match="cudaError 400"):
        second.record()
    first.close()
    second.close()


# modules on the disk


def compiled(cupy: FakeCupy) -> int:
    return sum(entry[0] == "compile" for entry in cupy.log)


def cubins(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "umd").rglob("*.cubin"))


def test_modules_are_compiled_once_for_source_options_and_architecture(cupy: FakeCupy, tmp_path: Path) -> None:
    for ordinal, text, option in ((0, "a", "-DX"), (0, "a", "-DX"), (0, "b", "-DX"), (0, "a", "-DY"), (1, "a", "-DX")):
        driver = CupyDriver(ordinal)
        driver.function(driver.load(text, [option]), "kernel")
        driver.close()
    assert compiled(cupy) == len(cubins(tmp_path)) == 4
    cupy.cuda.nvrtc.getVersion = lambda: (13, 6)  # another compiler
    driver = CupyDriver(0)
    driver.function(driver.load("a", ["-DX"]), "kernel")
    driver.close()
    assert compiled(cupy) == 5


def test_a_damaged_module_is_compiled_again_with_one_line(
    cupy: FakeCupy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        driver = CupyDriver(0)
        driver.function(driver.load("source", []), "kernel")
        driver.close()
        (kept,) = cubins(tmp_path)
        kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert compiled(cupy) == 2
    assert [entry for entry in cupy.log if entry[0] == "load"] == [("load", b"source for 0")] * 2
    assert [record.getMessage() for record in caplog.records] == [
        f"the compiled module {kept} is damaged: it is removed and compiled again"
    ]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES])
def test_without_room_for_modules_kernels_work_and_one_warning_says_so(
    driver: CupyDriver, cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, error: int,
) -> None:  # fmt: skip
    def full(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    disk.warn_unkept.cache_clear()
    monkeypatch.setattr(tempfile, "mkstemp", full)
    for text in ("a", "b"):
        driver.function(driver.load(text, []), "kernel")
    assert compiled(cupy) == 2
    assert cubins(tmp_path) == []
    (record,) = caplog.records
    assert f"cannot be kept in {tmp_path / 'umd'}: {os.strerror(error)}" in record.getMessage()


# what is not installed


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError('Failure finding "libnvrtc.so.13 or libnvrtc.so.12": No such file'), "no CUDA compiler"),
        (ImportError("libnvrtc.so.13: cannot open shared object file"), "no CUDA compiler"),
        (RuntimeError('kernel.cu(1): catastrophic error: cannot open source file "cuda_fp16.h"'), "no headers of CUDA"),
    ],
)
def test_what_compiling_lacks_is_said_once_with_what_to_install(
    driver: CupyDriver, cupy: FakeCupy, error: Exception, text: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    cupy.cuda.compiler.compile_using_nvrtc = fail
    device = CudaDevice(driver, "cuda:1", None, Sources())
    with pytest.raises(UnsupportedError, match=rf"{text}: pip install 'umd-runtime\[cuda\]'"):
        device.load(bytes(adding()))


def test_cupy_that_cannot_be_imported_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UnsupportedError, match=r"CuPy cannot be imported: .*: pip install 'umd-runtime\[cuda\]'"):
        CupyDriver(0)


def test_where_cupy_cannot_make_its_folder_it_gets_another(
    cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    CupyDriver(0).close()
    folder = Path(os.environ["CUPY_CACHE_DIR"])
    assert folder.is_dir()
    folder.rmdir()
    assert f"CuPy cannot have its cache in {tmp_path / 'file' / 'cache'}" in caplog.text


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_fill_kernel_fills(size: int) -> None:
    """The source that CupyDriver fills with, run on the processor with the geometry that it uses."""
    count = 1000
    out = np.full((count + 2) * size, 0xCD, np.uint8)
    value = bytes(range(1, size + 1))
    arguments = [(out.ctypes.data + size).to_bytes(8, "little"), value, count.to_bytes(8, "little")]
    host.compile(FILL).function(f"fill_{size}").launch((2, 1, 1), (256, 1, 1), 0, arguments)
    assert out.tobytes() == b"\xcd" * size + value * count + b"\xcd" * size
