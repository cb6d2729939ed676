"""Bytes of a transfer on their way from the device, as messages of a Read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from umd_core.errors import UmdError
from umd_grpc.messages.chunks import read_response
from umd_grpc.server.transfer import Transfer

if TYPE_CHECKING:
    from umd_grpc.server.live import LiveSession

WINDOW = 16 << 20
"""Bytes asked for at one time of a device whose memory this process sees: they are a view, and cost nothing."""


class Outflow:
    """The chunks that one call of Read gives. Each is made while the one before is sent."""

    def __init__(self, session: LiveSession, transfer: Transfer, chunk: int) -> None:
        self._session, self._transfer, self._chunk = session, transfer, chunk
        seen = session.port.batches() is not None and "map" in session.host.caps.flags
        self._window = max(WINDOW, chunk) if seen else chunk
        self._data, self._start = memoryview(b""), 0
        self._reading: asyncio.Task[None] | None = None
        self._made: tuple[int, bytes] | None = None

    def prepare(self, offset: int) -> None:
        """Begins with the message from `offset` on."""
        if self._holds(offset):
            asyncio.get_running_loop().call_soon(self._make, offset)
        elif offset < self._transfer.size:
            self._reading = asyncio.ensure_future(self._read(offset))

    async def message(self, offset: int) -> tuple[bytes, int]:
        """Returns the message with the chunk from `offset` on, and where the next one begins.

        Raises:
            UmdError: the transfer has failed.
        """
        reading, self._reading = self._reading, None
        if reading is not None:
            await reading
        elif not self._holds(offset):
            await self._read(offset)
        if self._made is None or self._made[0] != offset:
            self._make(offset)
        found, self._made = self._made, None
        return (found[1] if found else b""), min(offset + self._chunk, self._start + len(self._data))

    def leave(self) -> None:
        """Asks for nothing more."""
        if self._reading is not None:
            self._reading.cancel()

    def _holds(self, offset: int) -> bool:
        return self._start <= offset < self._start + len(self._data)

    def _make(self, offset: int) -> None:
        at = offset - self._start
        self._made = offset, read_response(offset, self._data[at : at + self._chunk])

    async def _read(self, offset: int) -> None:
        """Gets bytes from the device. What stops it ends the transfer."""
        session, transfer = self._session, self._transfer
        try:
            self._data = await session.port.read_chunk(transfer.id, offset, self._window)
        except UmdError as error:
            session.fail(transfer, error)
            raise
        self._start = offset
