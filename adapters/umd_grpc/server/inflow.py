"""Bytes of a transfer on their way: some are written, or read, while the next ones arrive, or are given."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from umd_core.errors import UmdError
from umd_grpc.server.transfer import Transfer

if TYPE_CHECKING:
    from umd_grpc.server.live import LiveSession

DEPTH = 2
"""Steps of one transfer that wait at one time: the device need not wait for the event loop between them."""


class Line:
    """Steps that are under way, in order."""

    def __init__(self) -> None:
        self._steps: deque[asyncio.Task[None]] = deque()

    async def add(self, step: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins a step, once there are few enough before it."""
        try:
            while len(self._steps) >= DEPTH:
                await self._oldest()
        except BaseException:
            step.close()
            raise
        self._steps.append(asyncio.ensure_future(step))
        return self._steps[-1]

    async def _oldest(self) -> None:
        """Returns when the oldest step has ended; a step is never given up halfway."""
        try:
            await asyncio.shield(self._steps[0])
        finally:
            if self._steps[0].done():
                self._steps.popleft()

    async def settle(self) -> None:
        """Returns when every step has ended: also when its call is cancelled, for the device has begun it then.

        Raises:
            UmdError: what went wrong in one.
        """
        try:
            while self._steps:
                await self._oldest()
        except BaseException:
            await asyncio.gather(*self._steps, return_exceptions=True)
            self._steps.clear()
            raise


class Inflow:
    """The chunks that one carrier brings. Whatever ends it, `settle` says how far the transfer is.

    Attributes:
        expected: where the next chunk begins.
    """

    def __init__(self, session: LiveSession, transfer: Transfer) -> None:
        self._session, self._transfer = session, transfer
        self._line = Line()
        self.expected = transfer.done

    async def put(self, data: memoryview) -> asyncio.Task[None]:
        """Begins to write the next bytes, which must not change; returns the task that does it.

        Raises:
            UmdError: the transfer has failed.
        """
        if self._transfer.id in self._session.transfers.keepers:
            await self.settle()  # the disk's threads would not keep the order
        await self._session.room.enter_chunk(len(data))
        try:
            step = await self._line.add(self._write(data))
        except BaseException:
            self._session.room.leave_chunk(len(data))
            raise
        self._session.expect(self._transfer)
        self.expected += len(data)
        return step

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
                session.transfers.keepers.pop(transfer.id, None)
                await keeper.keep()

    async def settle(self) -> None:
        """Returns when everything is written; see `Line.settle`."""
        await self._line.settle()
