"""A remote device for asyncio: many coroutines over one session, and what becomes of those that are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from umd_core.commands import CommandBuffer
from umd_core.errors import DeviceLostError, DTypeError, OutOfMemoryError, PoisonedError, ShapeError, UnsupportedError
from umd_grpc.client.aio import AsyncDevice, connect
from umd_grpc.client.remote import RemoteDevice

X = np.arange(6, dtype=np.float32)
ADD = umd.translate("Add", [X, X])
LARGE = np.random.default_rng(0).random(1 << 20, np.float32)

pytestmark = pytest.mark.asyncio


def doubled(array: Any) -> CommandBuffer:
    return umd.translate("Add", [array, array])


async def check(device: AsyncDevice, x: Any = X, program: CommandBuffer = ADD) -> None:
    (y,) = await device.run(program, [x, x])
    np.testing.assert_array_equal(await y.numpy(), x + x)


async def test_a_device_by_its_name(server: Any) -> None:
    async with await connect(f"grpc://{server.address}/sim:0") as device:
        assert device.name == f"grpc://{server.address}/sim:0"
        assert "elementwise_add_kernel" in device.caps().kernels
        (y,) = await device.run(ADD, [X, X])
        assert (y.shape, y.dtype.name) == ((6,), "float32")
        np.testing.assert_array_equal(await y.numpy(), X + X)
        tensor = await device.tensor(X)
        (z,) = await device.run(await device.load(ADD), [tensor, y])
        assert (await z.numpy()).tolist() == (X * 3).tolist()
        await device.synchronize()
    with pytest.raises(DeviceLostError):
        await device.run(ADD, [X, X])


async def test_the_same_numbers_as_the_client_for_threads(server: Any) -> None:
    """Empty, small and large arrays, a layout with gaps, and a tensor that has to be read before it fits."""
    sync = RemoteDevice(server.address)
    async with await connect(server.address, "sim:0") as device:
        for array in (np.empty((0, 3), np.float32), X.reshape(2, 3), LARGE, np.float32(3), X[::2]):
            program = doubled(array)
            (wanted,) = sync.run(program, [array, array])
            (found,) = await device.run(program, [array, array])
            np.testing.assert_array_equal(await found.numpy(), wanted.numpy())
            held = await device.tensor(array)
            (found,) = await device.run(program, [held, held])
            np.testing.assert_array_equal(await found.numpy(), wanted.numpy())
    sync.close()


async def test_many_coroutines_share_messages(server: Any) -> None:
    """What is asked for at one time is one message: 200 coroutines take a few round trips, not 200."""
    async with await connect(server.address) as device:
        await device.load(ADD)
        tensors = [await device.tensor(np.full(6, number, np.float32)) for number in range(200)]
        await device.synchronize()
        before = device.round_trips
        found = await asyncio.gather(*(tensor.numpy() for tensor in tensors))
        assert [float(array[0]) for array in found] == list(range(200))
        assert device.round_trips - before <= 3
        await asyncio.gather(*(check(device, np.full(6, number, np.float32)) for number in range(200)))
        await asyncio.gather(*(check(device, LARGE, doubled(LARGE)) for _ in range(6)), *(check(device) for _ in "abc"))


async def test_cancelled_coroutines_leave_the_session_as_it_is(server: Any) -> None:
    async with await connect(server.address) as device:
        small, large = await device.tensor(X), await device.tensor(LARGE)
        for turns in range(4):
            tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(tensor.numpy()) for tensor in (small, large) * 10]
            tasks += [asyncio.ensure_future(check(device)) for _ in range(10)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(result is None or isinstance(result, np.ndarray) for result in results[1::2])
            assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
            await check(device)


async def test_what_went_wrong_shows_where_it_matters(server: Any) -> None:
    async with await connect(server.address) as device:
        with pytest.raises(ShapeError):
            await device.run(ADD, [X[:3], X])
        with pytest.raises(DTypeError):
            await device.run(ADD, [X.astype(np.float64), X])
        with pytest.raises(OutOfMemoryError):
            await asyncio.to_thread(device._device.allocate, device.caps().memory + 1)
        held = [device._device.allocate(device.caps().memory // 2) for _ in range(3)]
        (y,) = await device.run(ADD, [X, X])
        with pytest.raises(PoisonedError):
            await y.numpy()
        device._device.drop(*held)
        await device.synchronize()
        await check(device)
    with pytest.raises(UnsupportedError, match="sim:0"):
        await connect(server.address, "nothing:0")


async def test_the_loop_goes_on_while_something_waits(server: Any) -> None:
    """Whatever keeps the session's lock, or takes long, keeps one coroutine and not the loop."""
    async with await connect(server.address) as device:
        held, free = threading.Event(), threading.Event()

        def hold() -> None:
            with device._device._session.lock:
                held.set()
                free.wait(20)

        thread = threading.Thread(target=hold)
        thread.start()
        await asyncio.to_thread(held.wait, 20)
        tasks = [asyncio.ensure_future(check(device)) for _ in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)  # the loop has its turns
        assert not any(task.done() for task in tasks)
        free.set()
        await asyncio.gather(*tasks)
        thread.join(20)


async def test_a_server_that_ends_is_told_to_all_who_wait(start_server: Callable[..., Any]) -> None:
    server = start_server()
    device = await connect(server.address)
    large = await device.tensor(np.eye(1500, dtype=np.float32))
    program = umd.translate("MatMul", [large.desc, large.desc])
    (value,) = await device.run(program, [large, large])
    for _ in range(30):
        (value,) = await device.run(program, [value, large])
    small = await device.tensor(X)
    waiting = [asyncio.ensure_future(tensor.numpy()) for tensor in (value, small, small)]
    await asyncio.sleep(0.05)  # so that some of them are on their way
    server.process.kill()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, DeviceLostError), result
    with pytest.raises(DeviceLostError):
        await check(device)
    await device.close()


async def test_a_session_with_a_lease_goes_on_over_another_connection(server: Any) -> None:
    async with await connect(server.address, lease_seconds=60) as device:
        tensor = await device.tensor(X)
        await device.synchronize()
        device._device._session.link._call.cancel()
        while device._device._session.link.lost is None:
            await asyncio.sleep(0.01)
        np.testing.assert_array_equal(await tensor.numpy(), X)
        await check(device)
