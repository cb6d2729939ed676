"""Channels to a server: where it is, how calls behave, what their failures mean."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import grpc

from umd_core.errors import (
    CancelledError,
    DeviceLostError,
    InternalError,
    LimitError,
    NotAuthorisedError,
    UmdError,
    UnsupportedError,
)

MESSAGE_LIMIT = 65 << 20
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
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", int(own_connection)),
    ]


def open_channel(target: str, *, secure: bool = False, own_connection: bool = False) -> grpc.Channel:
    """Returns a channel. `secure` uses TLS and the system's roots."""
    given = options(own_connection=own_connection)
    if secure:
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(), options=given)
    return grpc.insecure_channel(target, options=given)


def open_aio_channel(target: str, *, secure: bool = False) -> grpc.aio.Channel:
    """Returns a channel for asyncio."""
    if secure:
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options=options())
    return grpc.aio.insecure_channel(target, options=options())


def split_address(rest: str) -> tuple[str, str]:
    """Returns (gRPC target, device) of what follows the first colon of a device's name.

    "//host:port/sim:0", "//host:port" (the server's first device) and "unix:/path#sim:0" are understood.

    Raises:
        UnsupportedError: it is something else.
    """
    if rest.startswith("//"):
        target, _, device = rest[2:].partition("/")
        if target:
            return (target if ":" in target else f"{target}:50051"), device
    elif rest.startswith("unix:"):
        target, _, device = rest.partition("#")
        return target, device
    wanted = "grpc://host:port/sim:0 or grpc:unix:/path#sim:0"
    raise UnsupportedError(f"not the address of a device; write it as {wanted}", device=f"grpc:{rest}")


def call_error(error: grpc.RpcError, target: str) -> UmdError:
    """Returns what the failure of a call means."""
    code = error.code() if callable(getattr(error, "code", None)) else grpc.StatusCode.UNKNOWN
    details = str(error.details() or code.name) if callable(getattr(error, "details", None)) else str(error)
    if code in _LOST:
        return DeviceLostError(target, f"{details} ({code.name})")
    if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return CancelledError(f"call of {target}: {details} ({code.name})")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return NotAuthorisedError(f"{target}: {details}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedError(f"the server does not have this call: {details}", device=target)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return LimitError(f"bytes of a message to or from {target} ({details})", MESSAGE_LIMIT + 1, MESSAGE_LIMIT)
    return InternalError(f"call of {target}: {details} ({code.name})")


_LOST: Sequence[grpc.StatusCode] = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.OK,
)


class Process:
    """The process that a connection belongs to. gRPC's connections do not survive a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self, what: str) -> None:
        """Checks that this is still the same process.

        Raises:
            DeviceLostError: it is a child made by fork.
        """
        if os.getpid() != self._pid:
            raise DeviceLostError(what, f"it was opened by process {self._pid}: open it again in this one")
