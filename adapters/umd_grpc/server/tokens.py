"""The file of tokens. It holds hashes, so whoever reads it cannot call with them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from umd_core.errors import ConfigError, LimitError, NotAuthorisedError
from umd_grpc.files import locked, read_private, write_private
from umd_grpc.server.entries import (
    ENTRIES_LIMIT,
    VERSION,
    Entry,
    Tokens,
    digest,
    new_secret,
    parse_tokens,
    plain_entry,
    read_entry,
)

FILE_LIMIT = 4 << 20


class TokenFile:
    """The file of tokens. Processes that change it wait for each other; those that read it always find it whole."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock

    def load(self) -> Tokens:
        """Returns what the file says; nothing when there is none.

        Raises:
            ConfigError: it is damaged.
            NotAuthorisedError: others than its owner may use it.
            LimitError, OSError: it is too large, or cannot be read.
        """
        try:
            raw = read_private(self.path, FILE_LIMIT)
        except FileNotFoundError:
            return Tokens()
        try:
            return parse_tokens(json.loads(raw))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigError(str(self.path), [f"is no token file: {error}"]) from error

    def _save(self, tokens: Tokens) -> None:
        if len(tokens.entries) > ENTRIES_LIMIT:
            raise LimitError("tokens", len(tokens.entries), ENTRIES_LIMIT)
        document = {
            "version": VERSION,
            "tokens": [plain_entry(entry) for entry in tokens.entries],
            "refused": sorted(tokens.refused),
        }
        write_private(self.path, json.dumps(document, indent=1).encode() + b"\n")

    def add(self, entry: Entry) -> None:
        """Adds an entry, in the place of one of its name that has expired or was never used to join.

        Raises:
            NotAuthorisedError: there is a live one of this name.
            ConfigError: the entry is malformed.
        """
        try:
            read_entry(plain_entry(entry))
        except (ValueError, TypeError) as error:
            raise ConfigError("", [str(error)]) from error
        with locked(self.path):
            tokens = self.load()
            old = tokens.named(entry.name)
            if old is not None and old.live(self._clock()) and not old.joins:
                raise NotAuthorisedError(
                    f"{entry.name} has a token: `umd token revoke {entry.name}` takes it away first"
                )
            entries = (*tokens.without(entry.name).entries, entry)
            self._save(Tokens(entries, tokens.refused - {entry.name}))

    def revoke(self, name: str, *, certificate: bool = False) -> None:
        """Takes a token away, and refuses client certificates of the name.

        Args:
            name: of the identity.
            certificate: whether only certificates are to be refused, so that there need be no token.

        Raises:
            ConfigError: there is no token of the name.
        """
        with locked(self.path):
            tokens = self.load()
            if tokens.named(name) is None and not certificate:
                known = ", ".join(entry.name for entry in tokens.entries) or "none"
                raise ConfigError(str(self.path), [f"has no token of {name!r}; it has {known}"])
            self._save(replace(tokens.without(name), refused=tokens.refused | {name}))

    def exchange(self, secret: str) -> tuple[str, Entry]:
        """Returns the lasting token that a one-time token is exchanged for; the one-time token is gone then.

        Raises:
            NotAuthorisedError: it is no one-time token, was used before, or has expired.
        """
        with locked(self.path):
            tokens, now = self.load(), self._clock()
            entry = tokens.find(secret, now)
            if entry is None or not entry.joins:
                raise NotAuthorisedError(
                    "this one-time token was used before, has expired or never was one; "
                    "the operator makes another with `umd token invite NAME`"
                )
            lasting = new_secret()
            kept = replace(entry, sha256=digest(lasting), created=int(now), expires=None, joins=False)
            self._save(replace(tokens, entries=(*tokens.without(entry.name).entries, kept)))
        return lasting, kept


class TokenStore:
    """What a token file says now, for a server that reads it again when it has changed."""

    def __init__(self, file: TokenFile) -> None:
        """Reads the file.

        Raises:
            UmdError, OSError: it cannot be used; see `TokenFile.load`.
        """
        self.file = file
        self._seen = self._signature()
        self.tokens = file.load()

    def _signature(self) -> tuple[int, int, int, int] | None:
        try:
            found = self.file.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode

    def refresh(self) -> bool:
        """Returns whether the file has changed, and reads it then.

        Raises:
            UmdError, OSError: it has changed and cannot be used; what it said before goes on being so.
        """
        signature = self._signature()
        if signature == self._seen:
            return False
        self._seen = signature
        self.tokens = self.file.load()
        return True
