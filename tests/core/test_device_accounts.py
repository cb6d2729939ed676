"""Bytes on the account of each owner: what `held` says after any sequence of allocations, loads and releases."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.device_samples import HostDevice
from umd_core.commands import CommandBuffer
from umd_core.device import Buffer
from umd_core.errors import OutOfMemoryError
from umd_core.testing.recording import Recording

SCOPES = ("alice", "bob", None)


def through_arena(size: int) -> CommandBuffer:
    """Returns a program with an arena of `size` bytes."""
    recording = Recording()
    source, target = recording.argument(), recording.argument()
    arena = recording.arena()
    recording.copy((arena, 0, size), (source, 0, size))
    recording.copy((target, 0, size), (arena, 0, size))
    return recording.finish()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["allocate", "free", "load", "forget"]), st.sampled_from(SCOPES), st.integers(0, 500)
        ),
        max_size=20,
    )
)
def test_every_byte_is_on_one_account_until_it_is_released(steps: list[tuple[str, str | None, int]]) -> None:
    device = HostDevice()
    buffers: list[tuple[str | None, Buffer]] = []
    arenas: set[tuple[str | None, int]] = set()
    for action, scope, size in steps:
        if action == "allocate":
            buffers.append((scope, device.allocate(size, scope)))
        elif action == "free" and buffers:
            device.free(buffers.pop(size % len(buffers))[1])
        elif action == "load":
            length = 64 * (1 + size % 3)
            device.load(bytes(through_arena(length)), scope)
            arenas.add((scope, length))
        elif action == "forget":
            device.forget(scope)
            arenas = {arena for arena in arenas if arena[0] != scope}
            gc.collect(0)
        for owner in SCOPES:
            wanted = sum(buffer.size for o, buffer in buffers if o == owner)
            assert device.held(owner) == wanted + sum(length for o, length in arenas if o == owner)
        assert device.used == sum(map(device.held, SCOPES))


def test_a_load_that_fails_leaves_nothing_on_the_account() -> None:
    device = HostDevice(memory=100)
    with pytest.raises(OutOfMemoryError):
        device.load(bytes(through_arena(128)), "alice")
    gc.collect(0)
    assert (device.held("alice"), device.used) == (0, 0)
    assert device.allocate(10).scope is None
