"""Channels to a server: how calls behave, and what they carry."""

from __future__ import annotations

import json
from typing import Any, TypeVar, cast

import grpc

from umd_grpc import compression
from umd_grpc.client.access import Access
from umd_grpc.client.errors import MESSAGE_LIMIT, call_error
from umd_grpc.client.forks import check_opening
from umd_grpc.telemetry import traced

__all__ = ["MESSAGE_LIMIT", "call_error", "open_aio_channel", "open_channel", "options"]

Channel = TypeVar("Channel", grpc.Channel, grpc.aio.Channel)

_PURE = (
    {"service": "umd.Translator", "method": "Translate"},
    {"service": "umd.runtime.Runtime", "method": "Describe"},
    {"service": "grpc.health.v1.Health", "method": "Check"},
)
SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": list(_PURE),
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "0.5s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)
"""Retries of calls that execute nothing, and of no others."""


def options(*, own_connection: bool = False) -> list[tuple[str, Any]]:
    """Returns the options of a channel. Channels share a connection unless one of its own is asked for."""
    return [
        ("grpc.service_config", SERVICE_CONFIG),
        ("grpc.enable_retries", 1),
        ("grpc.max_receive_message_length", MESSAGE_LIMIT),
        ("grpc.max_send_message_length", MESSAGE_LIMIT),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", int(own_connection)),
    ]


def open_channel(access: Access, *, own_connection: bool = False) -> grpc.Channel:
    """Returns a channel to a server.

    Raises:
        UmdError: see `Access.credentials`.
    """
    check_opening(access.target)
    given = options(own_connection=own_connection)
    if access.secure:
        credentials, more = access.credentials()
        return _carrying(access, traced(grpc.secure_channel(access.target, credentials, options=[*given, *more])))
    return _carrying(access, traced(grpc.insecure_channel(access.target, options=[*given, *_in_the_clear(access)])))


def open_aio_channel(access: Access) -> grpc.aio.Channel:
    """Returns a channel for asyncio; see `open_channel`. A pinned certificate is fetched before it returns."""
    check_opening(access.target)
    given = options()
    if access.secure:
        credentials, more = access.credentials()
        return _carrying(access, grpc.aio.secure_channel(access.target, credentials, options=[*given, *more]))
    return _carrying(access, grpc.aio.insecure_channel(access.target, options=[*given, *_in_the_clear(access)]))


def _in_the_clear(access: Access) -> list[tuple[str, Any]]:
    """Returns options of a channel without TLS: a token for this machine must not reach a proxy."""
    return [("grpc.enable_http_proxy", 0)] if access.token else []


def _carrying(access: Access, channel: Channel) -> Channel:
    """Returns a channel whose calls carry the access's metadata, and pack what is worth it."""
    metadata, packs = access.metadata(), compression.wanted(access.target)
    return cast("Channel", _Carrying(channel, metadata, packs=packs)) if metadata or packs else channel


class _Carrying:
    """A channel, of either kind, that adds metadata to every call, and gzip to those of translate methods."""

    def __init__(self, channel: Any, metadata: tuple[tuple[str, str], ...], *, packs: bool) -> None:
        self._channel, self._metadata, self._packs = channel, metadata, packs

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        if name not in _METHODS:
            return found

        def method(path: str, *given: Any, **options: Any) -> Any:
            made = found(path, *given, **options)
            if self._packs and compression.covers(path):
                packed = {"compression": grpc.Compression.Gzip}
                return _CarryingMethod(made, (*self._metadata, compression.ASKS), packed)
            return _CarryingMethod(made, self._metadata, {}) if self._metadata else made

        return method

    def __enter__(self) -> _Carrying:
        return self

    def __exit__(self, *given: object) -> None:
        self._channel.close()

    async def __aenter__(self) -> _Carrying:
        return self

    async def __aexit__(self, *given: object) -> None:
        await self._channel.close()


class _CarryingMethod:
    """A method of such a channel: called as gRPC's own."""

    def __init__(self, method: Any, metadata: tuple[tuple[str, str], ...], options: dict[str, Any]) -> None:
        self._method, self._metadata, self._options = method, metadata, options

    def __call__(self, *given: Any, metadata: Any = (), **options: Any) -> Any:
        return self._method(*given, metadata=self._with(metadata), **self._options, **options)

    def future(self, *given: Any, metadata: Any = (), **options: Any) -> Any:
        """Returns the call as a future."""
        return self._method.future(*given, metadata=self._with(metadata), **self._options, **options)

    def _with(self, metadata: Any) -> tuple[tuple[str, str], ...]:
        return (*(metadata or ()), *self._metadata)


_METHODS = frozenset({"unary_unary", "unary_stream", "stream_unary", "stream_stream"})
