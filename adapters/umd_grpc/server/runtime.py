"""The Runtime service: Describe, Session, Write and Read."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from umd_core.encoding import VERSION
from umd_core.errors import (
    DecodeError,
    DeviceLostError,
    LimitError,
    NotAuthorisedError,
    UmdError,
    UnsupportedError,
)
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.messages.frames import cut_frames, read_frame
from umd_grpc.server.bulk import Bulk, error_message
from umd_grpc.server.identity import CALLER, Accounts, Identity
from umd_grpc.server.live import TOKEN_SIZE, LiveSession, refused, session_number, with_lease
from umd_grpc.server.port import DevicePort, Setup
from umd_grpc.server.report import Report
from umd_grpc.server.rooms import Rooms
from umd_grpc.server.session import write_limits
from umd_grpc.server.settings import SharedMemorySettings
from umd_grpc.server.shared_memory import SharedMemory
from umd_grpc.server.weights import Weights

DRAINED = "the server is shutting down"
PRIORITY_LIMIT = 2
CLIENT_NAME = 100


class RuntimeService:
    """Runs sessions on the server's devices."""

    def __init__(
        self,
        hosts: Mapping[str, DevicePort],
        limits: Limits,
        report: Report,
        version: str,
        accounts: Accounts | None = None,
        shared: SharedMemorySettings | None = None,
        weights: Weights | None = None,
    ) -> None:
        """`hosts` are the devices by name, the first is the default.

        `accounts` count what each identity uses, `shared` is the memory that clients on this host may share, `weights`
        keeps what they send.
        """
        self._hosts, self._limits, self._report, self._version = hosts, limits, report, version
        self._accounts, self._rooms = accounts or Accounts(), Rooms()
        self._sessions: dict[int, LiveSession] = {}
        self._by_token: dict[bytes, LiveSession] = {}
        self._count = 0
        self._draining = False
        self._described: dict[frozenset[str] | None, bytes] = {}
        self._epochs: list[int] = []
        self._flags = frozenset(("weights",)) if weights is not None else frozenset[str]()
        self._bulk = Bulk(limits, report, self._by_bulk_token, weights)
        self._shared = SharedMemory(shared or SharedMemorySettings(), limits, report, self._by_token.get)

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the service for a server to add; most messages pass as bytes."""
        methods = {
            "Describe": grpc.unary_unary_rpc_method_handler(self.describe),
            "Session": grpc.stream_stream_rpc_method_handler(self.session),
            "Write": grpc.stream_unary_rpc_method_handler(
                self._bulk.write, response_serializer=pb.WriteResponse.SerializeToString
            ),
            "Read": grpc.unary_stream_rpc_method_handler(self._bulk.read, pb.ReadRequest.FromString),
        }
        return grpc.method_handlers_generic_handler("umd.runtime.Runtime", methods)

    def drain(self) -> None:
        """Accepts no new session, ends leases and those that have nothing under way; call it again for the others."""
        self._draining = True
        for session in list(self._sessions.values()):
            if session.idle:
                session.stop(DeviceLostError(session.host.name, DRAINED))
            else:
                session.drop_lease()

    def end_sessions(self, identity: str, error: UmdError) -> int:
        """Ends the sessions of an identity, those that wait for their client too; returns how many there were."""
        found = [session for session in self._sessions.values() if session.identity.name == identity]
        for session in found:
            session.stop(error)
        return len(found)

    def sessions(self) -> list[LiveSession]:
        """Returns the sessions that are open."""
        return list(self._sessions.values())

    async def describe(self, raw: bytes, context: Any) -> bytes:
        """Says what the server and those of its devices that the caller may use can do."""
        allowed, epochs = CALLER.get().devices, [host.epoch for host in self._hosts.values()]
        if epochs != self._epochs:
            self._described.clear()
            self._epochs = epochs
        if allowed not in self._described:
            hosts = {name: host for name, host in self._hosts.items() if allowed is None or name in allowed}
            message = _describe(hosts, self._limits, self._version, self._flags)
            shared = self._shared.describe()
            if shared is not None:
                message.shared_memory.CopyFrom(shared)
            self._described[allowed] = message.SerializeToString()
        return self._described[allowed]

    async def session(self, messages: AsyncIterator[bytes], context: Any) -> None:
        """Serves one stream of a session."""
        if self._draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, DRAINED)
        try:
            first = await anext(messages, b"")
            session = self._session(_read_open(first, self._limits), CALLER.get())
        except UmdError as error:
            await context.write(_refusal(error))
            return
        error_ = await session.serve(first, messages, context.write)
        if error_ is not None:
            await context.abort(grpc.StatusCode.ABORTED, str(error_))

    def _session(self, command: pb.Open, identity: Identity) -> LiveSession:
        """Returns the session that an Open frame makes, or attaches to."""
        if command.resume:
            session = self._sessions.get(session_number(command.resume))
            if session is None:
                raise refused()
            session.attach(command.resume, identity)
            return session
        host = self._host(command.device, identity)
        if abs(command.priority) > PRIORITY_LIMIT:
            raise LimitError("priority of a session", command.priority, PRIORITY_LIMIT)
        account = self._accounts.of(identity)
        account.open_session()
        self._count += 1
        weight = identity.weight * 2.0**command.priority
        setup = Setup(self._count, secrets.token_bytes(TOKEN_SIZE), identity.name, self._limits, weight)
        setup = with_lease(setup, command.lease_seconds)
        try:
            session = LiveSession(setup, identity, host, self._rooms.of(account), self._report, self._ended)
        except BaseException:
            account.close_session()
            raise
        session.offered = self._bulk.offered
        session.client = command.client[:CLIENT_NAME]
        self._sessions[session.number] = self._by_token[session.token] = session
        self._report.sessions += 1
        return session

    def _ended(self, session: LiveSession) -> None:
        del self._sessions[session.number], self._by_token[session.token]
        self._shared.end(session)
        self._report.sessions -= 1

    def _host(self, name: str, identity: Identity) -> DevicePort:
        """Returns the device that a session's first frame names."""
        if not name:
            allowed = identity.devices
            name = next(
                (known for known in self._hosts if allowed is None or known in allowed), next(iter(self._hosts))
            )
        identity.check_device(name)
        if name not in self._hosts:
            raise UnsupportedError(f"the server has no such device; it has {', '.join(self._hosts)}", device=name)
        return self._hosts[name]

    def _by_bulk_token(self, token: bytes) -> LiveSession:
        session = self._by_token.get(token)
        if session is None or session.identity.name != CALLER.get().name:
            raise NotAuthorisedError("transfers of a session that is not there")
        return session


