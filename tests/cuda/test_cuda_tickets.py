"""Tickets and fences of submissions that go on after `submit`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.core.device_samples import bound
from tests.cuda.cuda_samples import SIZE, X, adding, floats, lazy
from umd_core.commands import Event
from umd_core.device import Binding, CompositeDevice, FenceValue
from umd_core.device.control import Control
from umd_core.errors import CancelledError, LimitError
from umd_core.testing.recording import Recording
from umd_cuda.flights import MOST


def test_submit_returns_before_the_work_is_done_and_ticket_and_fence_tell() -> None:
    device, driver = lazy()
    bindings = bound(device, X, X, np.zeros_like(X))
    end = device.fence()
    ticket = device.submit(device.load(bytes(adding())), bindings, signals=[FenceValue(end, 3)])
    assert (ticket.done(), end.value, driver.inner.launches) == (False, 0, [])
    ticket.wait()
    assert (ticket.done(), end.value, len(driver.inner.launches)) == (True, 3, 1)
    assert floats(device, bindings[2]) == (2 * X).tolist()


def test_a_fence_may_be_waited_for_and_a_wait_has_a_limit() -> None:
    device, _ = lazy()
    bindings = bound(device, X, X, X)
    end = device.fence()
    ticket = device.submit(device.load(bytes(adding())), bindings, signals=[FenceValue(end, 1)])
    with pytest.raises(CancelledError, match=r"not done in 0\.001 s"):
        ticket.wait(0.001)
    with pytest.raises(CancelledError):
        end.wait(1, 0.001)
    end.wait(1)
    assert ticket.done()
    with pytest.raises(CancelledError, match="nothing that was submitted"):
        end.wait(2)


def test_a_value_that_is_on_its_way_is_not_signalled_again() -> None:
    device, _ = lazy()
    bindings = bound(device, X, X, X)
    end = device.fence()
    program = device.load(bytes(adding()))
    device.submit(program, bindings, signals=[FenceValue(end, 2)])
    with pytest.raises(LimitError):
        device.submit(program, bindings, signals=[FenceValue(end, 2)])


def test_reading_waits_for_work_on_the_buffer_and_for_no_other() -> None:
    device, _ = lazy()
    program = device.load(bytes(adding()))
    first, second = bound(device, X, X, X), bound(device, X, 3 * X, X)
    device.settle()
    far = device.submit(program, first, queue=1)
    device.submit(device.load(bytes(adding(4))), second, queue=2)
    assert floats(device, second[2]) == (4 * X).tolist()
    assert not far.done()
    device.write(first[0].buffer, 0, 9 * X)
    assert far.done()
    assert floats(device, first[2]) == (2 * X).tolist()


def test_a_wait_for_work_under_way_is_an_event_and_not_a_stop() -> None:
    device, driver = lazy()
    a, b, c = bound(device, X, np.zeros_like(X), np.zeros_like(X))
    step = device.fence()
    program = device.load(bytes(adding()))
    device.submit(program, [a, a, b], signals=[FenceValue(step, 1)], queue=1)
    last = device.submit(device.load(bytes(adding(4))), [b, b, c], waits=[FenceValue(step, 1)], queue=2)
    assert not driver.inner.launches
    last.wait()
    assert (step.value, floats(device, c)) == (1, (4 * X).tolist())


def test_work_that_waits_for_the_host_starts_when_the_signal_comes() -> None:
    device, _ = lazy()
    a, b = bound(device, X, np.zeros_like(X))
    gate = device.fence()
    program = device.load(bytes(adding()))
    ticket = device.submit(program, [a, a, b], waits=[FenceValue(gate, 1)], queue=3)
    with pytest.raises(CancelledError, match="fence at 0 to reach 1"):
        ticket.wait()
    gate.signal(1)
    ticket.wait()
    assert floats(device, b) == (2 * X).tolist()


def test_what_waits_starts_even_when_it_may_while_other_work_is_handed_over() -> None:
    """Timed commands are waited for one by one; what else ends meanwhile lets others start afterwards."""
    device, _ = lazy()
    a, b, c, *others = bound(device, X, np.zeros_like(X), np.zeros_like(X), X, X, X)
    step, gate = device.fence(), device.fence()
    program, other = device.load(bytes(adding())), device.load(bytes(adding(4)))
    device.submit(program, [a, a, b], signals=[FenceValue(step, 1)], queue=1)
    ticket = device.submit(program, [b, b, c], waits=[FenceValue(gate, 1), FenceValue(step, 1)], queue=2)
    gate.signal(1)
    clock = itertools.count()
    device.submit_with(Control(clock=lambda: next(clock)), other, others, queue=3)
    ticket.wait()
    assert floats(device, c) == (4 * X).tolist()


def test_a_signal_in_the_middle_of_a_program_comes_after_its_command() -> None:
    device, driver = lazy()
    recording = Recording()
    places = [(recording.argument(), 0, SIZE) for _ in range(2)]
    recording.copy(places[1], places[0])
    recording.fill(places[0], b"\0")
    program = device.load(bytes(recording.finish(events=[Event(3, 0, 0)])))
    bindings = bound(device, X, np.zeros_like(X))
    half, end = device.fence(), device.fence()
    ticket = device.submit(program, bindings, signals=[FenceValue(half, 1), FenceValue(end, 1)])
    assert (half.value, end.value, ticket.done()) == (1, 0, False)
    assert "copy" in driver.inner.log
    ticket.wait()
    assert end.value == 1


def test_only_so_many_submissions_are_under_way() -> None:
    device, _ = lazy()
    bindings = bound(device, X, X, X)
    program = device.load(bytes(adding()))
    tickets = [device.submit(program, bindings) for _ in range(MOST + 3)]
    assert [ticket.done() for ticket in tickets].count(False) <= MOST
    device.settle()
    assert all(ticket.done() for ticket in tickets)


def test_a_composite_device_waits_for_what_it_has_handed_over() -> None:
    device, driver = lazy()
    both = CompositeDevice([device])
    assert "queues" not in both.caps().flags
    a = both.allocate(SIZE)
    both.write(a, 0, X)
    recording = Recording()
    recording.fill((recording.argument(), 0, SIZE), b"\1")
    both.submit(both.load(bytes(recording.finish())), [Binding(a, 0, SIZE)]).wait()
    assert bytes(driver.inner.read(a.memory, 0, SIZE)) == b"\1" * SIZE


def test_closing_waits_for_work_under_way() -> None:
    device, driver = lazy()
    bindings = bound(device, X, X, X)
    ticket = device.submit(device.load(bytes(adding())), bindings, queue=1)
    device.close()
    assert ticket.done()
    ticket.wait()
    assert len(driver.inner.launches) == 1
