"""Buffers, tensors, accounting: SequentialDevice over host memory."""

from __future__ import annotations

import gc
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.device_samples import HostDevice, bound, copy_program, example_device
from umd_core import dtypes
from umd_core.device import Tensor
from umd_core.device.tensor import packed, span, strided
from umd_core.errors import (
    BindingError,
    DeviceLostError,
    DTypeError,
    LimitError,
    OutOfMemoryError,
    StaleHandleError,
    UnsupportedError,
)
from umd_core.ir import TensorDesc


def test_accounting_counts_buffers_arenas_and_constants() -> None:
    device = HostDevice()
    buffer = device.allocate(1000)
    assert device.used == 1000
    device.free(buffer)
    assert (device.used, device.freed) == (0, [1000])
    assert buffer.memory is None


def test_out_of_memory_reports_figures_and_drops_cached_programs_first() -> None:
    device = HostDevice(memory=1000)
    held = device.allocate(900)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(101)
    error = caught.value
    assert (error.asked, error.used, error.capacity, error.largest_free) == (101, 900, 1000, 100)
    device.free(held)
    assert device.allocate(1000).size == 1000


def test_negative_size() -> None:
    with pytest.raises(LimitError):
        HostDevice().allocate(-1)


def test_tensors_free_their_buffer_when_the_last_view_dies() -> None:
    device = HostDevice()
    tensor = device.tensor(np.arange(10, dtype=np.int32))
    assert device.used == 40
    view = tensor.numpy()
    del tensor
    gc.collect()
    assert device.used == 40
    assert view.tolist() == list(range(10))
    del view
    gc.collect()
    assert device.used == 0


def test_buffers_dropped_on_another_thread_are_freed_by_the_owner() -> None:
    device = HostDevice()
    held = [device.tensor(np.zeros(8, np.uint8))]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert device.freed == []
    assert device.used == 0
    assert device.freed == [8]


@pytest.mark.parametrize("offset", [-1, 1, 2**64])
def test_write_outside_is_refused(offset: int) -> None:
    device = HostDevice()
    buffer = device.allocate(4)
    with pytest.raises(BindingError) as caught:
        device.write(buffer, offset, b"abcd")
    assert caught.value.rule == "range"


def test_freed_buffers_are_stale() -> None:
    device = HostDevice()
    buffer = device.allocate(4)
    device.free(buffer)
    for use in (lambda: device.read(buffer, 0, 1), lambda: device.write(buffer, 0, b"a"), lambda: device.free(buffer)):
        with pytest.raises(StaleHandleError):
            use()


def test_host_arrays_are_bound_without_a_copy() -> None:
    device = HostDevice()
    array = np.arange(16, dtype=np.uint8)
    buffer = device.wrap(array)
    array[3] = 99
    assert bytes(device.read(buffer, 3, 1)) == b"\x63"
    assert device.used == 0


def test_run_maps_inputs_and_reads_the_array_itself() -> None:
    device = HostDevice()
    seen: list[int] = []
    real = device.wrap_memory

    def noting(data: Any) -> Any:
        seen.append(data.ctypes.data)
        return real(data)

    device.wrap_memory = noting  # type: ignore[method-assign]  # replaced for this test
    array = np.arange(16, dtype=np.uint8)
    (out,) = device.run(copy_program(16), [array])
    assert seen == [array.ctypes.data]
    assert out.numpy().tolist() == array.tolist()


def test_wrap_needs_mapped_memory() -> None:
    with pytest.raises(UnsupportedError):
        example_device().wrap(np.zeros(4, np.uint8))


def test_in_place_outputs_overwrite_tensors_and_spare_host_arrays() -> None:
    command_buffer = copy_program(8)
    for index, slot in enumerate(command_buffer.slots):
        command_buffer.slots[index] = slot._replace(alias_group=1)
    command_buffer.commands = []
    command_buffer.slots = [slot._replace(min_size=0, access=0) for slot in command_buffer.slots]
    command_buffer.aliases = ((0, 0),)
    device = HostDevice()
    array = np.arange(8, dtype=np.uint8)
    (out,) = device.run(command_buffer, [array])
    out.numpy()[0] = 77
    assert array[0] == 0
    tensor = device.tensor(array)
    (out,) = device.run(command_buffer, [tensor])
    assert out.storage is tensor.storage


def test_closed_devices_refuse() -> None:
    device = HostDevice()
    program = device.load(bytes(copy_program(4)))
    bindings = bound(device, b"abcd", b"1234")
    device.close()
    with pytest.raises(DeviceLostError):
        device.allocate(1)
    with pytest.raises(DeviceLostError):
        device.submit(program, bindings)


def test_tensor_describes_itself() -> None:
    tensor = HostDevice().tensor(np.zeros((2, 3), np.float16))
    assert (tensor.shape, tensor.dtype, tensor.desc) == ((2, 3), dtypes.float16, TensorDesc("f16", (2, 3)))
    assert repr(tensor) == "Tensor(TensorDesc(float16[2,3]) on host:0)"
    assert np.asarray(tensor, dtype=np.float32).dtype == np.float32
    assert np.array(tensor).shape == (2, 3)


def test_dlpack_of_bfloat16_says_what_to_do() -> None:
    tensor = HostDevice().tensor(np.ones(3, ml_dtypes.bfloat16))
    with pytest.raises(DTypeError, match=r"\.numpy\(\)"):
        np.from_dlpack(tensor)
    assert tensor.numpy().astype(np.float32).tolist() == [1, 1, 1]


def test_torch_reads_tensors_by_dlpack() -> None:
    torch = pytest.importorskip("torch", reason="torch is an extra")
    tensor = HostDevice().tensor(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert torch.from_dlpack(tensor).tolist() == [[0, 3], [1, 4], [2, 5]]


@given(data=st.data(), shape=st.lists(st.integers(0, 4), max_size=4), dtype=st.sampled_from(dtypes.ALL))
def test_packed_and_strided_are_inverse(data: st.DataObject, shape: list[int], dtype: dtypes.DType) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    steps, step = [0] * len(shape), 1
    for axis in order:
        steps[axis] = step * data.draw(st.sampled_from([1, -1]))
        step *= max(shape[axis], 1) + data.draw(st.integers(0, 1))
    offset = -sum(min(0, (e - 1) * s) for e, s in zip(shape, steps, strict=True) if e)
    desc = TensorDesc(dtype, shape, steps, offset)
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype.numpy)
    flat = packed(array, desc)
    assert flat.size == desc.byte_size
    view = strided(flat, desc)
    assert view.tobytes() == array.tobytes()
    if array.size and dtype.kind != "b":
        assert span(view).size == desc.byte_size - span_start(desc)


def span_start(desc: TensorDesc) -> int:
    return desc.span()[0]


def test_tensor_of_a_reversed_view_is_row_major_on_the_device() -> None:
    tensor = HostDevice().tensor(np.arange(5, dtype=np.int64)[::-1])
    assert isinstance(tensor, Tensor)
    assert tensor.desc.is_contiguous
    assert tensor.numpy().tolist() == [4, 3, 2, 1, 0]
