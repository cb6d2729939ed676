"""Memory of a CudaDevice: its pool, its limits, whose it is, and memory that work under way still uses."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.core.device_samples import bound
from tests.cuda.cuda_samples import (
    REVERSED,
    SIZE,
    Sources,
    X,
    add,
    adding,
    floats,
    gathering,
    lazy,
    recorded,
    through_arena,
)
from tests.cuda.lazy_driver import LazyDriver
from umd_core.device import Binding
from umd_core.errors import OutOfMemoryError
from umd_core.testing.recording import Recording
from umd_cuda.device import CudaDevice
from umd_cuda.options import Options
from umd_cuda.pool import Pool, block_size
from umd_cuda.recording import RecordingDriver


@pytest.mark.parametrize("size", [1, 511, 512, 513, 640, 641, 4096, 5000, 1 << 20, (1 << 20) + 1, 10**9])
def test_a_block_holds_the_request_and_wastes_at_most_a_quarter(size: int) -> None:
    block = block_size(size)
    assert size <= block <= max(512, size + size // 4 + 128)
    assert block_size(block) == block


def test_a_freed_block_is_handed_out_again_and_zeroed() -> None:
    driver = RecordingDriver()
    pool = Pool(driver, 1 << 20)
    first = pool.allocate(1000, "cuda:0")
    first.owner[:] = 7
    pool.free(first)
    assert (pool.in_use, pool.kept, pool.largest_free) == (0, 1024, 1024)
    second = pool.allocate(900, "cuda:0")
    assert second is first
    assert not second.owner.any()
    assert (pool.in_use, pool.kept, driver.log.count("allocate")) == (1024, 0, 1)
    pool.free(second)
    pool.trim()
    assert (pool.kept, driver.allocated) == (0, 0)


def test_an_allocation_succeeds_once_the_pool_is_trimmed() -> None:
    device, driver = recorded(RecordingDriver(capacity=10_000), memory=1 << 20)
    device.free(device.allocate(4096))
    assert driver.allocated == 4096
    assert device.allocate(8192).size == 8192
    assert driver.log[-4:] == ["allocate", "free", "allocate", "fill"]


def test_memory_that_the_driver_lacks_is_an_error_with_figures() -> None:
    device, driver = recorded(RecordingDriver(capacity=10_000), memory=1 << 20)
    held = device.allocate(4096)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(8000)
    error = caught.value
    assert (error.asked, error.used, error.largest_free) == (8000, 4096, 10_000 - 4096)
    assert error.facts()["arena"] == error.facts()["pool"] == 0
    assert "bytes are arenas of loaded programs" in str(error)
    assert device.used == 4096
    device.free(held)
    device.allocate(8000)
    assert driver.allocated == 8192


def test_the_limit_of_the_device_counts_arenas() -> None:
    device, _ = recorded(memory=20_000)
    recording = Recording()
    x = recording.argument()
    arena = recording.arena()
    recording.copy((arena, 0, 8192), (x, 0, 8192))
    program = device.load(bytes(recording.finish()))
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(15_000)
    assert caught.value.facts()["arena"] == 8192
    del program


def test_memory_that_changes_sessions_is_zeroed_buffers_and_arenas() -> None:
    device, _ = recorded()
    secret = np.full(1024, 0x55, np.uint8)
    source, target = bound(device, secret, secret)
    program = device.load(bytes(through_arena(1024)), scope="alice")
    device.submit(program, [source, target]).wait()
    assert program.arena is not None
    arena = program.arena.memory
    assert arena.owner.any()
    memories = [arena, source.buffer.memory, target.buffer.memory]
    device.free(source.buffer)
    device.free(target.buffer)
    del program
    device.forget("alice")
    gc.collect(0)
    again = device.load(bytes(through_arena(1024)), scope="bob")
    assert again.arena is not None
    taken = [again.arena.memory, *(device.allocate(size).memory for size in (1000, 1024))]
    assert {id(memory) for memory in taken} == {id(memory) for memory in memories}
    assert not any(memory.owner.any() for memory in taken)


def test_sessions_have_accounts() -> None:
    device, _ = recorded()
    first, second = device.allocate(100, "alice"), device.allocate(1000, "bob")
    program = device.load(bytes(through_arena(1024)), "bob")
    assert (device.held("alice"), device.held("bob"), device.held("carol")) == (100, 2024, 0)
    device.free(first)
    device.free(second)
    del program
    device.forget("bob")
    gc.collect(0)
    assert (device.held("alice"), device.held("bob"), device.used) == (0, 0, 0)


@pytest.mark.parametrize(("limit", "kept"), [(None, 0), (0, 0), (1000, 512), (3000, 2560), (10_000, 6656)])
def test_trim_keeps_as_much_as_it_is_told(limit: int | None, kept: int) -> None:
    device, driver = recorded()
    for buffer in [device.allocate(size) for size in (4096, 512, 2048)]:
        device.free(buffer)
    if limit is None:
        device.trim()
    else:
        device.trim(limit)
    assert (device.pool.kept, driver.allocated) == (kept, kept)
    assert device.allocate(512).size == 512


def test_closing_gives_everything_back() -> None:
    device, driver = recorded()
    bindings = bound(device, X, REVERSED, X)
    device.submit(device.load(bytes(gathering())), bindings).wait()
    for binding in bindings:
        device.free(binding.buffer)
    device.close()
    assert driver.allocated == 0
    assert driver.log[-1] == "close"
    device.close()
    assert driver.log.count("close") == 1


# work under way


def test_memory_that_is_freed_is_not_used_again_before_its_work_is_done() -> None:
    device, _ = lazy()
    a, b, out = bound(device, X, 2 * X, np.zeros_like(X))
    device.settle()
    ticket = device.submit(device.load(bytes(adding())), [a, b, out], queue=1)
    freed = a.buffer.memory
    device.free(a.buffer)
    again = [device.allocate(SIZE) for _ in range(4)]
    assert freed not in [buffer.memory for buffer in again]
    ticket.wait()
    assert floats(device, out) == (3 * X).tolist()
    assert device.allocate(SIZE).memory is freed


def test_a_program_that_is_dropped_keeps_its_arena_until_its_work_is_done() -> None:
    device, _ = lazy()
    source, target = bound(device, X, np.zeros_like(X))
    program = device.load(bytes(through_arena()))
    device.settle()
    ticket = device.submit(program, [source, target], queue=1)
    del program
    device.trim()
    gc.collect(0)
    held = [device.allocate(SIZE) for _ in range(4)]
    ticket.wait()
    assert floats(device, target) == X.tolist()
    assert all(not any(device.read(buffer, 0, SIZE)) for buffer in held)


def test_no_room_waits_for_work_whose_memory_is_freed() -> None:
    driver = LazyDriver(RecordingDriver(capacity=8192), strict=True)
    driver.inner.effects = {"elementwise_add_kernel": add}
    driver.free = lambda memory: driver.inner.free(memory)  # type: ignore[method-assign]  # the capacity counts
    device = CudaDevice(driver, "cuda:0", Options(memory=1 << 20), Sources())
    a, b, out = (Binding(device.allocate(2048), 0, SIZE) for _ in range(3))
    device.submit(device.load(bytes(adding())), [a, b, out])
    device.free(a.buffer)
    device.free(b.buffer)
    assert device.allocate(4096).size == 4096
    with pytest.raises(OutOfMemoryError):
        device.allocate(4096)
