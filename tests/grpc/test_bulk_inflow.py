"""Chunks of a write on their way to the device: what becomes of those that come while others are written."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest

from umd_core.errors import DecodeError, StaleHandleError
from umd_grpc.messages.chunks import Chunk, parse_write_request, write_request
from umd_grpc.server.identity import Account, Identity, Quota
from umd_grpc.server.incoming import Incoming
from umd_grpc.server.inflow import Inflow
from umd_grpc.server.live import LiveSession
from umd_grpc.server.rooms import Room
from umd_grpc.server.transfer import Transfer, Transfers

SIZE, COUNT = 1_000, 3
DATA = np.random.default_rng(2).integers(0, 256, SIZE * COUNT, np.uint8).tobytes()


def chunk(number: int, *, whole: bool = True) -> Chunk:
    """Returns a chunk of DATA, as it comes, or with a byte that has changed."""
    raw = bytearray(write_request(b"", 0, number * SIZE, memoryview(DATA)[number * SIZE :][:SIZE]))
    raw[-1] ^= not whole
    return parse_write_request(bytes(raw))[1]


class Device:
    """A session whose device is busy until the test says that it is not; a `LiveSession` as far as Inflow knows."""

    def __init__(self, in_flight: int | None) -> None:
        self.written, self.idle = bytearray(), asyncio.Event()
        self.fault: Exception | None = None
        self.room = Room(Account(Identity("anna", quota=Quota(in_flight=in_flight))))
        self.port = SimpleNamespace(batches=lambda: self)
        self.transfers = SimpleNamespace(keepers={}, end=lambda number: None)
        self.failed: list[Exception] = []

    async def run(self, job: Callable[[Any, Any], Any]) -> Any:
        """Runs a job when the device is idle."""
        await self.idle.wait()
        return job(self, lambda: False)

    def write(self, number: int, data: memoryview) -> int:
        """Writes bytes where the ones before end."""
        if self.fault is not None:
            raise self.fault
        self.written += data
        return len(self.written)

    def expect(self, transfer: Transfer) -> None:
        """Gives the transfer its time again."""

    def settle(self, transfer: Transfer) -> None:
        """Stops its time."""

    def fail(self, transfer: Transfer, error: Exception) -> None:
        """Notes that the transfer has failed."""
        self.failed.append(error)


def run(use: Callable[[Device, Inflow], Any], in_flight: int | None = None) -> tuple[Device, list[dict[str, Any]]]:
    """Returns the device after a use of it, and what the event loop has logged of it."""
    logged: list[dict[str, Any]] = []

    async def all_of_it() -> Device:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
        device = Device(in_flight)
        await use(device, Inflow(cast("LiveSession", device), Transfer(1, SIZE * COUNT, True, b"")))
        return device

    return asyncio.run(all_of_it()), logged


@pytest.mark.parametrize("in_flight", [None, SIZE], ids=["much-room", "room-for-one"])
def test_what_follows_a_damaged_chunk_is_not_written(in_flight: int | None) -> None:
    async def use(device: Device, inflow: Inflow) -> None:
        asyncio.get_running_loop().call_later(0.05, device.idle.set)
        with pytest.raises(DecodeError, match="damaged"):
            for number in range(COUNT):
                await inflow.gather(chunk(number, whole=number != 1))
            await inflow.settle()

    device, logged = run(use, in_flight)
    assert bytes(device.written) == DATA[:SIZE]
    assert device.failed == []
    assert device.room.account.has_room(SIZE)
    assert logged == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_that_ends_while_its_chunks_fail(count: int) -> None:
    """It is cancelled: whoever would hear of the failure is gone, and nobody misses it."""

    async def use(device: Device, inflow: Inflow) -> None:
        device.fault = StaleHandleError("transfer", 1, "has failed, or its session has ended")
        for number in range(count):
            await inflow.gather(chunk(number))
        call = asyncio.create_task(inflow.settle())
        await asyncio.sleep(0.01)
        call.cancel()
        asyncio.get_running_loop().call_later(0.05, device.idle.set)
        with pytest.raises(asyncio.CancelledError):
            await call

    device, logged = run(use)
    assert len(device.failed) == 1
    assert bytes(device.written) == b""
    assert device.room.account.has_room(SIZE)
    assert logged == []


# what comes in


def test_a_receive_goes_on_when_nobody_waits_for_it_any_more() -> None:
    """gRPC never frees a message that arrives for a receive that was cancelled."""
    taken: list[bytes] = []

    async def arriving(gate: asyncio.Event) -> AsyncIterator[bytes]:
        for raw in (b"first", b"second"):
            await gate.wait()
            taken.append(raw)
            yield raw

    async def use() -> None:
        gate = asyncio.Event()
        incoming = Incoming(arriving(gate))
        waiting = asyncio.create_task(incoming.next())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        await asyncio.sleep(0.01)
        assert taken == [b"first"]
        assert [await incoming.next() for _ in range(4)] == [b"first", b"second", None, None]

    asyncio.run(use())


def test_a_call_that_breaks_when_nobody_waits_for_it_any_more() -> None:
    logged: list[Any] = []

    async def breaking() -> AsyncIterator[bytes]:
        yield b"first"
        raise grpc.aio.InternalError

    async def use() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
        incoming = Incoming(breaking())
        assert await incoming.next() == b"first"
        await asyncio.sleep(0.01)

    asyncio.run(use())
    gc.collect()
    assert logged == []


def test_what_ended_a_carrier_keeps_no_bytes() -> None:
    """The error is kept with its carrier, and where it was raised, with the carrier and its bytes, is not."""
    transfers, error = Transfers(), StaleHandleError("transfer", 1, "belongs to a session that has ended")

    async def use() -> weakref.ref[Any]:
        transfers.reached(1, Transfer(1, SIZE, True, b""))
        _, carrier = await transfers.take(1, 1.0, writes=True)
        held = np.zeros(SIZE)

        async def endless(data: Any) -> None:
            await asyncio.sleep(20)

        call = asyncio.create_task(carrier.step(endless, held))
        await asyncio.sleep(0)
        transfers.end(1, error)
        with pytest.raises(StaleHandleError):
            await call
        transfers.release(1, carrier)
        return weakref.ref(held)

    gc.disable()
    try:
        assert asyncio.run(use())() is None
    finally:
        gc.enable()
