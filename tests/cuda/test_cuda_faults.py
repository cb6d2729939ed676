"""Failures of a CudaDevice: those of the data, and faults of the driver, which may lose the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.core.device_samples import bound
from tests.cuda.cuda_samples import COUNT, REVERSED, SIZE, X, adding, floats, gathering, lazy, recorded, through_arena
from tests.cuda.lazy_driver import LazyDriver
from umd_core.device import FenceValue
from umd_core.errors import DeviceLostError, IndexRangeError, InternalError, PoisonedError
from umd_core.testing.recording import Recording
from umd_cuda.driver import DriverError


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


# work under way


@pytest.mark.parametrize("earlier", range(4))
def test_what_fails_by_its_data_has_failed_when_submit_returns(earlier: int) -> None:
    """Launch by launch, and as a replay: what comes after it on other queues learns of it."""
    device, _ = lazy()
    good, bad = np.array([0, 1, 2, 3, 4]), np.array([0, 1, 2, 3, COUNT])
    data, index, out, after = bound(device, X, good, X, X)
    program = device.load(bytes(gathering()))
    for _ in range(earlier):
        device.submit(program, [data, index, out], queue=1)
    device.write(index.buffer, 0, bad)
    ticket = device.submit(program, [data, index, out], queue=1)
    assert ticket.done()
    with pytest.raises(IndexRangeError):
        ticket.wait()
    with pytest.raises(PoisonedError):
        device.submit(device.load(bytes(adding())), [out, out, after], queue=2).wait()


def broken(driver: LazyDriver, reason: str) -> None:
    def fail(*_: Any) -> None:
        raise DriverError(reason, fatal=True)

    driver.inner.effects["elementwise_add_kernel"] = fail


@pytest.mark.parametrize("notice", ["wait", "fence", "read", "done", "submit", "allocate"])
def test_a_fault_ends_all_work_under_way_and_says_where_it_may_have_been(notice: str) -> None:
    device, driver = lazy(strict=notice != "done")
    bindings = bound(device, X, X, X)
    recording = Recording()
    recording.mark("layer 3")
    places = [(recording.argument(), 0, SIZE) for _ in range(2)]
    recording.copy(places[1], places[0])
    copying = device.load(bytes(recording.finish()))
    end = device.fence()
    broken(driver, "error 700")
    first = device.submit(device.load(bytes(adding())), bindings, signals=[FenceValue(end, 1)], queue=1)
    second = device.submit(copying, bindings[:2], queue=2, waits=[FenceValue(end, 1)])
    text = (
        r"error 700 \[in command 0 \(elementwise_add_kernel\), or in command 1 \(copy after mark 'layer 3'\); "
        r"open the device with \?sync=1 to see which\]"
    )

    def allocate() -> None:
        device.settle()
        device.allocate(1)

    looks: dict[str, Callable[[], object]] = {
        "wait": first.wait, "fence": lambda: end.wait(1), "read": lambda: device.read(*bindings[0]),
        "done": lambda: [first.done() for _ in range(100)], "submit": lambda: device.submit(copying, bindings[:2]),
        "allocate": allocate,
    }  # fmt: skip
    if notice in ("fence", "done"):
        looks[notice]()
    elif notice == "submit":
        looks[notice]()
        device.settle()
    else:
        with pytest.raises(DeviceLostError, match=text):
            looks[notice]()
    for ticket in (first, second):
        assert ticket.done()
        with pytest.raises(DeviceLostError, match="error 700"):
            ticket.wait()
    assert end.value == 1
    for use in (
        lambda: device.submit(copying, bindings[:2]), lambda: device.read(*bindings[0]), lambda: device.allocate(8),
        lambda: device.write(bindings[0].buffer, 0, X), lambda: device.load(bytes(adding(4))),
    ):  # fmt: skip
        with pytest.raises(DeviceLostError, match="error 700"):
            use()
    device.free(bindings[0].buffer)
    device.trim()
    device.close()


def test_a_fault_that_a_launch_tells_of_may_be_of_earlier_work() -> None:
    device, driver = recorded()
    bindings = bound(device, X, X, np.zeros_like(X))
    device.submit(device.load(bytes(through_arena())), bindings[:2], queue=1)
    driver.fault = DriverError("error 719", fatal=True)
    with pytest.raises(
        DeviceLostError, match=r"error 719 .*elementwise_add_kernel, command 0\], or \[in commands 0 \(copy"
    ):
        device.submit(device.load(bytes(adding())), bindings, queue=2).wait()
