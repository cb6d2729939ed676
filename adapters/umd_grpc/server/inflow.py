"""Bytes of a transfer on their way to the device: one chunk is written while the next one arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from umd_core.errors import UmdError
from umd_grpc.server.transfer import Transfer

if TYPE_CHECKING:
    from umd_grpc.server.live import LiveSession


class Inflow:
    """The chunks that one carrier brings. Whatever ends it, `settle` says how far the transfer is.

    Attributes:
        expected: where the next chunk begins.
    """

    def __init__(self, session: LiveSession, transfer: Transfer) -> None:
        self._session, self._transfer = session, transfer
        self._pending: asyncio.Task[None] | None = None
        self.expected = transfer.done

    async def put(self, data: memoryview) -> None:
        """Writes the next bytes, which must not change; returns when those before them are written.

        Raises:
            UmdError: the transfer has failed.
        """
        room = self._session.room
        await self.settle()
        await room.enter_chunk(len(data))
        self._session.expect(self._transfer)
        self.expected += len(data)
        self._pending = asyncio.ensure_future(self._write(data))

    async def _write(self, data: memoryview) -> None:
        session, transfer = self._session, self._transfer
        keeper = session.transfers.keepers.get(transfer.id)
        try:
            transfer.done = await session.port.write_chunk(transfer.id, data)
            if keeper is not None:
                await keeper.add(data)
        except UmdError as error:
            session.fail(transfer, error)
            raise
        finally:
            session.room.leave_chunk(len(data))
        if transfer.done == transfer.size:
            session.settle(transfer)
            session.transfers.end(transfer.id)
            if keeper is not None:
                del session.transfers.keepers[transfer.id]
                await keeper.keep()

    async def settle(self) -> None:
        """Returns when everything is written: also when its call is cancelled, for the device has the bytes then.

        Raises:
            UmdError: the transfer has failed.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            await asyncio.shield(pending)
        except asyncio.CancelledError:
            await asyncio.gather(pending, return_exceptions=True)
            raise
