"""What the failures of calls mean."""

from __future__ import annotations

from collections.abc import Sequence

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


def call_error(error: grpc.RpcError, target: str) -> UmdError:
    """Returns what the failure of a call means."""
    code = error.code() if callable(getattr(error, "code", None)) else grpc.StatusCode.UNKNOWN
    details = str(error.details() or code.name) if callable(getattr(error, "details", None)) else str(error)
    if code is grpc.StatusCode.UNAVAILABLE and _UNTRUSTED in details:
        return NotAuthorisedError(
            f"{target} shows a certificate that is not trusted here: add #sha256=FINGERPRINT to the address, or name "
            "the file of its authority in UMD_TLS_CA"
        )
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


_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_LOST: Sequence[grpc.StatusCode] = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.OK,
)
