"""Programs and submissions: what is bound, what is refused, what failures spoil."""

from __future__ import annotations

import gc
import random
import struct
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.device_samples import HostDevice, bound, contents, copy_program, example_device
from umd_core import dtypes
from umd_core.commands import CommandBuffer, Flag, Patch, PatchKind
from umd_core.device import Binding, Caps, Program, SequentialDevice, legal_order
from umd_core.device.order import command_order
from umd_core.errors import (
    BindingError,
    DecodeError,
    IndexRangeError,
    InputCountError,
    InternalError,
    LimitError,
    PoisonedError,
    StaleHandleError,
    UmdError,
    UnsupportedError,
)
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.testing.programs import exact_rows, random_arguments, random_program, reference_run
from umd_core.testing.recording import Recording

SGD = BY_NAME["sgd_kernel"].record((dtypes.float32,), (1,))
NEG = BY_NAME["elementwise_neg_kernel"].record((dtypes.int32,), (1,))


class NotingDevice(HostDevice):
    """Notes which kernels are loaded and bound; a call appends its parameters to `ran`."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.binds = 0
        self.ran: list[bytes] = []
        self.trouble: Exception | None = None
        super().__init__()

    def caps(self) -> Caps:
        return Caps({"sgd_kernel": None, "elementwise_neg_kernel": None}, flags=frozenset({"map"}))

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        self.loaded.append(parameters)
        return record

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        self.binds += 1
        if self.trouble:
            raise self.trouble
        return lambda: self.ran.append(parameters)


def sgd(decay: float = 0.0) -> bytes:
    return SGD.pack(
        extents=(4,), p_offset=0, p_strides=(1,), g_offset=0, g_strides=(1,), lr_offset=0, weight_decay=decay
    )


def negation(count: int = 4) -> bytes:
    return NEG.pack(extents=(count,), x_offset=0, x_strides=(1,), out_offset=0, out_strides=(1,))


def sgd_program(decays: Sequence[float], patches: Sequence[Patch] = ()) -> CommandBuffer:
    recording = Recording()
    p, g, lr = (recording.argument() for _ in range(3))
    for decay in decays:
        recording.dispatch(SGD, sgd(decay), [(p, 0, 16), (g, 0, 16), (lr, 0, 4)])
    return recording.finish(patches=patches)


def negations(pairs: Sequence[tuple[int, int]], slots: int) -> CommandBuffer:
    recording = Recording()
    numbers = [recording.argument() for _ in range(slots)]
    for source, target in pairs:
        recording.dispatch(NEG, negation(), [(numbers[source], 0, 16), (numbers[target], 0, 16)])
    return recording.finish()


# programs


def test_a_kernel_is_loaded_once_per_unpatchable_parameters() -> None:
    device = NotingDevice()
    device.load(sgd_program([0.0, 0.1, 0.2]))
    device.load(sgd_program([0.3]))
    assert len(device.loaded) == 1


def test_the_same_bytes_give_the_same_program_within_a_scope() -> None:
    device = HostDevice()
    raw = bytes(copy_program(4))
    assert device.load(raw) is device.load(raw)
    assert device.load(raw) is not device.load(raw, scope="another owner")
    one_shot = bytes(copy_program(4, Flag.ONE_SHOT))
    assert device.load(one_shot) is not device.load(one_shot)


def test_the_arena_and_constants_are_charged_and_freed_with_the_program() -> None:
    device = HostDevice()
    recording = Recording()
    out = recording.argument()
    arena = recording.arena()
    constant = recording.constant(b"12345678")
    recording.copy((arena, 0, 8), (constant, 0, 8))
    recording.copy((out, 0, 8), (arena, 0, 8))
    program = device.load(recording.finish())
    assert device.used == 16
    gone = weakref.ref(program)
    del program
    assert device.used == 16
    device.trim()
    gc.collect()
    assert gone() is None
    assert device.used == 0


def test_kernels_that_the_device_lacks_are_refused_by_name_and_types() -> None:
    with pytest.raises(UnsupportedError) as caught:
        HostDevice().load(negations([(0, 1)], 2))
    error = caught.value
    assert (error.kernel, error.types, error.device) == ("elementwise_neg_kernel", ("int32",), "host:0")


def test_work_above_the_limit_is_refused() -> None:
    class Weak(NotingDevice):
        def caps(self) -> Caps:
            return Caps({"elementwise_neg_kernel": None}, max_work=3)

    with pytest.raises(DecodeError) as caught:
        Weak().load(negations([(0, 1)], 2))
    assert caught.value.rule == "launch-work"


def test_programs_belong_to_their_device() -> None:
    first, second = HostDevice(), HostDevice()
    program = first.load(copy_program(4))
    with pytest.raises(StaleHandleError, match="was not loaded by"):
        second.submit(program, bound(second, b"abcd", b"1234"))


def test_direct_handles_are_resolved_or_refused() -> None:
    command_buffer = copy_program(4)
    command_buffer.slots[1] = command_buffer.slots[1]._replace(kind=3, value=9 | 2 << 32)
    command_buffer.outputs = []

    class Handles(HostDevice):
        known: ClassVar[dict[int, Any]] = {}

        def resolve(self, handle: int) -> Any:
            return self.known.get(handle) or super().resolve(handle)

    device = Handles()
    source, target = bound(device, b"abcd", bytes(4))
    program = device.load(bytes(command_buffer))
    with pytest.raises(StaleHandleError, match="9, generation 2"):
        device.submit(program, [source])
    device.known[9 | 2 << 32] = target.buffer
    device.submit(program, [source]).wait()
    assert contents(device, target) == b"abcd"


# bindings


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


# failures


def test_errors_name_device_kernel_command_and_mark() -> None:
    device = NotingDevice()
    recording = Recording()
    a, b = recording.argument(), recording.argument()
    recording.mark("layer 3")
    recording.dispatch(NEG, negation(), [(a, 0, 16), (b, 0, 16)])
    program = device.load(recording.finish())

    def broken() -> None:
        raise ZeroDivisionError("oh")

    device.bind = lambda *_: broken  # type: ignore[method-assign]  # replaced for this test
    ticket = device.submit(program, bound(device, bytes(16), bytes(16)))
    with pytest.raises(InternalError) as caught:
        ticket.wait()
    error = caught.value
    assert str(error) == "ZeroDivisionError: oh [host:0: elementwise_neg_kernel, command 1 after mark 'layer 3']"
    facts = {name: error.facts()[name] for name in ("device", "kernel", "command", "mark")}
    assert facts == {"device": "host:0", "kernel": "elementwise_neg_kernel", "command": 1, "mark": "layer 3"}
    assert isinstance(error.__cause__, ZeroDivisionError)


class FaultyDevice(NotingDevice):
    """Negates for real, but fails at the calls whose number is in `failing`."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.calls = 0
        super().__init__()

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        source, target = (b.buffer.memory[b.offset : b.offset + 16].view(np.int32) for b in bindings)

        def call() -> None:
            self.calls += 1
            if self.calls - 1 in self.failing:
                raise IndexRangeError("gather_kernel", -1, 9, 4)
            np.negative(source, out=target)

        return call


