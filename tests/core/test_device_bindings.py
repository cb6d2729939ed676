"""Bindings and values of a submission: what is bound again, what is refused."""

from __future__ import annotations

import random
import struct
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.device_samples import HostDevice, bound, contents, copy_program
from tests.core.noting_device import SGD, NotingDevice, negations, sgd, sgd_program
from umd_core.commands import Patch, PatchKind
from umd_core.device import Binding, Program
from umd_core.errors import BindingError, InputCountError, InternalError, LimitError, PoisonedError, StaleHandleError
from umd_core.testing.recording import Recording


def test_only_steps_of_changed_slots_are_bound_again() -> None:
    device = NotingDevice()
    program = device.load(negations([(0, 1), (1, 2), (3, 4)], 5))
    bindings = bound(device, *[bytes(16)] * 6)
    device.submit(program, bindings[:5])
    assert device.binds == 3
    device.submit(program, bindings[:5])
    assert device.binds == 3
    device.submit(program, [*bindings[:4], bindings[5]])
    assert device.binds == 4
    device.submit(program, [Binding(b.buffer, 0, 16) for b in (*bindings[:4], bindings[5])])
    assert device.binds == 4
    assert len(device.ran) == 12


def test_freeing_a_bound_buffer_lets_go_of_its_memory() -> None:
    device = HostDevice()
    program = device.load(copy_program(4))
    a, b = bound(device, b"abcd", b"1234")
    device.submit(program, [a, b])
    memory = weakref.ref(a.buffer.memory)
    device.free(a.buffer)
    assert memory() is None
    with pytest.raises(StaleHandleError, match="binding 0 was freed"):
        device.submit(program, [a, b])


def test_a_backend_that_cannot_bind_fails_the_ticket_and_recovers() -> None:
    device = NotingDevice()
    program = device.load(negations([(0, 1), (1, 2)], 3))
    bindings = bound(device, *[bytes(16)] * 3)
    device.trouble = ValueError("no view")
    ticket = device.submit(program, bindings)
    with pytest.raises(InternalError, match="no view"):
        ticket.wait()
    with pytest.raises(PoisonedError):
        contents(device, bindings[2])
    device.trouble = None
    for binding in bindings:
        device.write(binding.buffer, 0, bytes(16))
    device.submit(program, bindings).wait()
    assert len(device.ran) == 2


RULES: dict[str, Callable[[Binding, Binding], list[Binding]]] = {
    "range": lambda a, b: [a, Binding(b.buffer, 60, 8)],
    "length": lambda a, b: [a, Binding(b.buffer, 0, 7)],
    "alignment": lambda a, b: [a, Binding(b.buffer, 4, 8)],
    "overlap": lambda a, b: [Binding(b.buffer, 0, 16), Binding(b.buffer, 8, 8)],
}


@pytest.mark.parametrize("rule", RULES)
def test_binding_rules(rule: str) -> None:
    device = HostDevice()
    recording = Recording()
    source, target = recording.argument(), recording.argument()
    recording.copy((target, 0, 8), (source, 0, 8))
    recording.fill((target, 0, 8), bytes(8))
    program = device.load(recording.finish())
    a, b = bound(device, bytes(16), bytes(64))
    with pytest.raises(BindingError) as caught:
        device.submit(program, RULES[rule](a, b))
    assert (caught.value.rule, caught.value.slot) == (rule, 1)
    device.submit(program, [a, b]).wait()


def test_reads_may_share_a_range_and_empty_ranges_meet_nothing() -> None:
    device = NotingDevice()
    program = device.load(negations([(0, 2), (1, 3)], 4))
    (a,) = bound(device, bytes(16))
    b, c = bound(device, bytes(16), bytes(16))
    device.submit(program, [a, a, b, c]).wait()
    with pytest.raises(BindingError) as caught:
        device.submit(program, [a, a, b, b])
    assert caught.value.rule == "overlap"


@given(seed=st.integers(0, 2**32), count=st.integers(1, 8))
def test_overlap_check_agrees_with_all_pairs(seed: int, count: int) -> None:
    rng = random.Random(seed)
    device = NotingDevice()
    writable = [rng.random() < 0.4 for _ in range(count)]
    recording = Recording()
    slots = [recording.argument() for _ in range(count)]
    for slot, written in zip(slots, writable, strict=True):
        recording.ref(slot, 0, 1, 2 if written else 1)
    command_buffer = recording.finish()
    command_buffer.slots = [slot._replace(min_size=0) for slot in command_buffer.slots]
    program = Program(device, command_buffer)
    buffers = [device.allocate(12) for _ in range(2)]
    bindings = tuple(Binding(rng.choice(buffers), rng.randrange(8), rng.randrange(5)) for _ in range(count))
    clash = any(
        a.buffer is b.buffer
        and a.offset < b.offset + b.size
        and b.offset < a.offset + a.size
        and (writable[i] or writable[j])
        and a.size
        and b.size
        for i, a in enumerate(bindings)
        for j, b in enumerate(bindings[:i])
    )
    if clash:
        with pytest.raises(BindingError):
            program.check(bindings)
    else:
        program.check(bindings)


# values


def test_patches_reach_the_kernel_and_only_what_changed_is_bound_again() -> None:
    device = NotingDevice()
    at = SGD.size - 8
    assert sgd(1.5)[at:] == struct.pack("<d", 1.5)
    program = device.load(sgd_program([0.0, 0.0], [Patch(1, 32 + at, PatchKind.BITS64, 0)]))
    bindings = bound(device, bytes(16), bytes(16), bytes(4))
    words = [int.from_bytes(struct.pack("<d", value), "little") for value in (0.25, 0.75)]
    device.submit(program, bindings, [words[0]]).wait()
    device.submit(program, bindings, [words[1]]).wait()
    device.submit(program, bindings, [words[1]]).wait()
    assert device.ran == [sgd(), sgd(0.25), sgd(), sgd(0.75), sgd(), sgd(0.75)]
    assert (device.binds, len(device.loaded)) == (3, 1)
    for values, error in (([], InputCountError), ([1, 2], InputCountError), ([-1], LimitError), ([2**64], LimitError)):
        with pytest.raises(error):
            device.submit(program, bindings, values)
