"""RemoteDevice: the same results and errors as in process, in one round trip."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from umd_core.commands import Flag
from umd_core.device import Binding, FenceValue, Tensor
from umd_core.device.tensor import Storage
from umd_core.encoding import encode
from umd_core.errors import (
    BindingError,
    CancelledError,
    DecodeError,
    IndexRangeError,
    InputCountError,
    LimitError,
    OutOfMemoryError,
    PoisonedError,
    StaleHandleError,
    Status,
    UmdError,
    UnsupportedError,
)
from umd_core.registry import open_device
from umd_grpc.client.remote import RemoteDevice

Start = Callable[..., Any]
X = np.arange(12, dtype=np.float32).reshape(3, 4)
ADD = umd.translate("Add", [X, X])


@pytest.fixture
def device(server: Any) -> Iterator[RemoteDevice]:
    opened = RemoteDevice(server.address)
    yield opened
    opened.close()


def chain(length: int) -> umd.CommandBuffer:
    """Returns a program of `length` additions, x + x + … ."""
    graph = umd.Graph("chain")
    x = value = graph.input("x", umd.TensorDesc.of(X))
    for _ in range(length):
        value = graph.add("Add", [value, x])
    graph.output(value)
    return umd.translate(graph)


def test_one_inference_is_one_round_trip(device: RemoteDevice) -> None:
    assert device.round_trips == 1  # opening
    (result,) = device.run(ADD, [X, X])
    assert device.round_trips == 1
    np.testing.assert_array_equal(result.numpy(), X + X)
    assert device.round_trips == 2
    (again,) = device.run(ADD, [result, X])
    for _ in range(20):
        (again,) = device.run(ADD, [again, X])
    np.testing.assert_array_equal(again.numpy(), 23 * X)
    assert device.round_trips == 3
    assert device.bytes_up > 0 < device.bytes_down


def test_a_repeated_step_sends_little(device: RemoteDevice) -> None:
    """The program travels once; a step is its handles, the values that were asked for, and nothing else."""
    x = device.tensor(X)
    program = chain(100)
    device.run(program, [x])[0].numpy()
    before = device.bytes_up, device.bytes_down, device.round_trips
    for _ in range(10):
        device.run(program, [x])[0].numpy()
    assert device.round_trips - before[2] == 10
    assert (device.bytes_up - before[0]) / 10 < 200
    assert (device.bytes_down - before[1]) / 10 < X.nbytes + 64


def test_many_reads_take_one_round_trip(device: RemoteDevice) -> None:
    arrays = [np.full((size,), size, np.float32) for size in (1, 7, 300_000, 0, 64, 600_000)]
    tensors = [device.tensor(array) for array in arrays]
    before = device.round_trips
    found = device.read_many([tensor.binding for tensor in tensors])
    assert device.round_trips == before + 1
    for data, array in zip(found, arrays, strict=True):
        assert bytes(data) == array.tobytes()


@pytest.mark.parametrize("count", [1, 262_143, 262_144, 262_145, 1_500_000], ids=str)
def test_tensors_of_any_size(device: RemoteDevice, count: int) -> None:
    x = np.random.default_rng(count).random(count, np.float32)
    cb = umd.translate("Mul", [x, x])
    before = device.round_trips
    (result,) = device.run(cb, [x, x])
    np.testing.assert_array_equal(result.numpy(), x * x)
    assert device.round_trips == before + 1


def test_strided_and_other_inputs(device: RemoteDevice) -> None:
    local = open_device("sim:0")
    view = np.arange(48, dtype=np.float32).reshape(6, 8)[::2, ::-1]
    cases: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("Relu", [view - 20], {}),
        ("Softmax", [X], {"axis": -1}),
        ("MatMul", [X, X.T.copy()], {}),
        ("Gather", [X, np.array([2, 0])], {"axis": 0}),
        ("Cast", [X], {"to": "int64"}),
        ("Add", [np.float64(1), np.float64(2)], {}),
        ("Add", [np.zeros((0, 3)), np.zeros((0, 3))], {}),
    ]
    for op, inputs, attributes in cases:
        cb = umd.translate(op, [umd.TensorDesc.of(x) for x in inputs], **attributes)
        here, there = local.run(cb, inputs)[0].numpy(), device.run(cb, inputs)[0].numpy()
        np.testing.assert_array_equal(here, there)
        assert here.dtype == there.dtype
    local.close()


def test_updates_in_place(device: RemoteDevice) -> None:
    graph = umd.Graph("step")
    desc = umd.TensorDesc.of(X)
    graph.input("w", desc)
    graph.input("g", desc)
    graph.output(graph.add("Sub", ["w", "g"]), alias="w")
    cb = umd.translate(graph)
    weight = device.tensor(X)
    for _ in range(3):
        (updated,) = device.run(cb, [weight, np.ones_like(X)])
        assert updated.storage is weight.storage
    np.testing.assert_array_equal(weight.numpy(), X - 3)


def test_through_the_registry(server: Any) -> None:
    device = umd_device = open_device(f"grpc://{server.address}/sim:0")
    assert isinstance(umd_device, RemoteDevice)
    assert device.name == f"grpc://{server.address}/sim:0"
    local = open_device("sim:0")
    assert device.caps().kernels == local.caps().kernels
    assert device.caps().memory > 0
    assert not device.caps().flags & {"map"}
    local.close()
    device.close()
    for name in ("grpc:nothing", "grpc:///sim:0", "grpcs:"):
        with pytest.raises(UnsupportedError, match="grpc://host:port/sim:0"):
            open_device(name)
    with pytest.raises(UnsupportedError, match="sim:0"):
        open_device(f"grpc://{server.address}/sim:9")


# failures


def test_what_is_known_here_is_raised_here(device: RemoteDevice) -> None:
    buffer = device.allocate(16)
    with pytest.raises(DecodeError):
        device.load(b"UMDCMD" + bytes(100))
    with pytest.raises(BindingError):
        device.write(buffer, 8, bytes(9))
    with pytest.raises(BindingError):
        device.read(buffer, 17, 0)
    program = device.load(ADD)
    with pytest.raises(InputCountError):
        device.submit(program, [Binding(buffer, 0, 16)])
    with pytest.raises(BindingError):
        device.submit(program, [Binding(buffer, 0, 17)] * 3)
    with pytest.raises(LimitError):
        device.allocate(-1)
    device.free(buffer)
    for use in (
        lambda: device.free(buffer),
        lambda: device.read(buffer, 0, 4),
        lambda: device.write(buffer, 0, b""),
        lambda: device.submit(program, [Binding(buffer, 0, 16)] * 3),
    ):
        with pytest.raises(StaleHandleError):
            use()
    with pytest.raises(UnsupportedError):
        device.load_kernel(ADD.kernels[0], b"")


def test_bindings_that_were_good_are_looked_at_again(device: RemoteDevice) -> None:
    program = device.load(umd.translate("Add", [X, X]))
    with pytest.raises(InputCountError):
        device.submit(program, [])
    one, other = device.tensor(X), device.tensor(X)
    bindings = [one.binding, one.binding, other.binding]
    for _ in range(2):
        device.submit(program, bindings).wait()
    device.free(one.storage.buffer)
    with pytest.raises(StaleHandleError):
        device.submit(program, bindings)


def test_an_index_out_of_range_is_found_where_it_matters(device: RemoteDevice) -> None:
    cb = umd.translate("Gather", [X, umd.TensorDesc("i64", (2,))], axis=0)
    results, ticket = _start(device, cb, [X, np.array([0, 7])])
    with pytest.raises(PoisonedError) as caught:
        results[0].numpy()
    assert caught.value.facts()["root_status"] == Status.INDEX_OUT_OF_RANGE
    with pytest.raises(IndexRangeError) as first:
        ticket.wait()
    assert (first.value.facts()["value"], first.value.facts()["extent"]) == (7, 3)
    assert ticket.done()
    np.testing.assert_array_equal(device.run(ADD, [X, X])[0].numpy(), X + X)


def _start(device: RemoteDevice, cb: Any, inputs: Any) -> Any:
    from umd_core.device.tensor import start

    return start(device, device.program(cb), inputs)


@pytest.fixture
def impossible(device: RemoteDevice) -> Iterator[Any]:
    """A buffer that the device has no room left for, as its first use will show."""
    share = device.caps().memory * 2 // 3
    first = device.allocate(share)
    yield device.allocate(share)
    device.free(first)


def test_out_of_memory_is_told_by_what_needed_it(device: RemoteDevice, impossible: Any) -> None:
    with pytest.raises(PoisonedError) as caught:
        device.read(impossible, 0, 4)
    assert caught.value.facts()["root_status"] == Status.OUT_OF_MEMORY
    device.free(impossible)
    assert bytes(device.read(device.allocate(4), 0, 4)) == bytes(4)
    with pytest.raises(OutOfMemoryError):
        device.allocate(1 << 60)


def test_a_large_write_that_fails_is_told_by_what_reads_it(device: RemoteDevice, impossible: Any) -> None:
    device.write(impossible, 0, np.zeros(3 << 20, np.uint8))
    for _ in range(2):
        with pytest.raises(PoisonedError) as caught:
            device.read(impossible, 0, 2 << 20)
        assert caught.value.facts()["root_status"] == Status.OUT_OF_MEMORY


def test_one_shot_programs_run_once(device: RemoteDevice) -> None:
    cb = umd.translate("Add", [X, X])
    shot = umd.CommandBuffer(
        kernels=cb.kernels, slots=cb.slots, commands=cb.commands, constants=cb.constants, debug=cb.debug,
        flags=cb.flags | Flag.ONE_SHOT,
    )  # fmt: skip
    program = device.load(encode(shot))
    a, b = device.tensor(X), device.tensor(np.zeros_like(X))
    bindings = [a.binding, a.binding, b.binding]
    device.submit(program, bindings)
    with pytest.raises(StaleHandleError):
        device.submit(program, bindings)
    np.testing.assert_array_equal(b.numpy(), X + X)


def test_fences(device: RemoteDevice) -> None:
    program = device.load(ADD)
    a, b = device.tensor(X), device.tensor(np.zeros_like(X))
    fence = device.fence()
    ticket = device.submit(program, [a.binding, a.binding, b.binding], waits=[FenceValue(fence, 1)], queue=1)
    with pytest.raises(CancelledError):
        ticket.wait(timeout=0.1)
    assert not ticket.done()
    assert fence.value == 0
    with pytest.raises(CancelledError):
        fence.wait(1, timeout=0.1)
    c = device.tensor(np.zeros_like(X))
    device.submit(program, [a.binding, a.binding, c.binding], signals=[FenceValue(fence, 1)], queue=2)
    ticket.wait()
    assert ticket.done()
    np.testing.assert_array_equal(b.numpy(), X + X)
    fence.signal(9)
    fence.wait(9)
    assert fence.value == 9
    with pytest.raises(LimitError):
        fence.signal(8)


# memory


def test_what_nobody_holds_is_freed(device: RemoteDevice) -> None:
    """Fifty times a fifth of the device's memory fits when each piece is freed before the next is taken."""
    share = device.caps().memory // 5
    for _ in range(50):
        tensor = Tensor(umd.TensorDesc("u8", (share,)), Storage(device, device.allocate(share)))  # type: ignore[arg-type]  # a remote device stores too
        assert bytes(device.read(tensor.storage.buffer, share - 4, 4)) == bytes(4)
        del tensor


