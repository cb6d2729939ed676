"""Replay of recorded launches: when it starts, what ends it, what fails in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.core.device_samples import bound
from tests.cuda.cuda_samples import COUNT, REVERSED, X, adding, addresses, floats, gathering, lazy, recorded
from umd_core.commands import CommandBuffer, Flag
from umd_core.device import Binding
from umd_core.errors import IndexRangeError, PoisonedError
from umd_core.testing.recording import Recording
from umd_cuda.device import CudaDevice
from umd_cuda.driver import DriverError
from umd_cuda.recording import RecordingDriver


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


# queues


def test_replays_hold_on_every_queue() -> None:
    for seed in range(10):
        device, _ = lazy(seed)
        a, out = bound(device, X, np.zeros_like(X))
        program = device.load(bytes(adding()))
        for round_, queue in enumerate((1, 2, 1, 0, 3, 2)):
            device.write(a.buffer, 0, X * round_)
            device.submit(program, [a, a, out], queue=queue)
            assert floats(device, out) == (2 * X * round_).tolist()


def test_values_in_buffers_change_without_another_capture() -> None:
    device, driver = recorded()
    bindings = bound(device, X, X, X)
    program = device.load(bytes(adding()))
    for step in range(6):
        device.write(bindings[1].buffer, 0, X * step)
        device.submit(program, bindings, queue=step % 3).wait()
        assert floats(device, bindings[2]) == (X + X * step).tolist()
    assert (driver.log.count("begin_capture"), driver.log.count("replay")) == (1, 4)
