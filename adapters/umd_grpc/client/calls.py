"""Clients of a server, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2

from umd_core.commands import CommandBuffer
from umd_core.errors import UmdError
from umd_core.ir import Graph
from umd_grpc._pb.umd import admin_pb2, graph_pb2, runtime_pb2, translator_pb2
from umd_grpc.client.access import Access, reach
from umd_grpc.client.channel import call_error, open_aio_channel, open_channel
from umd_grpc.client.forks import Process, keep
from umd_grpc.client.requests import (
    Encoder,
    ProgramReader,
    Request,
    Translation,
    batch_messages,
    read_response,
    read_responses,
)
from umd_grpc.messages.graph_messages import write_graph

SECONDS, BATCH_SECONDS = 30.0, 600.0

__all__ = ["AsyncClient", "Client", "Request", "Translation"]


class _Calls:
    """The methods of a server on a channel, of either kind. What is sent is serialised here."""

    def __init__(self, channel: Any) -> None:
        self.translate: Any = channel.unary_unary(
            "/umd.Translator/Translate", response_deserializer=translator_pb2.TranslateResponse.FromString
        )
        self.submit_batch: Any = channel.stream_stream("/umd.Translator/SubmitBatch")
        self.translate_graph: Any = channel.unary_stream(
            "/umd.graph.Graphs/TranslateGraph",
            graph_pb2.TranslateGraphRequest.SerializeToString,
            graph_pb2.TranslateGraphResponse.FromString,
        )
        self.describe: Any = channel.unary_unary(
            "/umd.runtime.Runtime/Describe",
            runtime_pb2.DescribeRequest.SerializeToString,
            runtime_pb2.DescribeResponse.FromString,
        )
        self.watch: Any = channel.unary_stream(
            "/umd.admin.Admin/Watch", admin_pb2.WatchRequest.SerializeToString, admin_pb2.State.FromString
        )
        self.check: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )


class Client:
    """Calls of one server over one channel. Usable from many threads; a context manager.

    Example:
        >>> with Client("127.0.0.1:50051") as client:
        ...     translation = client.translate("Add", [x, y])
    """

    def __init__(
        self, target: str | Access, *, secure: bool = False, token: str = "", timeout: float = SECONDS
    ) -> None:
        """`timeout` is the deadline of a call in seconds, unless the call says otherwise; for others see `reach`."""
        access = reach(target, secure=secure, token=token)
        self.target, self._timeout = access.target, timeout
        self.channel = open_channel(access)
        self._process, self._encoder = Process(), Encoder()
        self._calls = _Calls(self.channel)
        keep(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the channel and every call on it. In a child made by fork it does nothing."""
        if self._process.here:
            self.channel.close()

    def after_fork(self) -> None:
        """Needs nothing in a child; see `forks`."""

    def translate(
        self,
        op: str,
        inputs: Sequence[Any],
        attributes: Mapping[str, Any] | None = None,
        *,
        device: str = "",
        timeout: float | None = None,
    ) -> Translation:
        """Returns the server's translation of one op.

        Raises:
            UmdError: what the server found, or why it could not be asked.
        """
        raw = self._encoder.encode(Request(op, inputs, attributes or {}, device), 0)
        answer = read_response(self._call(self._calls.translate, raw, timeout))
        if isinstance(answer, UmdError):
            raise answer
        return answer

    def submit_batch(
        self, requests: Iterable[Request], *, timeout: float = BATCH_SECONDS
    ) -> Iterator[Translation | UmdError]:
        """Yields, in order, the translation of each request or its error; requests are read as answers come in.

        Raises:
            UmdError: the server could not be asked.
        """
        self._process.check(self.target)
        try:
            for raw in self._calls.submit_batch(batch_messages(requests, self._encoder), timeout=timeout):
                yield from read_responses(raw)
        except grpc.RpcError as error:
            raise call_error(error, self.target) from error

    def translate_graph(self, graph: Graph, *, device: str = "", timeout: float | None = None) -> CommandBuffer:
        """Returns the server's translation of a graph.

        Raises:
            UmdError: what the server found, or why it could not be asked.
        """
        self._process.check(self.target)
        request = graph_pb2.TranslateGraphRequest(graph=write_graph(graph), device_id=device)
        reader = ProgramReader()
        try:
            for message in self._calls.translate_graph(request, timeout=self._seconds(timeout)):
                reader.take(message)
        except grpc.RpcError as error:
            raise call_error(error, self.target) from error
        return reader.program()

    def watch(self, interval: float = 1.0) -> Iterator[admin_pb2.State]:
        """Yields what the server is doing, every `interval` seconds; once when that is 0.

        Raises:
            UmdError: the server could not be asked, or has ended.
        """
        self._process.check(self.target)
        call = self._calls.watch(admin_pb2.WatchRequest(interval_ms=round(interval * 1000)))
        try:
            yield from call
        except grpc.RpcError as error:
            raise call_error(error, self.target) from error
        finally:
            call.cancel()

    def describe(self, *, timeout: float | None = None) -> runtime_pb2.DescribeResponse:
        """Returns what the server and its devices can do."""
        answer: runtime_pb2.DescribeResponse = self._call(self._calls.describe, runtime_pb2.DescribeRequest(), timeout)
        return answer

    def healthy(self, *, timeout: float | None = None) -> bool:
        """Returns whether the server takes new work."""
        answer = self._call(self._calls.check, health_pb2.HealthCheckRequest(), timeout)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def _call(self, method: Any, request: Any, timeout: float | None) -> Any:
        self._process.check(self.target)
        try:
            return method(request, timeout=self._seconds(timeout))
        except grpc.RpcError as error:
            raise call_error(error, self.target) from error


