"""Names of servers and their devices: "grpcs://host:port/sim:0#sha256=…&token=…"."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from umd_core.errors import UnsupportedError
from umd_grpc.addresses import is_unix, split_host

PORT = "50051"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9_.~+/=-]{1,128}", re.ASCII)
_FACTS = ("sha256", "token")
_TEXT_LIMIT = 4_096


class Address(NamedTuple):
    """Where a device is, and what its name says about the server.

    Attributes:
        target: "host:port" or "unix:/path", as gRPC takes it.
        device: of the server; "" for its first.
        fingerprint: SHA-256 of the server's certificate, hexadecimal; "" when it is not said.
        token: to show there, lasting or one-time; "" when there is none.
    """

    target: str
    device: str = ""
    fingerprint: str = ""
    token: str = ""


def split_address(rest: str) -> Address:
    """Returns what follows the first colon of a device's name, in its parts.

    "//host:port/sim:0", "//host:port" (the server's first device), either with "#sha256=…&token=…", and
    "unix:/path#sim:0" are understood.

    Raises:
        UnsupportedError: it is something else. The message never has the token.
    """
    if len(rest) <= _TEXT_LIMIT:
        if rest.startswith("//"):
            where, _, facts = rest[2:].partition("#")
            target, _, device = where.partition("/")
            found = _facts(facts)
            if target and found is not None:
                target = target if split_host(target)[1] else f"{target}:{PORT}"
                return Address(target, device, found.get("sha256", ""), found.get("token", ""))
        elif is_unix(rest):
            target, _, device = rest.partition("#")
            return Address(target, device)
    wanted = "grpc://host:port/sim:0, grpcs://host:port/sim:0#sha256=… or grpc:unix:/path#sim:0"
    shown = f"grpc:{rest.partition('#')[0][:200]}"
    raise UnsupportedError(f"not the address of a device; write it as {wanted}", device=shown)


def _facts(text: str) -> dict[str, str] | None:
    """Returns the facts after "#", None when they are not well-formed."""
    found: dict[str, str] = {}
    for part in text.split("&") if text else ():
        name, equals, value = part.partition("=")
        if not equals or name not in _FACTS or name in found:
            return None
        found[name] = unquote(value)
    fingerprint = found.get("sha256", "").replace(":", "").lower()
    if "sha256" in found and not _FINGERPRINT.fullmatch(fingerprint):
        return None
    if "token" in found and not _TOKEN.fullmatch(found["token"]):
        return None
    return {**found, "sha256": fingerprint}