def _read_open(first: bytes, limits: Limits) -> pb.Open:
    """Returns the Open frame that a stream begins with."""
    body = next(cut_frames(first, limits), None)
    frame = pb.Frame() if body is None else read_frame(body, limits)
    if frame.WhichOneof("command") != "open":
        raise DecodeError("frame-order", "a session begins with Open", section="SESSION")
    return frame.open


def _refusal(error: UmdError) -> bytes:
    """Returns the response of a session that was never opened."""
    return pb.SessionResponse(replies=[pb.Reply(seq=0, error=error_message(error))]).SerializeToString()


def _describe(
    hosts: Mapping[str, DevicePort], limits: Limits, version: str, flags: frozenset[str]
) -> pb.DescribeResponse:
    number = VERSION[0] << 8 | VERSION[1]
    message = pb.DescribeResponse(version=version, format_oldest=0x0100, format_newest=number)
    write_limits(limits, message.limits)
    for name, host in hosts.items():
        caps = host.caps
        device = message.devices.add(
            name=name, memory=caps.memory, max_work=caps.max_work, max_program_size=caps.max_buffer_bytes,
            flags=sorted(caps.flags | flags), epoch=host.epoch,
        )  # fmt: skip
        for kernel, types in caps.kernels.items():
            combinations = () if types is None else sorted(bytes(t.code for t in types_) for types_ in types)
            device.kernels.add(name=kernel, every=types is None, types=combinations)
    return message
