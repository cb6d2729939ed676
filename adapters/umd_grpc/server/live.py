"""A session on the event loop: the calls that carry it, its transfers, its lease, its end."""

from __future__ import annotations

import asyncio
import functools
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from umd_core.errors import CancelledError, DeviceLostError, NotAuthorisedError, UmdError
from umd_grpc.server.identity import Identity
from umd_grpc.server.port import DevicePort, Outlet, Setup
from umd_grpc.server.report import Report
from umd_grpc.server.rooms import Room
from umd_grpc.server.stream import Stream
from umd_grpc.server.tally import Tally
from umd_grpc.server.transfer import Transfer, Transfers

TOKEN_SIZE = 16
NUMBER_SIZE, SECRET_SIZE = 8, 32
REPLACED = "its client has attached again, over another stream"


class LiveSession:
    """A session, from Open to its end. One call carries it at a time; with a lease it outlives a call that breaks.

    Everything that it holds of the server is given back in `end`, once.

    Attributes:
        token: names the session in Write and Read.
        identity: whose it is.
        host: its device.
        port: its other side, at the device.
        room: where its bytes under way count.
        tally: what it uses of the device.
        client: what its client calls itself.
        opened: when it was opened, of `time.monotonic`.
        transfers: those that calls of Write and Read may take.
        offered: told about a transfer whose bytes the server may have already.
    """

    def __init__(
        self,
        setup: Setup,
        identity: Identity,
        host: DevicePort,
        room: Room,
        report: Report,
        ended: Callable[[LiveSession], None],
    ) -> None:
        """`ended` is told when it has ended. The account has counted the session.

        Raises:
            DeviceLostError: the device is not there, for now.
        """
        self.number, self.token, self.identity, self.host, self.room = setup.number, setup.token, identity, host, room
        self.transfers = Transfers()
        self.offered: Callable[[LiveSession, Transfer], None] = _nothing
        self._limits, self._report, self._ended = setup.limits, report, ended
        self._lease, self._resume, self._previous = setup.lease_seconds, setup.resume, b""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._stream: Stream | None = None
        self.tally, self.client, self.opened = Tally(room.account), "", time.monotonic()
        self._waiting = 0
        self._free = asyncio.Event()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._wakes: asyncio.TimerHandle | None = None
        self._no_more = self._over = False
        self._outlet = Outlet(
            send=self._from_any_thread(self._sent),
            reached=self._from_any_thread(self._reached),
            stop=self._from_any_thread(self.stop),
            wake=self._from_any_thread(self._wake),
        )
        self.port = host.open_session(setup, self._outlet, self.tally)

    @property
    def waiting(self) -> int:
        """Bytes of messages that are not carried out yet."""
        return self._waiting

    @property
    def detached(self) -> bool:
        """Whether its client is gone, and its lease runs."""
        return self._stream is None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, or nobody is there who waits for it."""
        quiet = not (self._waiting or self._timers)  # a timer runs for each transfer that has not ended
        return self._stream is None or (quiet and self._stream.empty and self.port.idle)

    def _from_any_thread(self, function: Callable[..., None]) -> Callable[..., None]:
        """Returns a function that runs this one on the event loop: at once when called there, and always in order."""

        def call(*arguments: Any) -> None:
            self._calls.append((function, arguments))
            if threading.get_ident() == self._thread:
                self._run_calls()
                return
            with suppress(RuntimeError):  # the loop is closed: the server has ended, and nobody listens
                self._loop.call_soon_threadsafe(self._run_calls)

        return call

    def _run_calls(self) -> None:
        while self._calls:
            function, arguments = self._calls.popleft()
            function(*arguments)

    # streams

    def attach(self, resume: bytes, identity: Identity) -> None:
        """Lets another call take over; the older one, if it is still there, ends.

        Raises:
            NotAuthorisedError: the token is not this session's, or not shown by its owner.
        """
        known = [hmac.compare_digest(resume, token) for token in (self._resume, self._previous)]
        if identity.name != self.identity.name or not any(known):
            raise refused()
        identity.check_device(self.host.name)
        older = self._stream
        if older is not None:
            self._detach(older)
            older.end(DeviceLostError(self.host.name, REPLACED))
        # The token that was used stays good until the client shows that it has the next one.
        self._previous, self._resume = resume, resume_token(self.number)
        self.port.attach(self._resume)

    async def serve(
        self, first: bytes, messages: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]
    ) -> UmdError | None:
        """Answers until the session, or the call, ends; returns why the call has to be aborted.

        `first` is the first message of the call, which opens the session or attaches to it.
        """
        stream = self._stream = Stream()
        if self._expiry is not None:
            self._expiry.cancel()
        reader = asyncio.create_task(self._read(stream, first, messages))
        try:
            while (response := await stream.get()) is not None:
                await write(response)
                self._report.bytes_out += len(response)
                self._take(len(response))
        finally:
            stream.leave(reader)
            if stream is self._stream:
                self._leave(stream)
        return stream.error

    def _take(self, size: int) -> None:
        full = self._outlet.emitted - self._outlet.taken > self._limits.unread
        self._outlet.taken += size
        if full:
            self.port.run()

    async def _read(self, stream: Stream, first: bytes, messages: AsyncIterator[bytes]) -> None:
        try:
            if not await self._accept(stream, first):
                return
            while (raw := await stream.receive(messages)) is not None:
                if not await self._accept(stream, raw):
                    return
                self._previous = b""
            if not (self._lease or stream.left):
                self._no_more = True
                self._end_untaken()
                await self._wait_for_room(self._limits.credit)
        finally:
            stream.end()

    async def _accept(self, stream: Stream, raw: bytes) -> bool:
        """Hands a message on, when there is room for it; returns whether the stream is still the session's."""
        size = len(raw)
        self._report.bytes_in += size
        if self._waiting:
            await self._wait_for_room(size)
        for _ in self.port.look_ahead(raw):
            await asyncio.sleep(0)
        await self.room.enter(size)  # from here on its bytes count: nothing may be waited for until it is fed
        if stream is not self._stream:
            self.room.leave(size)
            return False
        self._waiting += size
        self.port.feed(raw)
        return True

    async def _wait_for_room(self, size: int) -> None:
        """Returns when `size` more bytes may wait to be carried out; any size may when none do."""
        while self._waiting and self._waiting + size > self._limits.credit:
            self._free.clear()
            await self._free.wait()

    def _leave(self, stream: Stream) -> None:
        """Ends the session with its call, or keeps it for its client to come back."""
        if not self._lease:
            self.end()
            return
        self._detach(stream)
        self._end_untaken()
        self._expiry = self._loop.call_later(self._lease, self.end)

    def _detach(self, stream: Stream) -> None:
        self._stream = None
        self._take(stream.drop())

    def _sent(self, response: bytes, consumed: int) -> None:
        if self._over:
            return
        if consumed:
            self._waiting -= consumed
            self.room.leave(consumed)
            self._free.set()
        if self._stream is not None:
            self._stream.put(response)
        else:
            self._take(len(response))

    def _wake(self, seconds: float) -> None:
        """Has the session look at what is due; it says when anew each time."""
        if self._wakes is not None:
            self._wakes.cancel()
        self._wakes = None if self._over else self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        if not self._over:
            self.port.run()

    # the end

    def stop(self, error: UmdError | None) -> None:
        """Ends the session once what it has to say is said."""
        self._lease = 0
        if self._stream is None:
            self.end()
        else:
            self._stream.end(error)

    def drop_lease(self) -> None:
        """Lets the session end with its call, or at once when there is none."""
        self._lease = 0
        if self._stream is None:
            self.end()

    def end(self) -> None:
        """Gives back everything that the session holds."""
        if self._over:
            return
        self._over = True
        self.transfers.close()
        for timer in (*self._timers.values(), self._expiry, self._wakes):
            if timer is not None:
                timer.cancel()
        self.room.leave(self._waiting)
        self._waiting = 0
        self.port.close()
        self.room.account.close_session()
        self._ended(self)

    # transfers

    def _reached(self, number: int, found: Transfer | UmdError) -> None:
        if isinstance(found, Transfer):
            self.expect(found, self._limits.half_closed_seconds if self._no_more else None)
        self.transfers.reached(number, found)
        if isinstance(found, Transfer) and found.sha256:
            self.offered(self, found)

    def expect(self, transfer: Transfer, seconds: float | None = None) -> None:
        """Gives a transfer its time again: when it passes without another call, the transfer fails."""
        self.settle(transfer)
        seconds = self._limits.stall_seconds if seconds is None else seconds
        stalled = functools.partial(self._stalled, transfer, seconds)
        self._timers[transfer.id] = self._loop.call_later(seconds, stalled)

    def _end_untaken(self) -> None:
        """Gives transfers little time when their client has sent its last message."""
        for transfer in self.transfers.untaken():
            self.expect(transfer, self._limits.half_closed_seconds)

    def settle(self, transfer: Transfer) -> None:
        """Stops the time of a transfer that is over."""
        timer = self._timers.pop(transfer.id, None)
        if timer is not None:
            timer.cancel()

    def _stalled(self, transfer: Transfer, seconds: float) -> None:
        self.fail(transfer, CancelledError(f"transfer {transfer.id} stood still for {seconds:g} s"))

    def fail(self, transfer: Transfer, error: UmdError) -> None:
        """Ends a transfer whose bytes do not come, or are not taken."""
        self.settle(transfer)
        self.transfers.end(transfer.id, error)
        self.port.fail_transfer(transfer.id, error)


def _nothing(session: LiveSession, transfer: Transfer) -> None:
    """What listens to offers when nobody does."""


def resume_token(number: int) -> bytes:
    """Returns a new token that attaches to session `number`."""
    return number.to_bytes(NUMBER_SIZE, "big") + secrets.token_bytes(SECRET_SIZE)


def session_number(token: bytes) -> int:
    """Returns the number of the session that a token claims to belong to."""
    return int.from_bytes(token[:NUMBER_SIZE], "big")


def refused() -> NotAuthorisedError:
    """Returns the one answer to every resume token that is no good: it tells nothing about other sessions."""
    return NotAuthorisedError("there is no session to attach to: its lease has ended, or the token is another's")


def with_lease(setup: Setup, seconds: int) -> Setup:
    """Returns a setup with the lease that was asked for, as far as the server grants it."""
    granted = min(seconds, setup.limits.lease_seconds)
    return replace(setup, lease_seconds=granted, resume=resume_token(setup.number)) if granted else setup
