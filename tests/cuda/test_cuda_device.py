"""CudaDevice over a recording driver: what the driver is told, memory, failures, faults, replay."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tests.cuda.cuda_samples import (
    ADD_BLOCK,
    COUNT,
    GATHER_BLOCK,
    SIZE,
    adding,
    gathering,
    recorded,
)
from umd_core.commands import CommandBuffer, Flag
from umd_core.device import Binding, FenceValue
from umd_core.errors import (
    AttributeValueError,
    DeviceLostError,
    IndexRangeError,
    InternalError,
    OutOfMemoryError,
    PoisonedError,
    UnsupportedError,
)
from umd_core.testing.recording import Recording
from umd_cuda.device import CudaDevice
from umd_cuda.driver import DriverError, Geometry
from umd_cuda.options import Options, parse
from umd_cuda.pool import Pool, block_size
from umd_cuda.recording import RecordingDriver

X = np.arange(COUNT, dtype=np.float32)
REVERSED = np.arange(COUNT, dtype=np.int64)[::-1].copy()
ONE_LAUNCH = Geometry((1, 1, 1), (256, 1, 1), 0)


def bound(device: CudaDevice, *arrays: np.ndarray[Any, Any]) -> list[Binding]:
    bindings = []
    for array in arrays:
        buffer = device.allocate(array.nbytes)
        device.write(buffer, 0, array)
        bindings.append(Binding(buffer, 0, array.nbytes))
    return bindings


def floats(device: CudaDevice, binding: Binding) -> list[float]:
    result: list[float] = np.frombuffer(device.read(*binding), np.float32).tolist()
    return result


def addresses(bindings: list[Binding]) -> tuple[int, ...]:
    return tuple(buffer.memory.address + offset for buffer, offset, _ in bindings)


# what the driver is told


def test_a_launch_has_its_geometry_addresses_and_the_bytes_of_the_block() -> None:
    device, driver = recorded()
    bindings = bound(device, X, X, X)
    device.submit(device.load(bytes(adding())), bindings).wait()
    (launched,) = driver.launches
    assert launched == ("elementwise_add_kernel", ONE_LAUNCH, addresses(bindings), ADD_BLOCK)
    assert driver.sources == [("// elementwise_add_kernel", ("-DX",))]
    assert floats(device, bindings[2]) == (X + X).tolist()


def test_a_binding_s_offset_is_in_the_address() -> None:
    device, driver = recorded()
    buffer = device.allocate(4 * SIZE)
    bindings = [Binding(buffer, SIZE * i, SIZE) for i in (1, 2, 3)]
    device.submit(device.load(bytes(adding())), bindings).wait()
    assert driver.launches[0].addresses == tuple(buffer.memory.address + SIZE * i for i in (1, 2, 3))


def test_a_kernel_with_a_status_word_gets_its_address_last() -> None:
    device, driver = recorded()
    bindings = bound(device, X, np.tile(REVERSED, 2), X, X)
    device.submit(device.load(bytes(gathering(2))), bindings).wait()
    first, second = driver.launches
    assert first.block == second.block == GATHER_BLOCK
    assert first.addresses[:3] == addresses(bindings[:3])
    assert second.addresses[:3] == (first.addresses[0], first.addresses[1] + 8 * COUNT, addresses(bindings)[3])
    words = first.addresses[3], second.addresses[3]
    assert words[0] != words[1]
    assert all(word % 16 == 0 and driver.at(word, 16).tolist() == [0] * 16 for word in words)


def test_work_is_handed_over_in_program_order() -> None:
    device, driver = recorded()
    recording = Recording()
    slots = [recording.argument() for _ in range(2)]
    recording.fill((slots[0], 0, SIZE), b"\1\2\3\4")
    recording.copy((slots[1], 0, SIZE), (slots[0], 0, SIZE))
    recording.update(slots[1], 4, b"abcdefgh")
    bindings = bound(device, X, X)
    program = device.load(bytes(recording.finish()))
    driver.log.clear()
    device.submit(program, bindings).wait()
    assert driver.log == ["fill", "copy", "write"]
    assert bytes(device.read(*bindings[1]))[:12] == b"\1\2\3\4abcdefgh"


def test_one_module_serves_every_program_with_the_same_source() -> None:
    device, driver = recorded()
    device.load(bytes(adding()))
    device.load(bytes(gathering(1)))
    device.trim()
    device.load(bytes(gathering(2)))
    assert [text for text, _ in driver.sources] == ["// elementwise_add_kernel", "// gather_kernel"]


def test_the_words_of_dropped_programs_are_used_again() -> None:
    device, _ = recorded()
    bindings = bound(device, X, np.tile(REVERSED, 3), X, X, X)
    for _ in range(200):
        device.submit(device.load(bytes(gathering(3)), scope=object()), bindings).wait()
        device.trim()
        gc.collect(0)
    assert device.pool.in_use <= 5 * 512 + 2 * 4096


def test_what_has_no_source_is_refused() -> None:
    device, _ = recorded()
    assert not device.supports("softmax_kernel", ())
    recording = Recording()
    from umd_core import dtypes
    from umd_core.kernels import BY_NAME

    record = BY_NAME["elementwise_mul_kernel"].record((dtypes.float32,), (1,))
    recording.dispatch(record, ADD_BLOCK, [(recording.argument(), 0, SIZE) for _ in range(3)])
    with pytest.raises(UnsupportedError, match="elementwise_mul_kernel"):
        device.load(bytes(recording.finish()))


# memory


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


def through_arena(length: int) -> CommandBuffer:
    recording = Recording()
    source, target = recording.argument(), recording.argument()
    arena = recording.arena()
    recording.copy((arena, 0, length), (source, 0, length))
    recording.copy((target, 0, length), (arena, 0, length))
    return recording.finish()


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


# failures


def test_an_index_out_of_range_names_command_value_and_extent() -> None:
    device, _ = recorded()
    bad = np.tile(REVERSED, 2)
    bad[COUNT + 1] = 9
    bindings = bound(device, X, bad, X, X)
    program = device.load(bytes(gathering(2)))
    with pytest.raises(IndexRangeError) as caught:
        device.submit(program, bindings).wait()
    error = caught.value
    assert (error.kernel, error.command, error.value, error.extent) == ("gather_kernel", 3, 9, COUNT)
    assert floats(device, bindings[2]) == X[::-1].tolist()
    with pytest.raises(PoisonedError):
        device.read(*bindings[3])
    device.write(bindings[1].buffer, 0, np.tile(REVERSED, 2))
    device.submit(program, bindings).wait()
    assert floats(device, bindings[3]) == X[::-1].tolist()


def test_a_fatal_fault_at_the_end_loses_the_device_and_names_the_commands() -> None:
    device, driver = recorded()
    bindings = bound(device, X, np.tile(REVERSED, 2), X, X)
    program = device.load(bytes(adding()))
    driver.effects["elementwise_add_kernel"] = lambda d, _: setattr(d, "fault", DriverError("error 700", fatal=True))
    end = device.fence()
    ticket = device.submit(program, [bindings[0], bindings[2], bindings[3]], signals=[FenceValue(end, 1)])
    with pytest.raises(DeviceLostError, match=r"error 700 \[in command 0 \(elementwise_add_kernel\); open .*sync=1"):
        ticket.wait()
    assert end.value == 1
    for use in (
        lambda: device.submit(program, bindings[:3]),
        lambda: device.allocate(1),
        lambda: device.read(*bindings[0]),
        lambda: device.write(bindings[0].buffer, 0, X),
    ):
        with pytest.raises(DeviceLostError, match=r"cuda:0 is lost: .*error 700"):
            use()
    driver.fault = DriverError("error 700", fatal=True)
    device.close()
    assert driver.log[-1] == "close"


def test_with_sync_a_fatal_fault_names_its_command() -> None:
    device, driver = recorded(sync=True)
    bindings = bound(device, X, np.tile(REVERSED, 2), X, X)
    program = device.load(bytes(gathering(2)))
    effects: list[Any] = [lambda d, _: None, lambda d, _: setattr(d, "fault", DriverError("error 716", fatal=True))]
    driver.effects["gather_kernel"] = lambda d, launched: effects.pop(0)(d, launched)
    with pytest.raises(
        DeviceLostError, match=r"error 716 \[cuda:0: gather_kernel, command 3 after mark 'gather 1'\]"
    ) as e:
        device.submit(program, bindings).wait()
    assert (e.value.facts()["kernel"], e.value.facts()["command"]) == ("gather_kernel", 3)


def test_a_fault_that_is_not_fatal_leaves_the_device_usable() -> None:
    device, driver = recorded()
    bindings = bound(device, X, X, X)
    program = device.load(bytes(adding()))
    driver.fault = DriverError("invalid configuration")
    with pytest.raises(InternalError, match="invalid configuration"):
        device.submit(program, bindings).wait()
    with pytest.raises(PoisonedError):
        device.read(*bindings[2])
    device.submit(program, bindings).wait()
    assert floats(device, bindings[2]) == (X + X).tolist()


# replay


def submit(device: CudaDevice, program: Any, bindings: list[Binding], driver: RecordingDriver) -> list[str]:
    driver.log.clear()
    device.submit(program, bindings).wait()
    return [entry for entry in driver.log if entry != "synchronise"]


LAUNCH = "launch elementwise_add_kernel"
CAPTURE = [LAUNCH, "begin_capture", "end_capture"]
REPLAY = ["replay", LAUNCH]


def test_the_third_run_alike_is_a_replay() -> None:
    device, driver = recorded()
    bindings = bound(device, X, X, np.zeros_like(X))
    program = device.load(bytes(adding()))
    assert [submit(device, program, bindings, driver) for _ in range(4)] == [[LAUNCH], CAPTURE, REPLAY, REPLAY]
    device.write(bindings[0].buffer, 0, 2 * X)
    device.submit(program, bindings).wait()
    assert floats(device, bindings[2]) == (3 * X).tolist()


def test_other_bindings_are_never_given_to_a_replay() -> None:
    device, driver = recorded()
    bindings, others = bound(device, X, X, X), bound(device, 3 * X, X, X)
    program = device.load(bytes(adding()))
    for _ in range(3):
        submit(device, program, bindings, driver)
    assert submit(device, program, others, driver) == [LAUNCH]
    assert floats(device, others[2]) == (4 * X).tolist()
    assert driver.launches[-1].addresses == addresses(others)
    assert [submit(device, program, others, driver) for _ in range(2)] == [CAPTURE, REPLAY]
    assert submit(device, program, bindings, driver) == [LAUNCH]


def test_a_freed_buffer_ends_a_replay() -> None:
    device, driver = recorded()
    bindings = bound(device, X, X, X)
    program = device.load(bytes(adding()))
    for _ in range(3):
        submit(device, program, bindings, driver)
    device.free(bindings[0].buffer)
    again = bound(device, 5 * X)
    assert again[0].buffer.memory.address in driver.launches[-1].addresses
    assert submit(device, program, [*again, *bindings[1:]], driver) == [LAUNCH]


def test_replayed_failures_are_found_and_spoil_every_output() -> None:
    device, driver = recorded()
    bindings = bound(device, X, np.tile(REVERSED, 2), X, X)
    program = device.load(bytes(gathering(2)))
    for _ in range(3):
        submit(device, program, bindings, driver)
    assert driver.log.count("replay") == 1
    bad = np.tile(REVERSED, 2)
    bad[COUNT + 2] = -COUNT - 1
    device.write(bindings[1].buffer, 0, bad)
    with pytest.raises(IndexRangeError) as caught:
        device.submit(program, bindings).wait()
    assert (caught.value.command, caught.value.value) == (3, -COUNT - 1)
    for binding in bindings[2:]:
        with pytest.raises(PoisonedError):
            device.read(*binding)
    device.write(bindings[1].buffer, 0, np.tile(REVERSED, 2))
    device.submit(program, bindings).wait()
    assert floats(device, bindings[3]) == X[::-1].tolist()


def with_update() -> CommandBuffer:
    recording = Recording()
    recording.update(recording.argument(), 0, b"12345678")
    return recording.finish()


@pytest.mark.parametrize("options", [{"replay": False}, {"sync": True}])
def test_replay_can_be_left_out(options: dict[str, Any]) -> None:
    device, driver = recorded(**options)
    assert "prepare" not in device.caps().flags
    bindings = bound(device, X, X, X)
    program = device.load(bytes(adding()))
    assert [submit(device, program, bindings, driver) for _ in range(3)] == [[LAUNCH]] * 3


def test_programs_that_write_from_the_host_or_run_once_are_not_captured() -> None:
    device, driver = recorded()
    (target,) = bound(device, X)
    program = device.load(bytes(with_update()))
    assert [submit(device, program, [target], driver) for _ in range(3)] == [["write"]] * 3
    once = device.load(bytes(adding(Flag.ONE_SHOT)))
    assert submit(device, once, bound(device, X, X, X), driver) == [LAUNCH]


def test_a_capture_that_the_driver_refuses_is_done_without() -> None:
    device, driver = recorded()
    bindings = bound(device, X, X, X)
    program = device.load(bytes(adding()))

    def refuse() -> None:
        driver.log.append("begin_capture")
        raise DriverError("not permitted")

    driver.begin_capture = refuse  # type: ignore[method-assign]  # replaced for this test
    driver.end_capture = lambda: None  # type: ignore[method-assign]  # replaced for this test
    runs = [submit(device, program, bindings, driver) for _ in range(4)]
    assert runs == [[LAUNCH], [LAUNCH, "begin_capture"], [LAUNCH], [LAUNCH]]


# options


def test_options_are_read() -> None:
    assert parse("cuda", "") == Options()
    assert parse("cuda", "1?memory=2GiB&sync=1&replay=0") == Options(1, 2 << 30, True, False)
    assert parse("cuda", "?queues=32").queues == 32
    assert parse("cuda", "0?atomics=1").atomics


@pytest.mark.parametrize(
    "text", ["0?memory=lots", "0?sync=2", "0?seed=1", "0?replay=", "0?queues=0", "0?queues=33", "0?queues=8KiB"]
)
def test_wrong_options_are_refused(text: str) -> None:
    with pytest.raises(AttributeValueError, match="would be right"):
        parse("cuda", text)


def test_an_ordinal_is_a_number() -> None:
    with pytest.raises(UnsupportedError, match="'first'"):
        parse("cuda", "first")
