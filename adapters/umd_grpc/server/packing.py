"""Answers with gzip, to calls that ask for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from umd_grpc.compression import ASKS, covers
from umd_grpc.server.interceptors import Around


class Packing(Around):
    """Packs the answers of translate calls that ask for it; see `umd_grpc.compression`."""

    def covers(self, method: str) -> bool:
        return covers(method)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the method's handler; one that packs its answers when the call asks for it."""
        if ASKS not in (handler_call_details.invocation_metadata or ()):
            return await continuation(handler_call_details)
        return await super().intercept_service(continuation, handler_call_details)

    @asynccontextmanager
    async def around(self, context: Any) -> AsyncGenerator[None]:
        """Says to gRPC how the answers of one call are packed; single answers are only packed when it is said first."""
        context.set_compression(grpc.Compression.Gzip)
        await context.send_initial_metadata(())
        yield
