"""Programs: what is loaded once, what is refused, whose they are."""

from __future__ import annotations

import gc
import weakref
from typing import Any, ClassVar

import pytest

from tests.core.device_samples import HostDevice, bound, contents, copy_program
from tests.core.noting_device import NotingDevice, negations, sgd_program
from umd_core.commands import Flag
from umd_core.device import Caps
from umd_core.errors import DecodeError, StaleHandleError, UmdError, UnsupportedError
from umd_core.testing.recording import Recording


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
    class Limited(NotingDevice):
        work = 4

        def caps(self) -> Caps:
            return Caps({"elementwise_neg_kernel": None}, max_work=self.work)

    class Weak(Limited):
        work = 3

    Limited().load(negations([(0, 1)], 2))
    with pytest.raises(DecodeError) as caught:
        Weak().load(negations([(0, 1)], 2))  # equal bytes have just been accepted elsewhere
    assert caught.value.rule == "launch-work"
    Limited().load(negations([(0, 1)], 2))


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


def test_errors_are_typed_for_any_bytes() -> None:
    device = HostDevice()
    raw = bytes(copy_program(4))
    for cut in range(0, len(raw), 7):
        with pytest.raises(UmdError):
            device.load(raw[:cut])
