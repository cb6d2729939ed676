"""Fences, tickets, queues: work that waits, and who wakes it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.device_samples import HostDevice, bound, contents, copy_program
from umd_core.commands import Event
from umd_core.device import Binding, Fence, FenceValue
from umd_core.errors import CancelledError, DeviceLostError, InputCountError, LimitError
from umd_core.testing.recording import Recording


def test_counters_grow_only() -> None:
    fence = Fence()
    fence.signal(3)
    fence.signal(3)
    with pytest.raises(LimitError) as caught:
        fence.signal(2)
    assert (caught.value.value, caught.value.limit) == (2, 3)
    with pytest.raises(LimitError):
        fence.signal(2**64)
    fence.signal(2**64 - 1)
    assert fence.value == 2**64 - 1


def test_waiting_for_what_nothing_will_signal_raises_and_says_what_it_waits_for() -> None:
    device = HostDevice()
    program = device.load(copy_program(4))
    fence = device.fence()
    fence.signal(1)
    ticket = device.submit(program, bound(device, b"abcd", b"1234"), waits=[FenceValue(fence, 7)])
    with pytest.raises(CancelledError, match="a fence at 1 to reach 7"):
        ticket.wait()
    with pytest.raises(CancelledError, match="will signal 7"):
        fence.wait(7)


def test_work_behind_waiting_work_says_so() -> None:
    device = HostDevice()
    program = device.load(copy_program(4))
    gate = device.fence()
    bindings = bound(device, b"abcd", b"1234")
    device.submit(program, bindings, waits=[FenceValue(gate, 1)], queue=3)
    behind = device.submit(program, bindings, queue=3)
    other = device.submit(program, bindings, queue=4)
    assert (behind.done(), other.done()) == (False, True)
    with pytest.raises(CancelledError, match="queue 3"):
        behind.wait()


def test_reading_what_waiting_work_will_write_raises() -> None:
    device = HostDevice()
    program = device.load(copy_program(4))
    gate = device.fence()
    a, b = bound(device, b"abcd", b"1234")
    ticket = device.submit(program, [a, b], waits=[FenceValue(gate, 1)])
    with pytest.raises(CancelledError, match="read of a buffer"):
        contents(device, b)
    with pytest.raises(CancelledError, match="write of a buffer"):
        device.write(a.buffer, 0, b"x")
    gate.signal(1)
    assert ticket.done()
    assert contents(device, b) == b"abcd"


def test_a_long_chain_needs_no_stack() -> None:
    device = HostDevice()
    program = device.load(copy_program(4))
    bindings = bound(device, b"abcd", b"1234")
    fence = device.fence()
    tickets = [
        device.submit(program, bindings, waits=[FenceValue(fence, n)], signals=[FenceValue(fence, n + 1)], queue=n)
        for n in range(1, 3000)
    ]
    fence.signal(1)
    assert all(ticket.done() for ticket in tickets)
    assert fence.value == 3000


def test_fences_work_across_devices() -> None:
    first, second = HostDevice(), HostDevice()
    there, back = Fence(), Fence()
    one, two = first.load(copy_program(4)), second.load(copy_program(4))
    a, b = bound(first, b"abcd", b"1234"), bound(second, b"efgh", b"5678")
    last = first.submit(one, a, waits=[FenceValue(back, 1)])
    middle = second.submit(two, b, waits=[FenceValue(there, 1)], signals=[FenceValue(back, 1)])
    assert (last.done(), middle.done()) == (False, False)
    there.signal(1)
    assert (last.done(), middle.done()) == (True, True)


def test_signals_must_rise() -> None:
    device = HostDevice()
    program = device.load(copy_program(4))
    fence = device.fence()
    fence.signal(5)
    with pytest.raises(LimitError):
        device.submit(program, bound(device, b"abcd", b"1234"), signals=[FenceValue(fence, 5)])


def test_events_fire_in_the_middle() -> None:
    device = HostDevice()
    recording = Recording()
    a, b = recording.argument(), recording.argument()
    recording.copy((b, 0, 4), (a, 0, 4))
    recording.nop()
    recording.copy((b, 4, 4), (a, 4, 4))
    program = device.load(recording.finish(events=[Event(3, 0, 0), Event(3, 1, 1)]))
    bindings = bound(device, b"abcdefgh", bytes(8))
    half, idle, end = (device.fence() for _ in range(3))
    seen: list[tuple[int, bytes]] = []
    for number, fence in enumerate((half, idle, end)):
        fence.watch(lambda number=number: seen.append((number, bytes(bindings[1].buffer.memory))))  # type: ignore[misc]  # the default binds the loop's value
    with pytest.raises(InputCountError):
        device.submit(program, bindings, signals=[FenceValue(half, 1)])
    device.submit(program, bindings, signals=[FenceValue(f, 1) for f in (half, idle, end)]).wait()
    assert seen == [(0, b"abcd" + bytes(4)), (1, b"abcd" + bytes(4)), (2, b"abcdefgh")]


def test_work_woken_by_an_event_runs_after_the_program_not_inside_it() -> None:
    device = HostDevice()
    recording = Recording()
    a, b = recording.argument(), recording.argument()
    recording.copy((b, 0, 4), (a, 0, 4))
    recording.copy((b, 4, 4), (a, 4, 4))
    program = device.load(recording.finish(events=[Event(3, 0, 0)]))
    first, second = bound(device, b"abcdefgh", bytes(8))
    (third,) = bound(device, bytes(8))
    fence = device.fence()
    later = device.submit(
        program, [second, third], waits=[FenceValue(fence, 1)], signals=[FenceValue(Fence(), 1)], queue=1
    )
    device.submit(program, [first, second], signals=[FenceValue(fence, 1)])
    later.wait()
    assert contents(device, third) == b"abcdefgh"


def test_closing_ends_waiting_work() -> None:
    device = HostDevice()
    gate = device.fence()
    ticket = device.submit(device.load(copy_program(4)), bound(device, b"abcd", b"1234"), waits=[FenceValue(gate, 1)])
    device.close()
    with pytest.raises(DeviceLostError):
        ticket.wait()


@given(seed=st.integers(0, 2**32), count=st.integers(1, 12))
def test_any_order_of_signals_gives_program_order_in_each_queue(seed: int, count: int) -> None:
    rng = random.Random(seed)
    device = HostDevice()
    program = device.load(copy_program(1))
    sources = bound(device, *[bytes([n]) for n in range(count)])
    targets = bound(device, b"\xff", b"\xff")
    gates = [device.fence() for _ in range(count)]
    queues = [rng.randrange(2) for _ in range(count)]
    tickets = [
        device.submit(program, [source, targets[queue]], waits=[FenceValue(gate, 1)], queue=queue)
        for source, gate, queue in zip(sources, gates, queues, strict=True)
    ]
    opened: set[int] = set()
    for number in rng.sample(range(count), count):
        gates[number].signal(1)
        opened.add(number)
        for queue in (0, 1):
            mine = [n for n in range(count) if queues[n] == queue]
            ready = 0
            while ready < len(mine) and mine[ready] in opened:
                ready += 1
            assert [tickets[n].done() for n in mine] == [True] * ready + [False] * (len(mine) - ready)
    for queue in (0, 1):
        mine = [n for n in range(count) if queues[n] == queue]
        assert contents(device, targets[queue]) == bytes([mine[-1]] if mine else b"\xff")


def test_bindings_of_waiting_work_are_its_own() -> None:
    device = HostDevice()
    program = device.load(copy_program(4))
    gate = device.fence()
    a, b, c, d = bound(device, b"abcd", bytes(4), b"efgh", bytes(4))
    waiting = device.submit(program, [a, b], waits=[FenceValue(gate, 1)], queue=1)
    device.submit(program, [c, d]).wait()
    gate.signal(1)
    waiting.wait()
    assert (contents(device, b), contents(device, d)) == (b"abcd", b"efgh")
    assert waiting.done()
    assert Binding(a.buffer, 0, 4) == a
