"""Who calls: by token or by client certificate. What has been revoked stops within a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from umd_core.errors import NotAuthorisedError, UmdError
from umd_grpc.server.entries import JOIN_PREFIX, NAME, TEXT_LIMIT, Entry, digest
from umd_grpc.server.identity import Identity, Quota
from umd_grpc.server.report import log
from umd_grpc.server.throttle import Throttle, peer_name
from umd_grpc.server.tokens import TokenStore

WATCH_SECONDS = 0.5
_SCHEME = "bearer "
_CERTIFICATE = "certificate:"
WANTED = 'send a token as metadata "authorization: Bearer TOKEN"'


class Caller(NamedTuple):
    """An identity and what it was recognised by: the hash of a token, or the name in a certificate."""

    identity: Identity
    key: str


class Guard:
    """Recognises callers, and notices when one is no longer welcome. Used on the event loop only.

    Attributes:
        throttle: counts failures by peer.
    """

    def __init__(
        self, store: TokenStore, usual: Quota, *, certificates: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """Makes one.

        Args:
            store: the tokens.
            usual: the quota of an identity whose token says nothing.
            certificates: whether connections show client certificates.
            clock: seconds since 1970.
        """
        self._store, self._usual, self._certificates, self._clock = store, usual, certificates, clock
        self.throttle = Throttle()
        self._watchers: list[Callable[[str, str], None]] = []
        self._known: dict[str, str] = {}
        self._found_in = store.tokens
        self._found: dict[str, tuple[Entry, Caller]] = {}

    def hopeful(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Returns whether a call may turn out to be somebody's. If not, nothing of it need be read."""
        with suppress(NotAuthorisedError):  # a header that holds no token is nobody's
            secret = shown_token(metadata)
            return self._certificates if secret is None else self._by_token(secret, digest(secret)) is not None
        return False

    def identify(self, context: Any) -> Caller:
        """Returns who makes a call.

        Raises:
            NotAuthorisedError: that is not known.
        """
        secret, peer = shown_token(context.invocation_metadata() or ()), peer_name(context.peer())
        if secret is None:
            found = self._by_certificate(context.auth_context())
            if found is None:
                self._refuse(peer, f"this server asks who calls: {WANTED}, or join it with `umd join LINE`")
            return found
        key = digest(secret)
        self.throttle.check(peer, key)
        found = self._by_token(secret, key)
        if found is None:
            self._refuse(peer, _refusal(secret))
        self.throttle.accepted(peer, key)
        return found

    def _by_token(self, secret: str, key: str) -> Caller | None:
        now = self._clock()
        if self._found_in is not self._store.tokens:
            self._found_in, self._found = self._store.tokens, {}
        if key in self._found and self._found[key][0].live(now):
            return self._found[key][1]
        entry = self._store.tokens.find(secret, now)
        if entry is None and self._refresh():
            return self._by_token(secret, key)
        if entry is None or entry.joins:
            return None
        self._known[key] = entry.name
        self._found[key] = entry, Caller(entry.identity(self._usual), key)
        return self._found[key][1]

    def _by_certificate(self, shown: Mapping[str, Iterable[bytes]]) -> Caller | None:
        """Returns who a verified client certificate is for: its common name, else its first alternative name."""
        for field in ("x509_common_name", "x509_subject_alternative_name"):
            for raw in shown.get(field, ()):
                name = raw.decode("utf-8", "replace")
                if not NAME.fullmatch(name) or name in self._store.tokens.refused:
                    raise NotAuthorisedError(f"the certificate of {name[:64]!r} is refused here")
                entry = self._store.tokens.named(name)
                identity = Identity(name, quota=self._usual) if entry is None else entry.identity(self._usual)
                self._known[_CERTIFICATE + name] = name
                return Caller(identity, _CERTIFICATE + name)
        return None

    def _refuse(self, peer: str, why: str) -> NoReturn:
        if self.throttle.failed(peer):
            log("not_authenticated", peer=peer)
        raise NotAuthorisedError(why)

    # revoking

    def on_revoked(self, callback: Callable[[str, str], None]) -> None:
        """Has a function called with the name and the key of each caller that is no longer welcome."""
        self._watchers.append(callback)

    def _welcome(self, key: str) -> bool:
        tokens, now = self._store.tokens, self._clock()
        if key.startswith(_CERTIFICATE):
            return key.removeprefix(_CERTIFICATE) not in tokens.refused
        return any(entry.sha256 == key and entry.live(now) for entry in tokens.entries)

    def _refresh(self) -> bool:
        """Returns whether the token file has changed and could be read."""
        try:
            return self._store.refresh()
        except (UmdError, OSError) as error:
            log("tokens_unusable", error=str(error), effect="what the file said before stays in force")
            return False

    def check(self) -> None:
        """Tells the watchers about callers that are no longer welcome: revoked or expired."""
        self._refresh()
        for key in [key for key in self._known if not self._welcome(key)]:
            name = self._known.pop(key)
            log("revoked", name=name)
            for callback in self._watchers:
                callback(name, key)

    async def watch(self) -> None:
        """Checks now and then, until cancelled."""
        with suppress(asyncio.CancelledError):  # the end that its caller asked for
            while True:
                await asyncio.sleep(WATCH_SECONDS)
                self.check()


def shown_token(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Returns the token that a call shows, None when it shows none.

    Raises:
        NotAuthorisedError: it shows several, or something else.
    """
    shown = [value for key, value in metadata if key == "authorization"]
    if not shown:
        return None
    value = shown[0]
    if len(shown) > 1 or not isinstance(value, str) or not value[: len(_SCHEME)].lower() == _SCHEME:
        raise NotAuthorisedError(f"the metadata authorization is malformed: {WANTED}")
    if len(value) > TEXT_LIMIT + len(_SCHEME):
        raise NotAuthorisedError(f"a token has at most {TEXT_LIMIT} characters")
    return value[len(_SCHEME) :].strip()


def _refusal(secret: str) -> str:
    if secret.startswith(JOIN_PREFIX):
        return "this is a one-time token: `umd join LINE` exchanges it for a lasting one"
    return "the token is unknown, was revoked or has expired; the operator makes one with `umd token add NAME`"