class AsyncClient:
    """Calls of one server from asyncio, over one channel; an asynchronous context manager."""

    def __init__(
        self, target: str | Access, *, secure: bool = False, token: str = "", timeout: float = SECONDS
    ) -> None:
        """`timeout` is the deadline of a call in seconds, unless the call says otherwise; for others see `reach`."""
        access = reach(target, secure=secure, token=token)
        self.target, self._timeout = access.target, timeout
        self.channel = open_aio_channel(access)
        self._encoder = Encoder()
        self._calls = _Calls(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the channel and every call on it."""
        await self.channel.close()

    async def translate(
        self,
        op: str,
        inputs: Sequence[Any],
        attributes: Mapping[str, Any] | None = None,
        *,
        device: str = "",
        timeout: float | None = None,
    ) -> Translation:
        """Returns the server's translation of one op; see `Client.translate`."""
        raw = self._encoder.encode(Request(op, inputs, attributes or {}, device), 0)
        answer = read_response(await self._call(self._calls.translate, raw, timeout))
        if isinstance(answer, UmdError):
            raise answer
        return answer

    async def submit_batch(
        self, requests: Iterable[Request], *, timeout: float = BATCH_SECONDS
    ) -> AsyncIterator[Translation | UmdError]:
        """Yields, in order, the translation of each request or its error; see `Client.submit_batch`."""
        try:
            answers: AsyncIterable[bytes] = self._calls.submit_batch(
                batch_messages(requests, self._encoder), timeout=timeout
            )
            async for raw in answers:
                for answer in read_responses(raw):
                    yield answer
        except grpc.RpcError as error:
            raise call_error(error, self.target) from error

    async def translate_graph(self, graph: Graph, *, device: str = "", timeout: float | None = None) -> CommandBuffer:
        """Returns the server's translation of a graph; see `Client.translate_graph`."""
        request = graph_pb2.TranslateGraphRequest(graph=write_graph(graph), device_id=device)
        reader = ProgramReader()
        try:
            async for message in self._calls.translate_graph(request, timeout=self._seconds(timeout)):
                reader.take(message)
        except grpc.RpcError as error:
            raise call_error(error, self.target) from error
        return reader.program()

    async def describe(self, *, timeout: float | None = None) -> runtime_pb2.DescribeResponse:
        """Returns what the server and its devices can do."""
        answer: runtime_pb2.DescribeResponse = await self._call(
            self._calls.describe, runtime_pb2.DescribeRequest(), timeout
        )
        return answer

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    async def _call(self, method: Any, request: Any, timeout: float | None) -> Any:
        try:
            return await method(request, timeout=self._seconds(timeout))
        except grpc.RpcError as error:
            raise call_error(error, self.target) from error
