"""Replay, ONE_SHOT, fences, queues, events, and what a submission may be given."""

from __future__ import annotations

import numpy as np

from umd_core.commands import Event, Flag
from umd_core.device import Binding, Device, FenceValue
from umd_core.errors import BindingError, CancelledError, InputCountError, LimitError, ShapeError, StaleHandleError
from umd_core.testing.checks.tools import Check, bytes_in, copying, filled, free, raises, same
from umd_core.testing.recording import Recording

A, B, C = bytes(range(16)), bytes(16), bytes(range(100, 116))


def reusable(device: Device) -> None:
    """A program runs again with other buffers, offsets and contents."""
    program = device.load(bytes(copying(8).finish()))
    a, b, c = bindings = filled(device, A, B, C)
    device.submit(program, [Binding(a.buffer, 0, 8), Binding(b.buffer, 0, 8)]).wait()
    device.submit(program, [Binding(c.buffer, 8, 8), Binding(b.buffer, 8, 8)]).wait()
    same(bytes_in(device, b.buffer), np.frombuffer(A[:8] + C[8:], np.uint8), "two submissions")
    device.write(a.buffer, 0, C)
    device.submit(program, [Binding(a.buffer, 0, 8), Binding(b.buffer, 0, 8)]).wait()
    same(bytes_in(device, b.buffer), np.frombuffer(C, np.uint8), "third submission")
    free(device, bindings)


def one_shot(device: Device) -> None:
    """A ONE_SHOT program runs once; loaded anew it runs again."""
    raw = bytes(copying().finish(Flag.ONE_SHOT))
    a, b = bindings = filled(device, A, B)
    program = device.load(raw)
    device.submit(program, bindings).wait()
    with raises(StaleHandleError):
        device.submit(program, bindings)
    device.write(b.buffer, 0, B)
    device.submit(device.load(raw), bindings).wait()
    same(bytes_in(device, b.buffer), bytes_in(device, a.buffer), "copy")
    free(device, bindings)


def fences(device: Device) -> None:
    """Signals fire when the work is done; a wait that is not met holds the work back."""
    program = device.load(bytes(copying().finish()))
    a, b = bindings = filled(device, A, B)
    gate, end = device.fence(), device.fence()
    ticket = device.submit(program, bindings, waits=[FenceValue(gate, 2)], signals=[FenceValue(end, 5)])
    same((ticket.done(), end.value), (False, 0), "before the gate opens")
    gate.signal(1)
    same(ticket.done(), False, "below the value")
    gate.signal(2)
    ticket.wait(10)
    end.wait(5, 10)
    same((ticket.done(), end.value), (True, 5), "after the gate opened")
    same(bytes_in(device, b.buffer), bytes_in(device, a.buffer), "copy")
    with raises(LimitError):
        gate.signal(1)
    free(device, bindings)


def chained_queues(device: Device) -> None:
    """Queues synchronise by fences; within one, work keeps its order."""
    program = device.load(bytes(copying().finish()))
    a, b, c = bindings = filled(device, A, B, C)
    gate, step = device.fence(), device.fence()
    last = device.submit(program, [b, c], waits=[FenceValue(step, 1)], queue=1)
    first = device.submit(program, [a, b], waits=[FenceValue(gate, 1)], signals=[FenceValue(step, 1)])
    behind = device.submit(program, [c, a])
    same([t.done() for t in (last, first, behind)], [False] * 3, "all wait")
    gate.signal(1)
    for ticket in (last, first, behind):
        ticket.wait(10)
    same(bytes_in(device, c.buffer), np.frombuffer(A, np.uint8), "through two queues")
    free(device, bindings)


def hopeless_wait(device: Device) -> None:
    """Waiting for what nothing will signal raises instead of hanging."""
    program = device.load(bytes(copying().finish()))
    bindings = filled(device, A, B)
    gate = device.fence()
    ticket = device.submit(program, bindings, waits=[FenceValue(gate, 1)])
    with raises(CancelledError):
        ticket.wait(0.01)
    with raises(CancelledError):
        gate.wait(1, 0.01)
    gate.signal(1)
    ticket.wait(10)
    free(device, bindings)