@given(data=st.data(), length=st.integers(1, 10))
def test_failures_spoil_exactly_what_depends_on_them(data: st.DataObject, length: int) -> None:
    """A model of poison by slot agrees with the device, over two submissions."""
    slots = 5
    pairs = data.draw(
        st.lists(
            st.tuples(st.integers(0, slots - 1), st.integers(0, slots - 1)).filter(lambda pair: pair[0] != pair[1]),
            min_size=length,
            max_size=length,
        )
    )
    device = FaultyDevice()
    program = device.load(negations(pairs, slots))
    bindings = bound(device, *[np.full(4, n + 1, np.int32) for n in range(slots)])
    values: list[int | None] = [n + 1 for n in range(slots)]
    for _ in range(2):
        runs = sum(1 for _ in pairs)
        failing = data.draw(st.sets(st.integers(0, runs - 1), max_size=2))
        device.failing, device.calls = failing, 0
        ticket = device.submit(program, bindings)
        calls, failed = 0, False
        for source, target in pairs:
            value = values[source]
            if value is None:
                values[target], failed = None, True
                continue
            bad = calls in failing
            calls += 1
            failed |= bad
            values[target] = None if bad else -value
        assert device.calls == calls
        assert ticket.done()
        assert (ticket.error is not None) == failed
        for binding, value in zip(bindings, values, strict=True):
            if value is None:
                with pytest.raises(PoisonedError) as caught:
                    contents(device, binding)
                assert caught.value.root_status == int(IndexRangeError.status)
            else:
                assert np.frombuffer(contents(device, binding), np.int32).tolist() == [value] * 4
    assert device.poisoned == {b.buffer for b, value in zip(bindings, values, strict=True) if value is None}


