"""What the two sides of a worker say to each other: values as JSON objects, and errors with all their facts."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from umd_core.device import Caps
from umd_core.dtypes import BY_CODE
from umd_core.errors import InternalError, UmdError
from umd_grpc.limits import Limits
from umd_grpc.messages.convert import error_text, facts_text, read_error
from umd_grpc.server.port import Setup
from umd_grpc.server.report import log
from umd_grpc.server.transfer import Transfer

Plain = dict[str, Any]


def write_error(error: BaseException, where: str) -> Plain:
    """Returns an error as plain data; one that is not umd's own is logged and becomes an InternalError."""
    if not isinstance(error, UmdError):
        log("internal_error", where=where, traceback="".join(traceback.format_exception(error)))
        error = InternalError(f"{where} failed: {type(error).__name__}")
    return {"status": int(error.status), "message": error_text(error), "facts": facts_text(error)}


def read_plain_error(plain: Mapping[str, Any]) -> UmdError:
    """Returns the error that `write_error` described."""
    return read_error(plain["status"], plain["message"], plain["facts"])


def write_caps(caps: Caps) -> Plain:
    """Returns what a device can do as plain data."""
    kernels = {
        name: None if types is None else sorted([t.code for t in each] for each in types)
        for name, types in caps.kernels.items()
    }
    return {
        "kernels": kernels,
        "memory": caps.memory,
        "max_work": caps.max_work,
        "max_buffer_bytes": caps.max_buffer_bytes,
        "flags": sorted(caps.flags),
    }


def read_caps(plain: Mapping[str, Any]) -> Caps:
    """Returns what `write_caps` described."""
    kernels = {
        name: None if types is None else frozenset(tuple(BY_CODE[code] for code in each) for each in types)
        for name, types in plain["kernels"].items()
    }
    return Caps(kernels, plain["memory"], plain["max_work"], plain["max_buffer_bytes"], frozenset(plain["flags"]))


def write_setup(setup: Setup) -> Plain:
    """Returns a session's setup as plain data."""
    return {
        "number": setup.number,
        "token": setup.token.hex(),
        "identity": setup.identity,
        "limits": asdict(setup.limits),
        "weight": setup.weight,
        "resume": setup.resume.hex(),
        "lease_seconds": setup.lease_seconds,
    }


def read_setup(plain: Mapping[str, Any]) -> Setup:
    """Returns what `write_setup` described."""
    raw = {name: bytes.fromhex(plain[name]) for name in ("token", "resume")}
    facts: Plain = {**plain, **raw, "limits": Limits(**plain["limits"])}
    return Setup(**facts)


def write_transfer(transfer: Transfer) -> Plain:
    """Returns a transfer that has been reached as plain data."""
    return {"id": transfer.id, "size": transfer.size, "writes": transfer.writes, "sha256": transfer.sha256.hex()}


def read_transfer(plain: Mapping[str, Any]) -> Transfer:
    """Returns what `write_transfer` described."""
    return Transfer(plain["id"], plain["size"], plain["writes"], bytes.fromhex(plain["sha256"]))
