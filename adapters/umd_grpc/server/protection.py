"""What protects a server: who may listen in, who may call. Made from its settings."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc

from umd_core.errors import ConfigError, NotAuthorisedError, UmdError, UnsupportedError
from umd_grpc.addresses import is_every, is_local, is_unix, join_host, split_host
from umd_grpc.config.load import exposure
from umd_grpc.server import tls
from umd_grpc.server.access import AccessService
from umd_grpc.server.authenticate import Guard
from umd_grpc.server.entries import Entry, digest, new_secret
from umd_grpc.server.identity import LOCAL, Quota
from umd_grpc.server.interceptors import Anybody, Authentication
from umd_grpc.server.report import log
from umd_grpc.server.settings import Settings, TlsSettings
from umd_grpc.server.tokens import TokenFile, TokenStore

OWNER = "owner"
"""Name of the identity that the first join line of a new server makes."""


def check_addresses(listen: Sequence[str], *, allow_insecure: bool, protected: bool = False) -> None:
    """Checks that what is reachable from elsewhere is meant to be.

    Raises:
        NotAuthorisedError: an address is beyond loopback, unprotected, and that was not allowed.
    """
    for address in listen:
        if not (protected or allow_insecure or is_local(address)):
            raise NotAuthorisedError(exposure(address))


class Protection:
    """Certificate, tokens and the permissions of sockets.

    Attributes:
        guard: recognises callers; None where everybody may call.
    """

    def __init__(self, settings: Settings) -> None:
        """Reads, or makes, the files.

        Raises:
            UmdError: a file cannot be used, or an address must not be listened on.
        """
        self._settings = settings
        check_addresses(settings.listen, allow_insecure=settings.allow_insecure, protected=settings.tls.on)
        self.guard: Guard | None = None
        self._pair: tls.Pair | None = None
        try:
            self._read()
        except OSError as error:
            raise UnsupportedError(f"cannot use {error.filename}: {error.strerror}") from error

    def _read(self) -> None:
        settings = self._settings
        if settings.asks:
            self._tokens = TokenFile(settings.token_path)
            self.guard = Guard(TokenStore(self._tokens), settings.quota, certificates=bool(settings.tls.client_ca))
        if settings.tls.auto:
            self._pair = tls.automatic(settings.state_folder, _hosts(settings))
        elif settings.tls.on:
            self._files = tls.Files(settings.tls.cert, settings.tls.key)
            self._pair = self._files.pair
        self._authorities = tls.read_authorities(settings.tls.client_ca) if settings.tls.client_ca else None

    # listening

    def _credentials(self) -> grpc.ServerCredentials | None:
        if self._pair is None:
            return None
        return tls.credentials(self._pair, self._authorities, self._renewed)

    def _renewed(self) -> tls.Pair | None:
        """Returns a certificate that has been renewed. One that cannot be used yet leaves the old one in place."""
        if self._settings.tls.auto:
            return None
        try:
            found = self._files.renewed()
        except (UmdError, OSError) as error:
            log("certificate_unusable", error=str(error), effect="the one before stays in use")
            return None
        if found is not None:
            log("certificate_renewed", sha256=found.fingerprint)
        return found

    def listen(self, server: Any, address: str) -> str:
        """Adds an address to a server; returns it with its real port.

        Raises:
            UnsupportedError: it cannot be listened on.
        """
        credentials = None if is_unix(address) else self._credentials()
        before = os.umask(0o777 & ~self._settings.unix_mode)  # no moment with other permissions
        try:
            port = (
                server.add_insecure_port(address)
                if credentials is None
                else server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise UnsupportedError(f"cannot listen on {address}: {error}") from error
        finally:
            os.umask(before)
        if is_unix(address):
            return address
        return f"{address.rpartition(':')[0]}:{port}"

    def interceptors(self) -> tuple[Any, ...]:
        """Returns what must surround calls."""
        if self.guard is not None:
            return (Authentication(self.guard),)
        quota = self._settings.quota
        return () if quota == Quota() else (Anybody(replace(LOCAL, quota=quota)),)

    def services(self) -> tuple[AccessService, ...]:
        """Returns the services that only a protected server has."""
        return () if self.guard is None else (AccessService(self._tokens, self.guard.throttle),)

    # joining

    def first_join_line(self, addresses: Sequence[str]) -> str:
        """Returns what the first client joins with; "" when there is a token already, or none is needed.

        A line is made anew at each start until it has been used: the one printed last is good.
        """
        tcp = [address for address in addresses if not is_unix(address)]
        if not (self._settings.tls.auto and tcp):
            return ""
        tokens = self._tokens.load()
        if tokens.refused or any(not entry.joins for entry in tokens.entries):
            return ""
        entry = Entry(OWNER, admin=True)
        return invitation(self._settings, self._tokens, entry, self._settings.join_seconds, tcp[0], self._pair)


def invitation(
    settings: Settings, tokens: TokenFile, entry: Entry, seconds: float, address: str, pair: tls.Pair | None
) -> str:
    """Adds a one-time token and returns the line that carries it: URL, fingerprint, token.

    Args:
        settings: the server's.
        tokens: where the token is added.
        entry: who its user becomes; its secret and dates are filled in here.
        seconds: how long it is good.
        address: what the server listens on, with its real port.
        pair: the certificate; its fingerprint is in the line when the server made it itself.

    Raises:
        UmdError: see `TokenFile.add`.
    """
    secret, now = new_secret(joins=True), int(time.time())
    tokens.add(replace(entry, sha256=digest(secret), created=now, expires=int(now + seconds), joins=True))
    facts = [f"token={secret}"]
    if pair is not None and settings.tls.auto:
        facts.insert(0, f"sha256={pair.fingerprint}")
    scheme = "grpcs" if settings.tls.on else "grpc"
    device = (entry.devices or settings.devices)[0]
    return f"{scheme}://{public_address(settings, address)}/{device}#{'&'.join(facts)}"


def invite(settings: Settings, entry: Entry, seconds: float) -> str:
    """Returns a join line for a server that is set up so, running or not; see `invitation`.

    Where its state directory has a certificate of its own making and nothing else is said, it shows that one.

    Raises:
        ConfigError: its settings do not say how clients reach it.
    """
    address = next((address for address in settings.listen if not is_unix(address)), "")
    port = split_host(settings.advertise)[1] or split_host(address)[1]
    if not port or port == "0":
        raise ConfigError("", ["say how clients reach the server: --address host:port"])
    if settings.tls.client_ca:
        raise ConfigError("", ["with tls.client_ca the certificate says who calls: `umd token add NAME --certificate`"])
    if not settings.tls.on and (settings.state_folder / tls.CERTIFICATE).exists():
        settings = replace(settings, tls=TlsSettings(auto=True))
    pair = tls.automatic(settings.state_folder, _hosts(settings)) if settings.tls.auto else None
    return invitation(settings, TokenFile(settings.token_path), entry, seconds, address, pair)


def _hosts(settings: Settings) -> list[str]:
    """Returns names and addresses of the server that its settings name."""
    given = [address for address in (*settings.listen, settings.advertise) if address and not is_unix(address)]
    return [split_host(address)[0] for address in given if not is_every(address)]


def public_address(settings: Settings, address: str) -> str:
    """Returns "host:port" by which clients reach an address that is listened on."""
    host, port = split_host(address)
    if is_every(address):
        host = socket.gethostname()
    if settings.advertise:
        advertised, other_port = split_host(settings.advertise)
        host, port = advertised, other_port or port
    return join_host(host, port)
