"""Who calls, and how much of the server they may use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from umd_core.errors import NotAuthorisedError, QuotaError

MEMORY_RETRY_SECONDS = SESSION_RETRY_SECONDS = 1.0
BYTES_RETRY_SECONDS = 0.1
_BURST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Quota:
    """What one identity may use at one time, over all of its sessions. None: as much as there is.

    Attributes:
        memory: bytes of device memory.
        sessions: open sessions.
        in_flight: bytes of messages and transfers that the server holds and has not carried out.
        ops_per_second: translations and submissions in a second; a second's worth may come at once.
    """

    memory: int | None = None
    sessions: int | None = None
    in_flight: int | None = None
    ops_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller that has been recognised.

    Attributes:
        name: of the token or the certificate; "local" where the server asks for neither.
        devices: what it may use; None for every device of the server.
        weight: its share of a device beside the others'.
        admin: whether it sees what others do.
    """

    name: str
    devices: frozenset[str] | None = None
    quota: Quota = field(default=Quota())
    weight: int = 1
    admin: bool = False

    def check_device(self, device: str) -> None:
        """Checks that the identity may use a device.

        Raises:
            NotAuthorisedError: it may not.
        """
        if self.devices is not None and device not in self.devices:
            raise NotAuthorisedError(
                f"{self.name} may use {', '.join(sorted(self.devices)) or 'no device'}, not {device}"
            )


LOCAL = Identity("local", admin=True)
CALLER: ContextVar[Identity] = ContextVar("umd_caller", default=LOCAL)
"""Who makes the call that the current task serves."""


@dataclass(slots=True)
class Usage:
    """What an identity uses now. Units as in `Quota`; `ops` counts since the start."""

    memory: int = 0
    sessions: int = 0
    in_flight: int = 0
    ops: int = 0


class Account:
    """The use that one identity makes of the server. Callable from any thread.

    Attributes:
        identity: whose it is; its quota may change while it is in use.
    """

    def __init__(self, identity: Identity, clock: Callable[[], float] = time.monotonic) -> None:
        self.identity, self._clock = identity, clock
        self._usage, self._lock = Usage(), threading.Lock()
        self._tokens, self._filled = float(identity.quota.ops_per_second or 0) * _BURST_SECONDS, clock()

    @property
    def usage(self) -> Usage:
        """A copy of what is in use."""
        with self._lock:
            return replace(self._usage)

    def take_memory(self, size: int) -> None:
        """Counts `size` bytes of device memory.

        Raises:
            QuotaError: it would be too much.
        """
        with self._lock:
            _check("memory in bytes", self._usage.memory + size, self.identity.quota.memory, MEMORY_RETRY_SECONDS)
            self._usage.memory += size

    def give_memory(self, size: int) -> None:
        """Takes back bytes of device memory."""
        with self._lock:
            self._usage.memory -= size

    @property
    def limited(self) -> bool:
        """Whether memory or operations have a limit."""
        return self.identity.quota.memory is not None or self.identity.quota.ops_per_second is not None

    def count(self, memory: int = 0, ops: int = 0) -> None:
        """Counts what has been used already, whatever the quota."""
        with self._lock:
            self._usage.memory += memory
            self._usage.ops += ops

    def open_session(self) -> None:
        """Counts a session.

        Raises:
            QuotaError: it would be one too many.
        """
        with self._lock:
            _check("sessions", self._usage.sessions + 1, self.identity.quota.sessions, SESSION_RETRY_SECONDS)
            self._usage.sessions += 1

    def close_session(self) -> None:
        """Takes back a session."""
        with self._lock:
            self._usage.sessions -= 1

    def has_room(self, size: int) -> bool:
        """Returns whether `size` more bytes may be in flight; any size may when nothing is."""
        limit = self.identity.quota.in_flight
        with self._lock:
            return limit is None or not self._usage.in_flight or self._usage.in_flight + size <= limit

    def take_bytes(self, size: int) -> None:
        """Counts bytes in flight (see `has_room`: whoever streams stops reading instead of failing)."""
        with self._lock:
            self._usage.in_flight += size

    def give_bytes(self, size: int) -> None:
        """Takes back bytes in flight."""
        with self._lock:
            self._usage.in_flight -= size

    def take_ops(self, count: int) -> None:
        """Counts translations or submissions against the rate.

        Raises:
            QuotaError: they come too fast; it says when there is room again.
        """
        with self._lock:
            rate = self.identity.quota.ops_per_second
            if rate is not None:
                now = self._clock()
                most = max(rate * _BURST_SECONDS, float(count))
                self._tokens = min(most, self._tokens + (now - self._filled) * rate)
                self._filled = now
                if self._tokens < count:
                    raise QuotaError("ops per second", rate, round((count - self._tokens) / rate, 3))
                self._tokens -= count
            self._usage.ops += count


class Accounts:
    """The accounts of a server, by the identity's name. Callable from any thread."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._lock = threading.Lock()

    def of(self, identity: Identity) -> Account:
        """Returns an identity's account, with the quota that it has now."""
        with self._lock:
            account = self._accounts.get(identity.name)
            if account is None:
                account = self._accounts[identity.name] = Account(identity)
            account.identity = identity
            return account

    def all(self) -> list[Account]:
        """Returns every account."""
        with self._lock:
            return list(self._accounts.values())


def _check(what: str, wanted: int, limit: int | None, retry_seconds: float) -> None:
    if limit is not None and wanted > limit:
        raise QuotaError(what, limit, retry_seconds)
