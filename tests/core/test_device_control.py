"""What the owner of a submission may do with it: stop, time, prefer, cancel; and what the order of bytes is then."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from umd_core.device import Binding, FenceValue, SequentialDevice
from umd_core.device.control import Control
from umd_core.errors import CancelledError, PoisonedError
from umd_core.registry import open_device

X = np.arange(8, dtype=np.float32)
ADD = umd.translate("Add", [X, X])


@pytest.fixture
def device() -> Iterator[SequentialDevice]:
    opened: Any = open_device("sim:0")
    yield opened
    opened.close()


def chain(length: int) -> umd.CommandBuffer:
    """Returns a program of `length` commands that cannot be joined: squares of a matrix, one after the other."""
    graph = umd.Graph("chain")
    value = graph.input("x", umd.TensorDesc("f32", (2, 2)))
    for _ in range(length):
        value = graph.add("MatMul", [value, value])
    graph.output(value)
    return umd.translate(graph)


def buffers(device: SequentialDevice, count: int, size: int = X.nbytes) -> list[Binding]:
    return [Binding(device.allocate(size), 0, size) for _ in range(count)]


class Stopping(Control):
    """Stops itself when its clock has been read so often: after that many commands, twice."""

    def __init__(self, after: int) -> None:
        self.ticks = itertools.count()
        super().__init__(clock=self.tick)
        self.after = after

    def tick(self) -> int:
        """Returns the next number."""
        now = next(self.ticks)
        if now == 2 * self.after - 1:
            self.stops.append(CancelledError("enough"))
        return now


@pytest.mark.parametrize("after", [1, 2, 5, 6])
def test_a_stop_acts_at_the_next_command(device: SequentialDevice, after: int) -> None:
    program = device.load(chain(6))
    given, control = buffers(device, 2, 16), Stopping(after)
    ticket = device.submit_with(control, program, given)
    assert control.times is not None
    assert [time.command for time in control.times] == list(range(after))
    assert [time.nanoseconds for time in control.times] == [1] * after
    assert {time.kernel for time in control.times} == {"gemm_kernel"}
    if after == 6:
        ticket.wait()
        device.read(*given[1])
        return
    with pytest.raises(CancelledError, match="enough"):
        ticket.wait()
    with pytest.raises(PoisonedError):
        device.read(*given[1])
    device.submit(program, given).wait()
    device.read(*given[1])


def test_the_plain_loop_stops_too(device: SequentialDevice) -> None:
    """A stop that comes from within the first command, as from another thread."""
    program, given, control = device.load(chain(4)), buffers(device, 2, 16), Control()
    device.submit(program, given).wait()
    ran: list[int] = []
    calls = program.calls[:]
    for position, call in enumerate(calls):

        def counted(position: int = position, call: Any = call) -> None:
            ran.append(position)
            call()
            control.stops.append(CancelledError("now"))

        program.calls[position] = counted
    with pytest.raises(CancelledError, match="now"):
        device.submit_with(control, program, given).wait()
    assert ran == [0]


def test_work_that_is_stopped_before_it_starts_never_runs(device: SequentialDevice) -> None:
    fence, after = device.fence(), device.fence()
    program, (a, b) = device.load(chain(1)), buffers(device, 2, 16)
    control = Control()
    ticket = device.submit_with(control, program, [a, b], (), [FenceValue(fence, 1)], [FenceValue(after, 4)])
    control.stops.append(CancelledError("late"))
    assert not ticket.done()
    fence.signal(1)
    with pytest.raises(CancelledError, match="late"):
        ticket.wait()
    assert after.value == 4
    with pytest.raises(PoisonedError, match="late"):
        device.read(*b)


def test_priority_decides_between_those_that_may_start(device: SequentialDevice) -> None:
    fence, order = device.fence(), list[int]()
    program, (a, b) = device.load(chain(1)), buffers(device, 2, 16)

    class Noted(Control):
        def begin(self) -> Exception | None:
            order.append(self.priority)
            return super().begin()

    for queue, priority in enumerate([0, -5, 9, 3, 0]):
        device.submit_with(Noted(priority), program, [a, b], (), [FenceValue(fence, 1)], (), queue)
    fence.signal(1)
    assert order == [9, 3, 0, 0, -5]


def test_cancel_poisons_and_signals(device: SequentialDevice) -> None:
    fence, after = device.fence(), device.fence()
    program, (a, b, c, d) = device.load(ADD), buffers(device, 4)
    first = device.submit(program, [a, a, b], waits=[FenceValue(fence, 1)], signals=[FenceValue(after, 1)])
    second = device.submit(program, [b, a, c], waits=[FenceValue(after, 1)], queue=1)
    other = device.submit(program, [a, a, d], queue=2)
    assert other.done()
    device.cancel(first, CancelledError("not wanted"))
    with pytest.raises(CancelledError):
        first.wait()
    with pytest.raises(PoisonedError, match="not wanted"):
        second.wait()
    device.read(*d)


def test_abandoned_work_frees_what_it_held(device: SequentialDevice) -> None:
    fence, program, (a, b) = device.fence(), device.load(ADD), buffers(device, 2)
    used = device.used
    tickets = [device.submit(program, [a, a, b], waits=[FenceValue(fence, 1)]) for _ in range(3)]
    device.free(b.buffer)
    assert device.used == used
    device.abandon(tickets, CancelledError("gone"))
    assert device.used == used - b.size
    assert all(ticket.done() for ticket in tickets)
    fence.signal(1)
    assert not a.buffer.poison


def test_waiting_work_keeps_others_from_what_it_writes(device: SequentialDevice) -> None:
    fence, program, (a, b) = device.fence(), device.load(ADD), buffers(device, 2)
    ticket = device.submit(program, [a, a, b], waits=[FenceValue(fence, 1)])
    assert (device.waiting(a.buffer), device.waiting(a.buffer, writers=True)) == ([ticket], [])
    assert device.waiting(b.buffer, writers=True) == [ticket]
    device.read(*a)
    for use in (lambda: device.read(*b), lambda: device.write(a.buffer, 0, X), lambda: device.write(b.buffer, 0, X)):
        with pytest.raises(CancelledError):
            use()
    fence.signal(1)
    assert device.waiting(b.buffer) == []
    device.read(*b)


def test_a_program_is_validated_once_when_what_was_found_is_given(device: SequentialDevice) -> None:
    raw = bytes(ADD)
    decoded = device.validate(raw)
    first, second = (device.load(raw, scope, decoded) for scope in ("one", "two"))
    assert first is not second
    assert first.command_buffer is second.command_buffer is decoded
