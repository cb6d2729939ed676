"""The Admin service: what the server is doing, as often as the caller wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from umd_grpc._pb.umd import admin_pb2 as pb
from umd_grpc.server.identity import CALLER
from umd_grpc.server.state import ServerState

LEAST_MS, MOST_MS = 100, 60_000


class AdminService:
    """Tells callers about the server; those who are no administrators about themselves."""

    def __init__(self, state: Callable[[], ServerState]) -> None:
        self._state = state

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the service for a server to add."""
        method: Any = grpc.unary_stream_rpc_method_handler(
            self.watch, pb.WatchRequest.FromString, pb.State.SerializeToString
        )
        return grpc.method_handlers_generic_handler("umd.admin.Admin", {"Watch": method})

    async def watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.State]:
        """Yields the state now and after each interval, until the server drains or the caller ends the call."""
        caller = CALLER.get()
        while True:
            state = self._state()
            yield state_message(state if caller.admin else state.seen_by(caller.name))
            if not request.interval_ms or state.draining:
                return
            await asyncio.sleep(min(max(request.interval_ms, LEAST_MS), MOST_MS) / 1000)


def state_message(state: ServerState) -> pb.State:
    """Returns the message of a state."""
    message = pb.State(
        version=state.version, uptime_seconds=state.uptime, draining=state.draining,
        counters=pb.Counters(**state.counters),
        translate_mean_us=state.mean * 1e6, translate_p99_us=state.p99 * 1e6,
    )  # fmt: skip
    for device in state.devices:
        message.devices.add(
            name=device.name, memory=device.memory, memory_used=device.memory_used, queue_depth=device.queue_depth,
            epoch=device.epoch, sessions=device.sessions, worker_pid=device.worker_pid,
            worker_restarts=device.worker_restarts,
        )  # fmt: skip
    for found in state.identities:
        usage, quota = found.usage, found.quota
        message.identities.add(
            name=found.name, ops=usage.ops,
            memory=usage.memory, sessions=usage.sessions, in_flight=usage.in_flight,
            memory_quota=quota.memory or 0, sessions_quota=quota.sessions or 0,
            in_flight_quota=quota.in_flight or 0, ops_per_second_quota=quota.ops_per_second or 0,
        )  # fmt: skip
    for session in state.sessions:
        message.sessions.add(
            number=session.number, identity=session.identity, device=session.device, client=session.client,
            seconds=session.seconds, memory=session.memory, waiting=session.waiting, submissions=session.submissions,
            detached=session.detached,
        )  # fmt: skip
    for cache in state.caches:
        message.caches.add(name=cache.name, hits=cache.hits, misses=cache.misses)
    return message
