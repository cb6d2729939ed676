"""The event loop's side of a session: its call, its transfers, its end."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from umd_core.errors import CancelledError, UmdError
from umd_grpc.limits import Limits
from umd_grpc.server.host import DeviceHost
from umd_grpc.server.programs import Programs
from umd_grpc.server.report import Report
from umd_grpc.server.session import Outlet, Session
from umd_grpc.server.transfer import Transfer, Transfers

TOKEN_SIZE = 16


class SessionStream:
    """One Session call. Messages go to the device's thread, responses come back; neither piles up.

    Attributes:
        token: names the session in Write and Read.
        transfers: those that calls of Write and Read may take.
        error: why the session ended, None while it goes on or when its client ended it.
    """

    def __init__(self, number: int, host: DeviceHost, limits: Limits, known: Programs, report: Report) -> None:
        self.token = secrets.token_bytes(TOKEN_SIZE)
        self.host, self.transfers = host, Transfers()
        self.error: UmdError | None = None
        self._limits, self._report = limits, report
        self._loop = asyncio.get_running_loop()
        self._responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting = 0
        self._room = asyncio.Event()
        self._outlet = Outlet(
            send=self._from_any_thread(self._sent),
            reached=self._from_any_thread(self._reached),
            stop=self._from_any_thread(self.stop),
            wake=self._from_any_thread(self._wake),
        )
        self.session = Session(number, self.token, host, limits, known, report, self._outlet)
        self._timers: dict[int, asyncio.TimerHandle] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._waiting and self._responses.empty() and self.session.idle

    def _from_any_thread(self, function: Callable[..., None]) -> Callable[..., None]:
        """Returns a function that runs this one on the event loop."""
        return lambda *arguments: self._call(function, *arguments)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has ended, and nobody listens
            self._loop.call_soon_threadsafe(function, *arguments)

    async def serve(self, messages: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]) -> None:
        """Answers until the client, or something else, ends the session; then frees all that it made."""
        reader = asyncio.create_task(self._read(messages))
        try:
            while (response := await self._responses.get()) is not None:
                await write(response)
                self._report.bytes_out += len(response)
                full = self._outlet.emitted - self._outlet.taken > self._limits.unread
                self._outlet.taken += len(response)
                if full:
                    self.host.post(self.session.run)
        finally:
            reader.cancel()
            self.transfers.close()
            for timer in self._timers.values():
                timer.cancel()
            self.host.post(self.session.close)

    def stop(self, error: UmdError | None) -> None:
        """Ends the session once what it has to say is said."""
        self.error = self.error or error
        self._responses.put_nowait(None)

    async def _read(self, messages: AsyncIterator[bytes]) -> None:
        try:
            async for raw in messages:
                self._report.bytes_in += len(raw)
                await self._wait_for_room(len(raw))
                self._waiting += len(raw)
                self.host.post(functools.partial(self.session.feed, raw))
            await self._wait_for_room(self._limits.credit)
        finally:
            self.stop(None)

    async def _wait_for_room(self, size: int) -> None:
        """Returns when `size` more bytes may wait to be carried out; any size may when none do."""
        while self._waiting and self._waiting + size > self._limits.credit:
            self._room.clear()
            await self._room.wait()

    def _sent(self, response: bytes, consumed: int) -> None:
        self._waiting -= consumed
        if consumed:
            self._room.set()
        self._responses.put_nowait(response)

    def _wake(self, seconds: float) -> None:
        self._loop.call_later(seconds, self.host.post, self.session.run)

    # transfers

    def _reached(self, number: int, found: Transfer | UmdError) -> None:
        if isinstance(found, Transfer):
            self.expect(found)
        self.transfers.reached(number, found)

    def expect(self, transfer: Transfer) -> None:
        """Gives a transfer its time again: when it passes without another call, the transfer fails."""
        self.settle(transfer)
        seconds = self._limits.stall_seconds
        self._timers[transfer.id] = self._loop.call_later(seconds, self._stalled, transfer)

    def settle(self, transfer: Transfer) -> None:
        """Stops the time of a transfer that is over."""
        timer = self._timers.pop(transfer.id, None)
        if timer is not None:
            timer.cancel()

    def _stalled(self, transfer: Transfer) -> None:
        self.fail(transfer, CancelledError(f"transfer {transfer.id} stood still for {self._limits.stall_seconds:g} s"))

    def fail(self, transfer: Transfer, error: UmdError) -> None:
        """Ends a transfer whose bytes do not come, or are not taken."""
        self.settle(transfer)
        self.transfers.drop(transfer.id)
        self.host.post(functools.partial(self.session.fail_transfer, transfer, error))
