"""Tokens: secrets that say who calls, and what a token file says of them.

A token is 256 random bits, so one SHA-256 is enough: a slow hash protects what people choose, and what can be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from umd_grpc.server.identity import Identity, Quota

PREFIX, JOIN_PREFIX = "umdt_", "umdj_"
RANDOM_SIZE = 32
TEXT_LIMIT, ENTRIES_LIMIT = 128, 4_096
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST = (1 << 63) - 1
VERSION = 1


def new_secret(*, joins: bool = False) -> str:
    """Returns a new token; one that `joins` is exchanged for a lasting one at its first use."""
    return (JOIN_PREFIX if joins else PREFIX) + secrets.token_urlsafe(RANDOM_SIZE)


def digest(secret: str) -> str:
    """Returns what the file keeps of a token: the SHA-256, in hexadecimal."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One token in the file.

    Attributes:
        name: of the identity that it stands for.
        sha256: of the token; "" where only a client certificate of this name is accepted.
        created, expires: seconds since 1970; None: for ever.
        joins: whether it can only be exchanged for a lasting one, once.
        devices: what the identity may use, None for every device of the server.
        quota, weight, admin: of the identity.
    """

    name: str
    sha256: str = ""
    created: int = 0
    expires: int | None = None
    joins: bool = False
    devices: tuple[str, ...] | None = None
    quota: Quota = field(default=Quota())
    weight: int = 1
    admin: bool = False

    def live(self, now: float) -> bool:
        """Returns whether it has not expired."""
        return self.expires is None or now < self.expires

    def identity(self, usual: Quota) -> Identity:
        """Returns who calls with it; `usual` is the quota where it says nothing."""
        own = {key: value for key, value in asdict(self.quota).items() if value is not None}
        devices = None if self.devices is None else frozenset(self.devices)
        return Identity(self.name, devices, replace(usual, **own), self.weight, self.admin)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a token file says.

    Attributes:
        entries: at most one of each name.
        refused: names whose client certificates are refused.
    """

    entries: tuple[Entry, ...] = ()
    refused: frozenset[str] = frozenset()

    def find(self, secret: str, now: float) -> Entry | None:
        """Returns the live entry of a token. It takes as long whichever it is, and when it is none."""
        if len(secret) > TEXT_LIMIT:
            return None
        wanted, found = digest(secret), None
        for entry in self.entries:
            if hmac.compare_digest(wanted, entry.sha256) and entry.live(now):
                found = entry
        return found

    def named(self, name: str) -> Entry | None:
        """Returns the entry of a name."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def without(self, name: str) -> Tokens:
        """Returns the same without an entry."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.name != name))


def plain_entry(entry: Entry) -> dict[str, Any]:
    """Returns an entry as the file has it: without what is as usual."""
    usual = Entry(entry.name)
    own = {f.name: getattr(entry, f.name) for f in fields(Entry) if f.name != "quota"}
    quota = {key: value for key, value in asdict(entry.quota).items() if value is not None}
    plain = {key: value for key, value in own.items() if key == "name" or value != getattr(usual, key)}
    return {**plain, **quota}


def parse_tokens(document: Any) -> Tokens:
    """Returns what a file's JSON says.

    Raises:
        ValueError, TypeError: it is not what a token file holds.
    """
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"no object with version {VERSION}")
    found, refused = document.get("tokens", []), document.get("refused", [])
    if not isinstance(found, list) or len(found) > ENTRIES_LIMIT:
        raise ValueError(f"tokens is no list of at most {ENTRIES_LIMIT}")
    if not isinstance(refused, list) or not all(isinstance(name, str) for name in refused):
        raise ValueError("refused is no list of names")
    entries = tuple(read_entry(item) for item in found)
    if len({entry.name for entry in entries}) != len(entries):
        raise ValueError("two tokens of one name")
    return Tokens(entries, frozenset(refused))


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


_QUOTA = tuple(f.name for f in fields(Quota))
_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda v: isinstance(v, str) and bool(NAME.fullmatch(v)), "1 to 64 letters, digits and . _ @ -"),
    "sha256": (lambda v: isinstance(v, str) and bool(not v or _DIGEST.fullmatch(v)), "64 hexadecimal digits"),
    "created": (lambda v: _is_count(v, 0), "seconds since 1970"),
    "expires": (lambda v: v is None or _is_count(v, 0), "seconds since 1970"),
    "joins": (lambda v: isinstance(v, bool), "true or false"),
    "devices": (lambda v: v is None or _is_texts(v), "names of devices"),
    "weight": (lambda v: _is_count(v, 1) and v <= 1_000, "1 to 1,000"),
    "admin": (lambda v: isinstance(v, bool), "true or false"),
    **{key: (lambda v: _is_count(v, 1), "a number of at least 1") for key in _QUOTA},
}  # fmt: skip


def read_entry(item: Any) -> Entry:
    """Returns an entry of the file's JSON.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(item, dict) or "name" not in item:
        raise ValueError("a token is no object with a name")
    for key, value in item.items():
        if key not in _CHECKS:
            raise ValueError(f"a token has no {key!r}; it has {', '.join(_CHECKS)}")
        fits, wanted = _CHECKS[key]
        if not fits(value):
            raise ValueError(f"{key} {value!r} of a token is not {wanted}")
    own = {key: value for key, value in item.items() if key not in _QUOTA}
    if own.get("devices") is not None:
        own["devices"] = tuple(own["devices"])
    return Entry(**own, quota=Quota(**{key: value for key, value in item.items() if key in _QUOTA}))