def events(device: Device) -> None:
    """Signals that the program's events name fire after their command, the others at the end."""
    recording = copying()
    recording.mark("half")
    recording.copy((0, 0, 4), (1, 4, 4))
    program = device.load(bytes(recording.finish(events=[Event(3, 0, 0), Event(3, 1, 1)])))
    bindings = filled(device, A, B)
    marks = [device.fence() for _ in range(3)]
    with raises(InputCountError):
        device.submit(program, bindings, signals=[FenceValue(marks[0], 1)])
    device.submit(program, bindings, signals=[FenceValue(fence, 1) for fence in marks]).wait()
    same([fence.value for fence in marks], [1, 1, 1], "fences")
    free(device, bindings)


def binding_rules(device: Device) -> None:
    """Each binding has the size, alignment and place that its slot wants."""
    recording = Recording()
    source, target = recording.argument(), recording.argument()
    recording.copy((target, 0, 16), (source, 0, 16))
    recording.fill((target, 16, 8), bytes(8))
    program = device.load(bytes(recording.finish()))
    a, b = bindings = filled(device, A, bytes(64))
    with raises(InputCountError):
        device.submit(program, [a])
    for wrong in (
        Binding(b.buffer, 48, 24),
        Binding(b.buffer, -8, 24),
        Binding(b.buffer, 0, 23),
        Binding(b.buffer, 4, 24),
    ):
        with raises(BindingError, ShapeError):
            device.submit(program, [a, wrong])
    with raises(BindingError, ShapeError):
        device.submit(program, [Binding(b.buffer, 8, 16), Binding(b.buffer, 0, 24)])
    with raises(InputCountError):
        device.submit(program, [a, Binding(b.buffer, 0, 24)], values=[1])
    device.submit(program, [Binding(b.buffer, 24, 16), Binding(b.buffer, 0, 24)]).wait()
    free(device, bindings)


def alias_groups(device: Device) -> None:
    """Slots of an alias group get the same range."""
    recording = Recording()
    old, new = recording.argument(1), recording.argument(1)
    other = recording.argument()
    recording.copy((other, 0, 8), (old, 0, 8))
    recording.fill((new, 0, 8), b"\x07")
    program = device.load(bytes(recording.finish()))
    a, b = bindings = filled(device, A, B)
    with raises(BindingError, ShapeError):
        device.submit(program, [Binding(a.buffer, 0, 8), Binding(a.buffer, 8, 8), b])
    device.submit(program, [a, a, b]).wait()
    same(bytes_in(device, b.buffer)[:8], np.frombuffer(A[:8], np.uint8), "read before it is overwritten")
    same(bytes_in(device, a.buffer)[:8], np.full(8, 7, np.uint8), "overwritten in place")
    free(device, bindings)


def stale_buffers(device: Device) -> None:
    """A freed buffer is refused; work that was submitted with it still runs."""
    program = device.load(bytes(copying().finish()))
    a, b, c = filled(device, A, B, C)
    device.submit(program, [a, b]).wait()
    gate = device.fence()
    ticket = device.submit(program, [c, b], waits=[FenceValue(gate, 1)])
    device.free(c.buffer)
    with raises(StaleHandleError):
        device.submit(program, [c, b])
    gate.signal(1)
    ticket.wait(10)
    same(bytes_in(device, b.buffer), np.frombuffer(C, np.uint8), "copy from a buffer that was freed later")
    device.free(a.buffer)
    with raises(StaleHandleError):
        device.submit(program, [a, b])
    device.free(b.buffer)


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        reusable, one_shot, fences, chained_queues, hopeless_wait, events, binding_rules, alias_groups, stale_buffers,
    )
}  # fmt: skip
