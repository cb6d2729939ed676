"""The safety rule, executed: whatever bytes are accepted, the simulator reads and writes only inside the bindings.

Every binding is a window of one host array with red zones around it. A program runs twice over the same bytes with
different red zones: the zones stay as they were, and the results do not depend on them.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import umd_core as umd
from tests.core.random_buffers import INTERESTING
from umd_core.commands import CommandBuffer, Dispatch
from umd_core.device import Binding, FenceValue, SequentialDevice
from umd_core.encoding import Limits, decode
from umd_core.errors import DecodeError, UmdError
from umd_core.kernels import KERNELS, KernelRow
from umd_core.registry import open_device
from umd_core.testing import strategies as us
from umd_core.testing.harness import record_launch

Bytes = NDArray[np.uint8]
ZONE = 4096
MAX_WORK = 200_000
"""Element operations a launch may have here, so that a mutated one ends soon."""


@pytest.fixture(scope="module")
def device() -> SequentialDevice:
    opened = open_device("sim:0")
    assert isinstance(opened, SequentialDevice)
    return opened


def run(device: SequentialDevice, raw: bytes, contents: list[Bytes], zone: int) -> tuple[list[Bytes], UmdError | None]:
    """Runs a program over windows of one array whose red zones hold `zone`; checks that the zones stay."""
    starts, size = [], ZONE
    for content in contents:
        starts.append(size)
        size += -(-content.size // 64) * 64 + ZONE
    memory = np.full(size, zone, np.uint8)
    outside = np.ones(size, np.bool_)
    for start, content in zip(starts, contents, strict=True):
        memory[start : start + content.size] = content
        outside[start : start + content.size] = False
    program = device.load(raw, object())  # an owner of its own: a fresh, zeroed arena
    buffer = device.wrap(memory)
    error = None
    try:
        bindings = [Binding(buffer, start, content.size) for start, content in zip(starts, contents, strict=True)]
        signals = [FenceValue(device.fence(), 1) for _ in range(program.signal_count)]
        device.submit(program, bindings, signals=signals).wait()
    except UmdError as known:
        error = known
    finally:
        device.free(buffer)
    assert (memory[outside] == zone).all(), "a red zone was written"
    return [memory[start : start + content.size].copy() for start, content in zip(starts, contents, strict=True)], error


def check(device: SequentialDevice, raw: bytes, seed: int) -> bool:
    """Runs accepted bytes; returns whether they were accepted."""
    limits = Limits(total_size=1 << 20)
    try:
        command_buffer = decode(raw, limits, MAX_WORK)
    except DecodeError:
        return False
    if sum(slot.min_size + slot.length for slot in command_buffer.slots) > 1 << 22 or has_handles(command_buffer):
        return True
    rng = np.random.default_rng(seed)
    sizes = [slot.min_size for slot in command_buffer.slots[: command_buffer.argument_count]]
    groups: dict[int, int] = {}
    for index, slot in enumerate(command_buffer.slots[: len(sizes)]):
        if slot.alias_group and groups.setdefault(slot.alias_group, index) != index:
            return True
    contents = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    first, error = run(device, raw, contents, 0x5A)
    again, same_error = run(device, raw, contents, 0xC3)
    assert type(error) is type(same_error)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b, "the results depend on bytes outside the bindings")
    return True


def has_handles(command_buffer: CommandBuffer) -> bool:
    return any(slot.kind == 3 for slot in command_buffer.slots) or bool(command_buffer.patches)


def repair(raw: bytearray) -> bytes:
    """Returns the bytes with both checksums made right."""
    raw[56:60] = zlib.crc32(raw[64:]).to_bytes(4, "little")
    raw[60:64] = zlib.crc32(raw[:60]).to_bytes(4, "little")
    return bytes(raw)


def parameters_at(raw: bytes, command_buffer: CommandBuffer) -> list[tuple[int, int]]:
    """Returns (position in the bytes, length) of every parameter block."""
    return [
        (raw.index(command.parameters, 64), len(command.parameters))
        for command in command_buffer.commands
        if isinstance(command, Dispatch) and command.parameters
    ]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(us.command_buffers(), st.integers(0, 2**32 - 1))
def test_valid_programs_stay_inside(device: SequentialDevice, command_buffer: CommandBuffer, seed: int) -> None:
    assert check(device, bytes(command_buffer), seed)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(us.command_buffers(), st.data())
def test_programs_with_changed_parameters_stay_inside(
    device: SequentialDevice, command_buffer: CommandBuffer, data: st.DataObject
) -> None:
    raw = bytearray(bytes(command_buffer))
    places = parameters_at(bytes(raw), command_buffer)
    if not places:
        return
    for _ in range(data.draw(st.integers(1, 3))):
        start, length = data.draw(st.sampled_from(places))
        at = start + 8 * data.draw(st.integers(0, length // 8 - 1))
        old = int.from_bytes(raw[at : at + 8], "little", signed=True)
        near = st.sampled_from((old - 1, old + 1, -old, 2 * old, old ^ 1))
        value = data.draw(st.one_of(near, st.sampled_from(INTERESTING)))
        raw[at : at + 8] = (value & (2**64 - 1)).to_bytes(8, "little")
    event(f"accepted: {check(device, repair(raw), data.draw(st.integers(0, 2**32 - 1)))}")


@pytest.mark.parametrize("row", KERNELS.values(), ids=lambda row: row.name)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_every_kernel_stays_inside(device: SequentialDevice, row: KernelRow, seed: int, data: st.DataObject) -> None:
    """One launch of every row, as it is and with one number changed to another that the decoder may accept."""
    launch = data.draw(us.launches([row]))
    command_buffer = record_launch(launch)
    raw = bytearray(bytes(command_buffer))
    assert check(device, bytes(raw), seed)
    places = parameters_at(bytes(raw), command_buffer)
    if places:
        start, length = places[0]
        at = start + 8 * data.draw(st.integers(0, length // 8 - 1))
        old = int.from_bytes(raw[at : at + 8], "little", signed=True)
        value = data.draw(st.sampled_from((old - 1, old + 1, -old, old * 2, old // 2, 0, 1, 7)))
        raw[at : at + 8] = (value & (2**64 - 1)).to_bytes(8, "little")
        event(f"accepted: {check(device, repair(raw), seed)}")


def test_the_check_can_fail() -> None:
    """A device that writes one byte too far is caught."""
    sim = open_device("sim:0")

    class Leaky(type(sim)):  # type: ignore[misc]  # the simulator's class is found through the registry
        def bind(self, executable: Any, parameters: bytes, bindings: Any) -> Any:
            inner = super().bind(executable, parameters, bindings)

            def call() -> None:
                inner()
                buffer, offset, size = bindings[-1]
                buffer.memory[offset + size] ^= 0xFF

            return call

    x = np.ones(8, np.float32)
    raw = bytes(umd.translate("Add", [x, x]))
    with pytest.raises(AssertionError, match="red zone"):
        check(Leaky(), raw, 0)
