"""Write and Read: the bytes of transfers, chunk by chunk, each of them as often as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from umd_core.errors import CancelledError, DecodeError, LimitError, StaleHandleError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.messages.chunks import Chunk, WriteHead, parse_write_request
from umd_grpc.messages.convert import error_text, facts_text
from umd_grpc.server.incoming import Incoming
from umd_grpc.server.inflow import Inflow
from umd_grpc.server.live import LiveSession
from umd_grpc.server.outflow import Outflow
from umd_grpc.server.report import Report
from umd_grpc.server.transfer import Carrier, Transfer
from umd_grpc.server.weights import PIECE, Kept, Weights, in_thread

_CHUNK_MARGIN = 256


class Bulk:
    """Carries the transfers of a server's sessions.

    A call that breaks, or brings a damaged chunk, ends without harm: another one goes on where it has stopped. Only
    when none comes in time does the transfer fail.
    """

    def __init__(
        self, limits: Limits, report: Report, find: Callable[[bytes], LiveSession], weights: Weights | None = None
    ) -> None:
        """`find` returns the caller's session that has a token, or raises NotAuthorisedError."""
        self._limits, self._report, self._find, self._weights = limits, report, find, weights
        self._tasks: set[asyncio.Task[None]] = set()

    # to the device

    async def write(self, requests: AsyncIterator[bytes], context: Any) -> pb.WriteResponse:
        """Takes bytes of one transfer to the device; answers how far it is."""
        messages = Incoming(requests)
        try:
            first = await self._next(messages)
            if first is None:
                return pb.WriteResponse()
            head, chunk = first
            session = self._find(head.session)
            stall = self._limits.stall_seconds
            transfer, carrier = await session.transfers.take(head.transfer, stall, writes=True)
        except UmdError as error:
            return pb.WriteResponse(error=error_message(error))
        try:
            if head.abandon:
                session.fail(transfer, CancelledError(f"transfer {transfer.id} was given up by its client"))
            else:
                await self._fill(session, transfer, carrier, chunk, messages)
        except UmdError as error:
            return pb.WriteResponse(size=transfer.done, error=error_message(error))
        finally:
            session.transfers.release(transfer.id, carrier)
        return pb.WriteResponse(size=transfer.done)

    async def _next(self, messages: Incoming) -> tuple[WriteHead, Chunk] | None:
        raw = await messages.next()
        if raw is None:
            return None
        self._report.bytes_in += len(raw)
        if len(raw) > self._limits.chunk + _CHUNK_MARGIN:
            raise LimitError("bytes of a chunk", len(raw), self._limits.chunk)
        return parse_write_request(raw)

    async def _fill(
        self, session: LiveSession, transfer: Transfer, carrier: Carrier, chunk: Chunk, messages: Incoming
    ) -> None:
        """Takes one call's chunks. One without data only asks how far the transfer is."""
        inflow = Inflow(session, transfer)
        asks = not chunk.data
        try:
            while True:
                if chunk.data:
                    await inflow.gather(chunk)
                found = await carrier.step(self._next, messages)
                if found is None:
                    break
                chunk = found[1]
        finally:
            await inflow.settle()
        if transfer.done < transfer.size and not asks:
            raise CancelledError(f"the call ended after {transfer.done} of {transfer.size} bytes: go on from there")

    # from the device

    async def read(self, request: pb.ReadRequest, context: Any) -> None:
        """Gives bytes of one transfer from the device."""
        try:
            session = self._find(request.session)
            stall = self._limits.stall_seconds
            transfer, carrier = await session.transfers.take(request.transfer, stall, writes=False)
            try:
                await self._give(session, transfer, carrier, request, context)
            finally:
                session.transfers.release(transfer.id, carrier)
        except UmdError as error:
            await context.write(pb.ReadResponse(error=error_message(error)).SerializeToString())

    async def _give(
        self, session: LiveSession, transfer: Transfer, carrier: Carrier, request: pb.ReadRequest, context: Any
    ) -> None:
        offset, size = request.offset, transfer.size
        if offset > size:
            raise DecodeError("chunk-order", f"read from {offset} of {size} bytes", offset=offset, section="TRANSFER")
        if offset < size == transfer.done:
            raise StaleHandleError("transfer", transfer.id, "is over: its last chunk was sent")
        outflow = Outflow(session, transfer, self._limits.chunk)
        try:
            while offset < size:
                session.expect(transfer)
                message, offset = await outflow.message(offset)
                self._report.bytes_out += len(message)
                if offset == size and not request.hold:
                    given(session, transfer)
                outflow.prepare(offset)
                await carrier.step(context.write, message)
        finally:
            outflow.leave()
        if request.offset == size:
            given(session, transfer)

    # weights

    def offered(self, session: LiveSession, transfer: Transfer) -> None:
        """Supplies the bytes of a transfer whose hash is known, or lets the client send them."""
        carrier = session.transfers.hold(transfer.id)
        task = asyncio.ensure_future(self._supply(session, transfer, carrier))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supply(self, session: LiveSession, transfer: Transfer, carrier: Carrier) -> None:
        owner, weights = session.identity.name, self._weights
        kept: Kept | None = None
        try:
            if weights is not None:
                kept = await in_thread(weights.find, owner, transfer.sha256, transfer.size)
            session.port.answer_transfer(transfer.id, transfer.size if kept else 0)
            if kept is not None:
                await self._fill_from(kept, session, transfer, carrier)
            elif weights is not None and carrier.ended is None:
                keeper = weights.receive(owner, transfer.sha256, transfer.size)
                if keeper is not None:
                    session.transfers.keepers[transfer.id] = keeper
        except UmdError as error:
            session.fail(transfer, error)
        finally:
            session.transfers.release(transfer.id, carrier)
            if kept is not None:
                kept.close()

    async def _fill_from(self, kept: Kept, session: LiveSession, transfer: Transfer, carrier: Carrier) -> None:
        inflow = Inflow(session, transfer)
        try:
            for offset in range(0, transfer.size, PIECE):
                data = await in_thread(kept.read, offset, min(PIECE, transfer.size - offset))
                if carrier.ended is not None:
                    raise carrier.ended
                await inflow.put(memoryview(data))
        finally:
            await inflow.settle()


def given(session: LiveSession, transfer: Transfer) -> None:
    """Ends a transfer from the device: its client has all of it, or will not ask again."""
    transfer.done = transfer.size
    session.port.taken(transfer.id)
    session.settle(transfer)
    session.transfers.end(transfer.id)


def error_message(error: UmdError) -> pb.Error:
    """Returns an error as a message."""
    return pb.Error(status=int(error.status), message=error_text(error), facts=facts_text(error))
