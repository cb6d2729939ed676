"""Shared memory: clients on the same host, of the same user, carry their transfers through it instead of a stream.

The memory only stages: bytes are copied out of it once, and what was copied is used. A client may write whatever it
likes into it, at any time, and harms its own data at most.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from umd_core.errors import UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.messages.region import HELLO, PACKET, WRITE, Move, encode_reply
from umd_grpc.server.batches import Batches
from umd_grpc.server.bulk import error_message, given
from umd_grpc.server.inflow import Inflow, Line, to_its_end
from umd_grpc.server.live import TOKEN_SIZE, LiveSession
from umd_grpc.server.region import Region, supported
from umd_grpc.server.report import Report
from umd_grpc.server.settings import SharedMemorySettings
from umd_grpc.server.staging import Batch
from umd_grpc.server.transfer import Carrier, Transfer

_CREDENTIALS = struct.Struct("iII")
_HELLO_SECONDS, _BACKLOG, _CONNECTIONS = 5.0, 64, 4096


class SharedMemory:
    """The socket that clients on the same host come to, and the regions that they were given.

    It is in Linux' abstract namespace, under a random name that `Describe` tells: it leaves nothing behind, however the
    server ends. Who connects is asked of the kernel: another user is refused.
    """

    def __init__(
        self,
        settings: SharedMemorySettings,
        limits: Limits,
        report: Report,
        find: Callable[[bytes], LiveSession | None],
    ) -> None:
        """`find` returns the session that has a token."""
        self._settings, self._limits, self._report, self._find = settings, limits, report, find
        self._socket: socket.socket | None = None
        self._name = f"umd-{secrets.token_hex(16)}".encode()
        self._tasks: dict[asyncio.Task[None], LiveSession | None] = {}
        self._used = 0

    def describe(self) -> pb.SharedMemory | None:
        """Returns what clients are told, None when there is no shared memory. From then on it is listened."""
        if not self._settings.size or not supported():
            return None
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.setblocking(False)
            self._socket.bind(b"\0" + self._name)
            self._socket.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(self._socket, self._accept, self._socket)
        return pb.SharedMemory(address=self._name, size=self._settings.size)

    def close(self) -> None:
        """Ends every connection; nothing is accepted any more."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for task in self._tasks:
            task.cancel()

    def end(self, session: LiveSession) -> None:
        """Takes the region of a session back: the session has ended."""
        for task, owner in self._tasks.items():
            if owner is session:
                task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):  # whoever came is gone again
            connection, _ = listening.accept()
            connection.setblocking(False)
            if len(self._tasks) >= _CONNECTIONS or not _same_user(connection):
                connection.close()
                return
            task = asyncio.ensure_future(self._serve(connection))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    def _begin(self, session: LiveSession) -> None:
        """Notes whose connection the current task serves. The task is no local of `_serve`: a cycle would keep it."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks[task] = session
        self._used += self._settings.size

    async def _serve(self, connection: socket.socket) -> None:
        """Gives one client its region, and moves bytes until it is gone."""
        size, loop = self._settings.size, asyncio.get_running_loop()
        with connection, suppress(OSError, TimeoutError):  # the client is gone, or never said who it is
            token = await asyncio.wait_for(loop.sock_recv(connection, PACKET), _HELLO_SECONDS)
            session = self._find(token) if len(token) == TOKEN_SIZE else None
            if session is None or session in self._tasks.values() or self._used + size > self._settings.total:
                return
            self._begin(session)
            try:
                region = Region(size)
                try:
                    socket.send_fds(connection, [HELLO], [region.descriptor])
                    region.close_descriptor()
                    await Mover(connection, session, region, self._limits, self._report).serve()
                finally:
                    region.close()
            finally:
                self._used -= size


class _Held(NamedTuple):
    transfer: Transfer
    carrier: Carrier
    inflow: Inflow
    reads: Line

    async def settle(self) -> None:
        with suppress(UmdError):  # the request that met it was told
            await self.inflow.settle()
        with suppress(UmdError):  # likewise
            await self.reads.settle()


class Mover:
    """Moves the bytes of one session's transfers between its region and its device.

    On a device of this process one job serves all requests that come fast enough (`_batch`). Where the device is in a
    worker, and where the bytes of a transfer are kept as weights, each request is a step of its own (`_begin`).
    """

    def __init__(
        self, connection: socket.socket, session: LiveSession, region: Region, limits: Limits, report: Report
    ) -> None:
        self._connection, self._session, self._region = connection, session, region
        self._limits, self._report = limits, report
        self._batches = session.port.batches()
        self._held: _Held | None = None

    async def serve(self) -> None:
        """Answers requests until the other side is gone.

        Raises:
            OSError: it is, or it takes no answers.
        """
        loop, packet = asyncio.get_running_loop(), b""
        try:
            while packet := packet or await loop.sock_recv(self._connection, PACKET):
                try:
                    packet = await self._serve(Move.decode(packet))
                except UmdError as error:
                    packet = b""
                    done = self._held.transfer.done if self._held else 0
                    await self._release()
                    self._connection.send(encode_reply(done, error_message(error)))
        finally:
            await self._release()

    async def _serve(self, move: Move) -> bytes:
        """Does what a request asks for; returns the next one, when it was read already and is another's to serve."""
        held = await self._take(move)
        if held.carrier.ended is not None:
            raise held.carrier.ended
        writes = move.kind == WRITE
        held.transfer.check_direction(writes=writes)
        move.check(self._region.size, held.inflow.expected if writes else move.offset, held.transfer.size)
        if self._batches is not None and move.transfer not in self._session.transfers.keepers:
            return await self._batch(move, held, self._batches)
        step = await (self._write if writes else self._read)(move, held)
        step.add_done_callback(functools.partial(self._ended, move, held))
        return b""

    async def _batch(self, move: Move, held: _Held, batches: Batches) -> bytes:
        session, transfer = self._session, held.transfer
        batch = Batch(self._connection, self._region, transfer, held.carrier)
        await session.room.enter_chunk(move.size)
        session.expect(transfer)
        step = asyncio.ensure_future(batches.run(functools.partial(batch.run, move)))
        try:
            await to_its_end(step, batch.stop)
        finally:
            session.room.leave_chunk(move.size)
            self._note(move, held, batch)
        if batch.error is not None:
            raise batch.error
        return batch.left

    def _note(self, move: Move, held: _Held, batch: Batch) -> None:
        """Notes what a batch has done."""
        session, transfer = self._session, held.transfer
        if move.kind == WRITE:
            self._report.bytes_in += batch.moved
            transfer.done = held.inflow.expected = max(transfer.done, batch.done)
        else:
            self._report.bytes_out += batch.moved
        if batch.failed is not None:
            session.fail(transfer, batch.failed)
        elif batch.done == transfer.size:
            if move.kind == WRITE:
                session.settle(transfer)
                session.transfers.end(transfer.id)
            else:
                given(session, transfer)
            self._held = None
            session.transfers.release(transfer.id, held.carrier)

    def _ended(self, move: Move, held: _Held, step: asyncio.Task[None]) -> None:
        """Answers a request."""
        error = None if step.cancelled() else step.exception()
        done = move.offset + move.size
        if done == held.transfer.size and self._held is held:
            self._held = None
            self._session.transfers.release(held.transfer.id, held.carrier)
        with suppress(OSError):  # it is gone, and `serve` will see it
            if isinstance(error, UmdError):
                self._connection.send(encode_reply(held.transfer.done, error_message(error)))
            elif error is None and not step.cancelled():
                self._connection.send(encode_reply(done))
            else:
                self._connection.shutdown(socket.SHUT_RDWR)

    async def _take(self, move: Move) -> _Held:
        if self._held is None or self._held.transfer.id != move.transfer:
            await self._release()
            transfers, stall = self._session.transfers, self._limits.stall_seconds
            transfer, carrier = await transfers.take(move.transfer, stall, writes=move.kind == WRITE)
            self._held = _Held(transfer, carrier, Inflow(self._session, transfer), Line())
        return self._held

    async def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            try:
                await held.settle()
            finally:
                self._session.transfers.release(held.transfer.id, held.carrier)

    async def _write(self, move: Move, held: _Held) -> asyncio.Task[None]:
        staged = self._region.data[move.place : move.place + move.size].data
        # What is hashed and what is written must be the same, so bytes that are kept are copied before.
        data = memoryview(bytes(staged)) if move.transfer in self._session.transfers.keepers else staged
        self._report.bytes_in += move.size
        return await held.inflow.put(data)

    async def _read(self, move: Move, held: _Held) -> asyncio.Task[None]:
        self._report.bytes_out += move.size
        return await held.reads.add(self._copy(move, held.transfer))

    async def _copy(self, move: Move, transfer: Transfer) -> None:
        target = self._region.data[move.place : move.place + move.size].data
        session = self._session
        session.expect(transfer)
        try:
            await session.port.copy_chunk(transfer.id, move.offset, target)
        except UmdError as error:
            session.fail(transfer, error)
            raise
        if move.offset + move.size == transfer.size:
            given(session, transfer)


def _same_user(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.getuid())