def test_the_root_cause_stays_the_first() -> None:
    device = FaultyDevice()
    program = device.load(negations([(0, 1)], 2))
    a, b, c = bound(device, *[bytes(16)] * 3)
    device.failing = {0}
    device.submit(program, [a, b])
    first = device.submit(program, [b, c])
    second = device.submit(program, [c, a])
    for ticket in (first, second):
        assert isinstance(ticket.error, PoisonedError)
        assert ticket.error.root.startswith("gather_kernel (command 0): index 9")


# orders


@given(seed=st.integers(0, 2**32))
def test_other_legal_orders_give_the_same_result(seed: int) -> None:
    generator = np.random.default_rng(seed)

    class Shuffling(type(example_device())):  # type: ignore[misc]  # the example is imported by path
        pick = staticmethod(random.Random(seed).randrange)

        def order(self, program: Program) -> list[int]:
            return legal_order(program, self.pick)

    device: SequentialDevice = Shuffling("shuffling:0")
    program = random_program(generator, exact_rows(device.caps().supports), 12)
    arguments = random_arguments(generator, program)
    wanted = [array.tobytes() for array in reference_run(program, arguments)]
    bindings = bound(device, *arguments)
    device.submit(device.load(program), bindings).wait()
    assert [contents(device, binding) for binding in bindings] == wanted


def test_a_missing_dependency_shows_in_some_order() -> None:
    command_buffer = negations([(0, 1), (1, 2)], 3)
    command_buffer.commands[1] = command_buffer.commands[1]._replace(deps=())
    orders = {tuple(command_order(command_buffer.commands, random.Random(seed).randrange)) for seed in range(20)}
    assert orders == {(0, 1), (1, 0)}


def test_barriers_order_everything() -> None:
    recording = Recording()
    slots = [recording.argument() for _ in range(4)]
    for slot in slots[:2]:
        recording.fill((slot, 0, 8), b"a")
    recording.barrier()
    for slot in slots[2:]:
        recording.fill((slot, 0, 8), b"a")
    orders = [command_order(recording.commands, random.Random(seed).randrange) for seed in range(30)]
    assert {tuple(sorted(order[:2])) for order in orders} == {(0, 1)}
    assert {order[2] for order in orders} == {2}
    assert len({tuple(order) for order in orders}) == 4


def test_devices_of_many_threads_do_not_meet() -> None:
    """Each thread owns a device; what they share is only what the core caches."""

    def work(seed: int) -> bool:
        device = example_device(str(seed))
        generator = np.random.default_rng(seed)
        rows = exact_rows(device.caps().supports)
        for _ in range(4):
            program = random_program(generator, rows, 8)
            arguments = random_arguments(generator, program)
            wanted = [array.tobytes() for array in reference_run(program, arguments)]
            bindings = bound(device, *arguments)
            loaded = device.load(program)
            for _ in range(3):
                for binding, array in zip(bindings, arguments, strict=True):
                    device.write(binding.buffer, 0, array)
                device.submit(loaded, bindings).wait()
                if [contents(device, binding) for binding in bindings] != wanted:
                    return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_errors_are_typed_for_any_bytes() -> None:
    device = HostDevice()
    raw = bytes(copy_program(4))
    for cut in range(0, len(raw), 7):
        with pytest.raises(UmdError):
            device.load(raw[:cut])
