"""What surrounds every call: how many are under way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc


class Activity(grpc.aio.ServerInterceptor):
    """Counts the calls of umd's own services that are under way, so that a drain knows when work is done."""

    def __init__(self, prefix: str = "/umd.") -> None:
        """Counts calls of methods whose path begins with `prefix`."""
        self._prefix, self._count = prefix, 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def count(self) -> int:
        """Calls under way."""
        return self._count

    async def quiet(self) -> None:
        """Returns when no call is under way."""
        await self._quiet.wait()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the method's handler, counted."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        wrap = _KINDS[handler.request_streaming, handler.response_streaming]
        behaviour = getattr(handler, wrap)
        make = getattr(grpc, f"{wrap}_rpc_method_handler")
        counted = self._stream(behaviour) if inspect.isasyncgenfunction(behaviour) else self._single(behaviour)
        return make(counted, handler.request_deserializer, handler.response_serializer)

    def _enter(self) -> None:
        self._count += 1
        self._quiet.clear()

    def _leave(self) -> None:
        self._count -= 1
        if not self._count:
            self._quiet.set()

    def _single(self, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(request: Any, context: Any) -> Any:
            self._enter()
            try:
                return await behaviour(request, context)
            finally:
                self._leave()

        return counted

    def _stream(self, behaviour: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
        async def counted(request: Any, context: Any) -> AsyncIterator[Any]:
            self._enter()
            try:
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response
            finally:
                self._leave()

        return counted


_KINDS = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}
