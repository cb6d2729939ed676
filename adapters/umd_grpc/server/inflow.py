"""Bytes of a transfer on their way: some are written, or read, while the next ones arrive, or are given."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from umd_core.errors import DecodeError, UmdError
from umd_grpc.messages.chunks import Chunk
from umd_grpc.server.moves import Moves
from umd_grpc.server.transfer import Transfer

if TYPE_CHECKING:
    from umd_grpc.server.live import LiveSession

Result = TypeVar("Result")
GATHERED = 4
"""Chunks of a stream that wait at most while others are written."""
DEPTH = 2
"""Steps of one transfer that wait at one time: the device need not wait for the event loop between them."""


async def to_its_end(step: asyncio.Task[Result], cancelled: Callable[[], None] | None = None) -> Result:
    """Returns what a step returns. The caller may be cancelled meanwhile: it is so when the step has ended.

    Then `cancelled` is called at once.
    """
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        if cancelled is not None:
            cancelled()
        await asyncio.wait([step])
        if not step.cancelled():
            step.exception()  # nobody else asks for it, and it would be logged as one that was missed
        raise


class Line:
    """Steps that are under way, in order."""

    def __init__(self) -> None:
        self._steps: deque[asyncio.Task[None]] = deque()

    async def add(self, step: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins a step, once there are few enough before it."""
        try:
            while len(self._steps) >= DEPTH:
                await self._oldest()
        except BaseException:  # also where it is cancelled: nobody will begin the step
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
        except BaseException:  # also where it is cancelled: what has begun uses the memory until it has ended
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
        self._batches = session.port.batches()
        self._gathered: list[Chunk] = []
        self._writer: asyncio.Task[None] | None = None
        self.expected = transfer.done

    async def gather(self, chunk: Chunk) -> None:
        """Takes the next chunk. What comes while others are written is written in one go.

        Raises:
            DecodeError: the chunk, or one before it, is damaged or not the next one; the transfer may go on.
            UmdError: the transfer has failed.
        """
        if self._batches is None:
            chunk.check(self.expected, self._transfer.size)
            await self.put(chunk.data)
            return
        if self._writer is not None and (self._writer.done() or len(self._gathered) >= GATHERED):
            await self._written()
        chunk.check_order(self.expected, self._transfer.size)
        await self._session.room.enter_chunk(len(chunk.data))
        try:
            if self._writer is not None and self._writer.done():  # while there was no room: it may have failed
                await self._written()
        except BaseException:  # also where it is cancelled: the room that was entered is left
            self._leave([chunk.data])
            raise
        self._session.expect(self._transfer)
        self._gathered.append(chunk)
        self.expected += len(chunk.data)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write_gathered())

    async def _write_gathered(self) -> None:
        try:
            while self._gathered:
                gathered, self._gathered = self._gathered, []
                await self._write([chunk.data for chunk in gathered], gathered)
        finally:  # what follows a failure is not written
            self._leave([chunk.data for chunk in self._gathered])
            self._gathered = []

    async def _written(self) -> None:
        """Returns when what was gathered is written, also when its call is cancelled: the device has begun it then."""
        writer = self._writer
        if writer is None:
            return
        try:
            await to_its_end(writer)
        finally:
            self._writer = None

    async def put(self, data: memoryview) -> asyncio.Task[None]:
        """Begins to write the next bytes, which must not change; returns the task that does it.

        Raises:
            UmdError: the transfer has failed.
        """
        if self._transfer.id in self._session.transfers.keepers:
            await self.settle()  # the disk's threads would not keep the order
        await self._session.room.enter_chunk(len(data))
        try:
            step = await self._line.add(self._write([data]))
        except BaseException:
            self._leave([data])
            raise
        self._session.expect(self._transfer)
        self.expected += len(data)
        return step

    def _leave(self, pieces: Sequence[memoryview]) -> None:
        for data in pieces:
            self._session.room.leave_chunk(len(data))

    async def _write(self, pieces: Sequence[memoryview], chunks: Sequence[Chunk] = ()) -> None:
        """Has the device write the next bytes; those of chunks are looked at before."""
        session, transfer, damage = self._session, self._transfer, None
        keeper = session.transfers.keepers.get(transfer.id)
        before = transfer.done
        try:
            transfer.done, damage = await self._move(pieces, chunks)
            if keeper is not None:
                for data in _first(pieces, transfer.done - before):
                    await keeper.add(data)
        except UmdError as error:
            session.fail(transfer, error)
            raise
        finally:
            self._leave(pieces)
        if transfer.done == transfer.size:
            session.settle(transfer)
            session.transfers.end(transfer.id)
            if keeper is not None:
                session.transfers.keepers.pop(transfer.id, None)
                await keeper.keep()
        if damage is not None:
            raise damage

    async def _move(self, pieces: Sequence[memoryview], chunks: Sequence[Chunk]) -> tuple[int, DecodeError | None]:
        """Returns how many bytes the transfer has when these are written, and what was found damaged and was not."""
        number, port, done = self._transfer.id, self._session.port, self._transfer.done
        if self._batches is not None:
            return await self._batches.run(lambda moves, _: _write_all(moves, number, pieces, chunks, done))
        for data in pieces:
            done = await port.write_chunk(number, data)
        return done, None

    async def settle(self) -> None:
        """Returns when everything is written; see `Line.settle`."""
        try:
            await self._written()
        finally:
            await self._line.settle()


def _write_all(
    moves: Moves, number: int, pieces: Sequence[memoryview], chunks: Sequence[Chunk], done: int
) -> tuple[int, DecodeError | None]:
    """Writes the next bytes of a transfer on the device's thread, up to a damaged chunk; see `Inflow._move`."""
    for index, data in enumerate(pieces):
        if chunks:
            try:
                chunks[index].check_whole()
            except DecodeError as error:
                return done, error
        done = moves.write(number, data)
    return done, None


def _first(pieces: Sequence[memoryview], size: int) -> list[memoryview]:
    """Returns those of the pieces that lie in the first `size` bytes."""
    ends = itertools.accumulate(map(len, pieces))
    return [data for data, end in zip(pieces, ends, strict=True) if end <= size]
