"""CudaDevice over a recording driver: what the driver is told, and in which order."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.core.device_samples import bound
from tests.cuda.cuda_samples import (
    ADD_BLOCK,
    COUNT,
    GATHER_BLOCK,
    REVERSED,
    SIZE,
    X,
    adding,
    addresses,
    floats,
    gathering,
    recorded,
)
from umd_core.device import Binding
from umd_core.errors import UnsupportedError
from umd_core.testing.recording import Recording
from umd_cuda.driver import Geometry

ONE_LAUNCH = Geometry((1, 1, 1), (256, 1, 1), 0)


def test_a_launch_has_its_geometry_addresses_and_the_bytes_of_the_block() -> None:
    device, driver = recorded()
    bindings = bound(device, X, X, X)
    device.submit(device.load(bytes(adding())), bindings).wait()
    (launched,) = driver.launches
    assert launched == ("elementwise_add_kernel", ONE_LAUNCH, addresses(bindings), ADD_BLOCK)
    assert driver.sources == [("// elementwise_add_kernel", ("-DX",))]
    assert floats(device, bindings[2]) == (X + X).tolist()


def test_a_binding_s_offset_is_in_the_address() -> None:
    device, driver = recorded()
    buffer = device.allocate(4 * SIZE)
    bindings = [Binding(buffer, SIZE * i, SIZE) for i in (1, 2, 3)]
    device.submit(device.load(bytes(adding())), bindings).wait()
    assert driver.launches[0].addresses == tuple(buffer.memory.address + SIZE * i for i in (1, 2, 3))


def test_a_kernel_with_a_status_word_gets_its_address_last() -> None:
    device, driver = recorded()
    bindings = bound(device, X, np.tile(REVERSED, 2), X, X)
    device.submit(device.load(bytes(gathering(2))), bindings).wait()
    first, second = driver.launches
    assert first.block == second.block == GATHER_BLOCK
    assert first.addresses[:3] == addresses(bindings[:3])
    assert second.addresses[:3] == (first.addresses[0], first.addresses[1] + 8 * COUNT, addresses(bindings)[3])
    words = first.addresses[3], second.addresses[3]
    assert words[0] != words[1]
    assert all(word % 16 == 0 and driver.at(word, 16).tolist() == [0] * 16 for word in words)


def test_work_is_handed_over_in_program_order() -> None:
    device, driver = recorded()
    recording = Recording()
    slots = [recording.argument() for _ in range(2)]
    recording.fill((slots[0], 0, SIZE), b"\1\2\3\4")
    recording.copy((slots[1], 0, SIZE), (slots[0], 0, SIZE))
    recording.update(slots[1], 4, b"abcdefgh")
    bindings = bound(device, X, X)
    program = device.load(bytes(recording.finish()))
    driver.log.clear()
    device.submit(program, bindings).wait()
    assert driver.log == ["fill", "copy", "write"]
    assert bytes(device.read(*bindings[1]))[:12] == b"\1\2\3\4abcdefgh"


def test_one_module_serves_every_program_with_the_same_source() -> None:
    device, driver = recorded()
    device.load(bytes(adding()))
    device.load(bytes(gathering(1)))
    device.trim()
    device.load(bytes(gathering(2)))
    assert [text for text, _ in driver.sources] == ["// elementwise_add_kernel", "// gather_kernel"]


def test_the_words_of_dropped_programs_are_used_again() -> None:
    device, _ = recorded()
    bindings = bound(device, X, np.tile(REVERSED, 3), X, X, X)
    for _ in range(200):
        device.submit(device.load(bytes(gathering(3)), scope=object()), bindings).wait()
        device.trim()
        gc.collect(0)
    assert device.pool.in_use <= 5 * 512 + 2 * 4096


def test_what_has_no_source_is_refused() -> None:
    device, _ = recorded()
    assert not device.supports("softmax_kernel", ())
    recording = Recording()
    from umd_core import dtypes
    from umd_core.kernels import BY_NAME

    record = BY_NAME["elementwise_mul_kernel"].record((dtypes.float32,), (1,))
    recording.dispatch(record, ADD_BLOCK, [(recording.argument(), 0, SIZE) for _ in range(3)])
    with pytest.raises(UnsupportedError, match="elementwise_mul_kernel"):
        device.load(bytes(recording.finish()))
