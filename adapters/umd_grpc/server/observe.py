"""Looks at a server: its state, gathered from those who know the parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from umd_grpc.server.identity import Accounts
from umd_grpc.server.live import LiveSession
from umd_grpc.server.port import DevicePort
from umd_grpc.server.report import Report
from umd_grpc.server.state import CacheState, DeviceState, IdentityState, ServerState, SessionState

Caches = Mapping[str, Callable[[], tuple[int, int]]]


class Observer:
    """Gathers the server's state. Callable from any thread: what it reads are numbers that change meanwhile.

    Attributes:
        draining: whether the server shuts down.
    """

    def __init__(
        self,
        version: str,
        report: Report,
        accounts: Accounts,
        hosts: Mapping[str, DevicePort],
        sessions: Callable[[], Sequence[LiveSession]],
        caches: Caches,
    ) -> None:
        """`sessions` returns those that are open, `caches` (hits, misses) of each cache."""
        self._version, self._report, self._accounts = version, report, accounts
        self._hosts, self._sessions, self._caches = hosts, sessions, caches
        self._start = time.monotonic()
        self.draining = False

    def state(self) -> ServerState:
        """Returns the state now."""
        sessions = tuple(_session(session) for session in self._sessions())
        mean, p99 = self._report.recent
        return ServerState(
            version=self._version,
            uptime=time.monotonic() - self._start,
            draining=self.draining,
            counters=self._report.counters,
            latencies=self._report.histogram,
            mean=mean,
            p99=p99,
            devices=tuple(_device(host, sessions) for host in self._hosts.values()),
            identities=tuple(
                IdentityState(account.identity.name, account.usage, account.identity.quota)
                for account in self._accounts.all()
            ),
            sessions=sessions,
            caches=tuple(CacheState(name, *look()) for name, look in self._caches.items()),
        )


def _session(session: LiveSession) -> SessionState:
    return SessionState(
        number=session.number,
        identity=session.identity.name,
        device=session.host.name,
        client=session.client,
        seconds=time.monotonic() - session.opened,
        memory=session.tally.memory,
        waiting=session.waiting,
        submissions=session.tally.ops,
        detached=session.detached,
    )


def _device(host: DevicePort, sessions: Sequence[SessionState]) -> DeviceState:
    own = [session for session in sessions if session.device == host.name]
    used = sum(session.memory for session in own)
    return DeviceState(host.name, host.caps.memory, used, host.depth, host.epoch, len(own), host.pid, host.restarts)
