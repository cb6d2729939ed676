"""What surrounds every call: who makes it, and how many are under way."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import grpc

from umd_core.errors import NotAuthorisedError
from umd_grpc.server.authenticate import Guard
from umd_grpc.server.identity import CALLER, Identity


class Around(grpc.aio.ServerInterceptor, ABC):
    """Puts something around calls, in the task that serves them.

    Attributes:
        refusal: what a call is told that is not wanted, unless `around` says more.
    """

    refusal = "try again"

    @abstractmethod
    def covers(self, method: str) -> bool:
        """Returns whether the calls of a method, "/package.Service/Method", are concerned."""

    @abstractmethod
    def around(self, context: Any) -> AbstractAsyncContextManager[None]:
        """Returns what surrounds one call."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the method's handler, surrounded."""
        handler = await continuation(handler_call_details)
        if handler is None or not self.covers(handler_call_details.method):
            return handler
        if not self.wanted(handler_call_details):
            return grpc.stream_stream_rpc_method_handler(self._unwanted)
        kind = _KINDS[handler.request_streaming, handler.response_streaming]
        behaviour = getattr(handler, kind)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        surrounded = self._stream(behaviour) if inspect.isasyncgenfunction(behaviour) else self._single(behaviour)
        return make(surrounded, handler.request_deserializer, handler.response_serializer)

    def wanted(self, call: grpc.HandlerCallDetails) -> bool:
        """Returns whether anything of a call is to be read; if not, `around` says why when it is entered."""
        return True

    async def _unwanted(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Refuses a call without reading: a stream's handler begins before a message has come."""
        async with self.around(context):
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.refusal)

    def _single(self, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def surrounded(request: Any, context: Any) -> Any:
            async with self.around(context):
                return await behaviour(request, context)

        return surrounded

    def _stream(self, behaviour: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
        async def surrounded(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self.around(context), aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

        return surrounded


class Activity(Around):
    """Counts the calls of umd's own services that are under way, so that a drain knows when work is done.

    Attributes:
        draining: whether new calls are refused, save those that sessions under way need.
    """

    NEEDED = ("/umd.runtime.Runtime/Write", "/umd.runtime.Runtime/Read")
    """What a session that is under way may still begin."""
    refusal = "the server is shutting down"

    def __init__(self, prefix: str = "/umd.") -> None:
        """Counts calls of methods whose path begins with `prefix`."""
        self.draining = False
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

    def covers(self, method: str) -> bool:
        return method.startswith(self._prefix)

    def wanted(self, call: grpc.HandlerCallDetails) -> bool:
        return not self.draining or call.method in self.NEEDED

    @asynccontextmanager
    async def around(self, context: Any) -> AsyncGenerator[None]:
        """Counts one call."""
        self._count += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._quiet.set()


class Anybody(Around):
    """Sets CALLER where nobody is asked who he is: all callers are one identity, with its quota."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def covers(self, method: str) -> bool:
        return method.startswith("/umd.")

    @asynccontextmanager
    async def around(self, context: Any) -> AsyncGenerator[None]:
        """Says who calls."""
        CALLER.set(self._identity)
        yield


class Authentication(Around):
    """Sets CALLER for the task that serves a call, refuses callers that are not known, ends calls of revoked ones."""

    OPEN = ("/grpc.health.v1.Health/", "/umd.access.Access/")
    """What everybody may call: whether the server lives, and joining it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._calls: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)
        self._revoked: set[asyncio.Task[Any]] = set()
        guard.on_revoked(self._end)

    def covers(self, method: str) -> bool:
        return not method.startswith(self.OPEN)

    def wanted(self, call: grpc.HandlerCallDetails) -> bool:
        return self._guard.hopeful(call.invocation_metadata)

    def _end(self, name: str, key: str) -> None:
        for task in self._calls.get(key, ()):
            self._revoked.add(task)
            task.cancel()

    @asynccontextmanager
    async def around(self, context: Any) -> AsyncGenerator[None]:
        """Recognises the caller of one call."""
        try:
            identity, key = self._guard.identify(context)
        except NotAuthorisedError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.what)
            raise
        CALLER.set(identity)
        task: Any = asyncio.current_task()
        self._calls[key].add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._revoked:
                raise
            task.uncancel()
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"the access of {identity.name} was revoked")
        finally:
            self._revoked.discard(task)
            self._calls[key].discard(task)
            if not self._calls[key]:
                del self._calls[key]


_KINDS = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}
