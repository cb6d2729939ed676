"""The Runtime service: Describe, Session, Write and Read."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from umd_core.encoding import VERSION
from umd_core.errors import (
    CancelledError,
    DecodeError,
    DeviceLostError,
    LimitError,
    NotAuthorisedError,
    UmdError,
    UnsupportedError,
)
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.messages.chunks import parse_write_request, read_response
from umd_grpc.messages.convert import error_text, facts_text
from umd_grpc.messages.frames import cut_frames, read_frame
from umd_grpc.server.host import DeviceHost
from umd_grpc.server.programs import Programs
from umd_grpc.server.report import Report
from umd_grpc.server.session import write_limits
from umd_grpc.server.stream import SessionStream
from umd_grpc.server.transfer import Transfer

DRAINED = "the server is shutting down"
_CHUNK_MARGIN = 256


class RuntimeService:
    """Runs sessions on the server's devices."""

    def __init__(
        self, hosts: Mapping[str, DeviceHost], limits: Limits, known: Programs, report: Report, version: str
    ) -> None:
        """`hosts` are the devices by name, the first is the default."""
        self._hosts, self._limits, self._known, self._report = hosts, limits, known, report
        self._streams: dict[bytes, SessionStream] = {}
        self._count = 0
        self._draining = False
        self._described = _describe(hosts, limits, version)

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the service for a server to add; most messages pass as bytes."""
        methods = {
            "Describe": grpc.unary_unary_rpc_method_handler(self.describe),
            "Session": grpc.stream_stream_rpc_method_handler(self.session),
            "Write": grpc.stream_unary_rpc_method_handler(
                self.write, response_serializer=pb.WriteResponse.SerializeToString
            ),
            "Read": grpc.unary_stream_rpc_method_handler(self.read, pb.ReadRequest.FromString),
        }
        return grpc.method_handlers_generic_handler("umd.runtime.Runtime", methods)

    def drain(self) -> None:
        """Accepts no new session, and ends those that have nothing under way; call it again for the others."""
        self._draining = True
        for stream in self._streams.values():
            if stream.idle:
                stream.stop(DeviceLostError(stream.host.name, DRAINED))

    async def describe(self, raw: bytes, context: Any) -> bytes:
        """Says what the server and its devices can do."""
        return self._described

    async def session(self, messages: AsyncIterator[bytes], context: Any) -> None:
        """Serves one session."""
        if self._draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, DRAINED)
        try:
            first = await anext(messages, b"")
            host = self._host(first)
        except UmdError as error:
            await context.write(_refusal(error))
            return
        self._count += 1
        stream = SessionStream(self._count, host, self._limits, self._known, self._report)
        self._streams[stream.token] = stream
        self._report.sessions += 1
        try:
            await stream.serve(_chain(first, messages), context.write)
        finally:
            del self._streams[stream.token]
            self._report.sessions -= 1
        if stream.error is not None:
            await context.abort(grpc.StatusCode.ABORTED, str(stream.error))

    def _host(self, first: bytes) -> DeviceHost:
        """Returns the device that a session's first frame names."""
        frames = cut_frames(first, self._limits)
        frame = read_frame(frames[0], self._limits) if frames else pb.Frame()
        if frame.WhichOneof("command") != "open":
            raise DecodeError("frame-order", "a session begins with Open", section="SESSION")
        name = frame.open.device or next(iter(self._hosts))
        if name not in self._hosts:
            raise UnsupportedError(f"the server has no such device; it has {', '.join(self._hosts)}", device=name)
        return self._hosts[name]

    def _stream(self, token: bytes) -> SessionStream:
        if token not in self._streams:
            raise NotAuthorisedError("transfers of a session that is not there")
        return self._streams[token]

    # bulk

    async def write(self, messages: AsyncIterator[bytes], context: Any) -> pb.WriteResponse:
        """Takes the bytes of one transfer to the device."""
        stream: SessionStream | None = None
        transfer: Transfer | None = None
        try:
            async for raw in messages:
                self._report.bytes_in += len(raw)
                if len(raw) > self._limits.chunk + _CHUNK_MARGIN:
                    raise LimitError("bytes of a chunk", len(raw), self._limits.chunk)
                token, number, chunk = parse_write_request(raw)
                if stream is None or transfer is None:
                    stream = self._stream(token)
                    transfer = await stream.transfers.take(number, self._limits.stall_seconds)
                    transfer.check_direction(writes=True)
                stream.expect(transfer)
                chunk.check(transfer.done, transfer.size)
                await stream.host.call(stream.session.write_chunk, transfer, chunk.data)
            if transfer is not None and transfer.done < transfer.size:
                raise CancelledError(f"transfer {transfer.id} ended after {transfer.done} of {transfer.size} bytes")
        except UmdError as error:
            if stream is not None and transfer is not None:
                stream.fail(transfer, error)
            return pb.WriteResponse(size=transfer.done if transfer else 0, error=_error(error))
        except BaseException:
            if stream is not None and transfer is not None:
                stream.fail(transfer, CancelledError(f"transfer {transfer.id} was cancelled by its client"))
            raise
        if stream is not None and transfer is not None:
            stream.settle(transfer)
        return pb.WriteResponse(size=transfer.done if transfer else 0)

    async def read(self, request: pb.ReadRequest, context: Any) -> None:
        """Gives the bytes of one transfer from the device."""
        stream: SessionStream | None = None
        transfer: Transfer | None = None
        try:
            stream = self._stream(request.session)
            transfer = await stream.transfers.take(request.transfer, self._limits.stall_seconds)
            transfer.check_direction(writes=False)
            await self._give(stream, transfer, context)
        except UmdError as error:
            if stream is not None and transfer is not None:
                stream.fail(transfer, error)
            await context.write(pb.ReadResponse(error=_error(error)).SerializeToString())
        except BaseException:
            if stream is not None and transfer is not None:
                stream.fail(transfer, CancelledError(f"transfer {transfer.id} was cancelled by its client"))
            raise

    async def _give(self, stream: SessionStream, transfer: Transfer, context: Any) -> None:
        session = stream.session
        offset = 0
        while offset < transfer.size:
            stream.expect(transfer)
            data = await stream.host.call(session.read_chunk, transfer)
            message = read_response(offset, data)
            offset += len(data)
            stream.host.post(functools.partial(session.taken, transfer, len(data)))
            self._report.bytes_out += len(message)
            await context.write(message)
        stream.settle(transfer)


async def _chain(first: bytes, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for raw in messages:
        yield raw


def _error(error: UmdError) -> pb.Error:
    return pb.Error(status=int(error.status), message=error_text(error), facts=facts_text(error))


def _refusal(error: UmdError) -> bytes:
    """Returns the response of a session that was never opened."""
    return pb.SessionResponse(replies=[pb.Reply(seq=0, error=_error(error))]).SerializeToString()


def _describe(hosts: Mapping[str, DeviceHost], limits: Limits, version: str) -> bytes:
    number = VERSION[0] << 8 | VERSION[1]
    message = pb.DescribeResponse(version=version, format_oldest=0x0100, format_newest=number)
    write_limits(limits, message.limits)
    for name, host in hosts.items():
        caps = host.caps
        device = message.devices.add(
            name=name, memory=caps.memory, max_work=caps.max_work, max_program_size=caps.max_buffer_bytes,
            flags=sorted(caps.flags), epoch=host.epoch,
        )  # fmt: skip
        for kernel, types in caps.kernels.items():
            combinations = () if types is None else sorted(bytes(t.code for t in types_) for types_ in types)
            device.kernels.add(name=kernel, every=types is None, types=combinations)
    return message.SerializeToString()