def test_programs_and_fences_that_nobody_holds_are_freed(device: RemoteDevice) -> None:
    for count in range(1, 200):
        x = np.ones(count, np.float32)
        device.run(umd.translate("Add", [x, x]), [x, x])
        device.fence()
        device.synchronize()
    gc.collect()
    assert device._session._others._count < 150  # ids; of programs the 128 used last are kept


def test_another_client_cannot_see_it(server: Any) -> None:
    first, second = RemoteDevice(server.address), RemoteDevice(server.address)
    secret = first.tensor(np.full(64, 7, np.uint8))
    mine = second.tensor(np.zeros(64, np.uint8))
    stolen = second.allocate(64)
    stolen.memory = secret.storage.buffer.memory
    if stolen.memory == mine.storage.buffer.memory:
        np.testing.assert_array_equal(second.read(stolen, 0, 64), np.zeros(64, np.uint8))
    else:
        with pytest.raises(StaleHandleError):
            second.read(stolen, 0, 64)
    np.testing.assert_array_equal(secret.numpy(), np.full(64, 7, np.uint8))
    first.close()
    second.close()


def test_more_than_may_be_under_way_at_once(device: RemoteDevice) -> None:
    """A hundred megabytes are written one after the other; client and server hold a few of them at a time."""
    buffer = device.allocate(1 << 20)
    for number in range(100):
        device.write(buffer, 0, np.full(1 << 20, number, np.uint8))
    assert bytes(device.read(buffer, 100, 3)) == b"\x63" * 3


def test_many_sessions_at_once(server: Any) -> None:
    results: list[float] = []

    def work(number: int) -> None:
        device = RemoteDevice(server.address)
        x = np.full(5, number, np.float32)
        for _ in range(5):
            (x_,) = device.run(umd.translate("Add", [x, x]), [x, x])
            results.append(float(x_.numpy()[0]) - 2 * number)
        device.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [0.0] * 120


def test_many_threads_share_a_device(device: RemoteDevice) -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                x = np.full((number + 1,), turn, np.float32)
                result = device.run(umd.translate("Add", [x, x]), [x, x])[0].numpy()
                if not np.array_equal(result, x + x):
                    wrong.append((number, turn))
        except UmdError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
