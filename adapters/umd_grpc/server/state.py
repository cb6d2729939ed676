"""What a server is doing at one moment: the source of the metrics and of `umd top`."""

from __future__ import annotations

from dataclasses import dataclass

from umd_grpc.server.identity import Quota, Usage


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device: memory in bytes, of all and in use by sessions; `queue_depth` counts jobs that wait for its thread.

    `worker_pid` is its own process, 0 when it has none, `worker_restarts` how often that was started again.
    """

    name: str
    memory: int
    memory_used: int
    queue_depth: int
    epoch: int
    sessions: int
    worker_pid: int
    worker_restarts: int


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session.

    Attributes:
        client: what the client calls itself.
        seconds: since it was opened.
        memory: bytes of its buffers.
        waiting: bytes of messages that are not carried out yet.
        detached: whether its client is gone while its lease runs.
    """

    number: int
    identity: str
    device: str
    client: str
    seconds: float
    memory: int
    waiting: int
    submissions: int
    detached: bool


@dataclass(frozen=True, slots=True)
class IdentityState:
    """What an identity uses, and may use."""

    name: str
    usage: Usage
    quota: Quota


@dataclass(frozen=True, slots=True)
class CacheState:
    """Look-ups of a cache since the start."""

    name: str
    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class ServerState:
    """The server.

    Attributes:
        counters: `Report.counters`, since the start.
        latencies: translations since the start by how long they took: counts per bound of `report.BOUNDS`, one more for
            the rest, and the sum in seconds.
        mean, p99: seconds of a translation, since the last line of the log.
    """

    version: str
    uptime: float
    draining: bool
    counters: dict[str, int]
    latencies: tuple[tuple[int, ...], float]
    mean: float
    p99: float
    devices: tuple[DeviceState, ...]
    identities: tuple[IdentityState, ...]
    sessions: tuple[SessionState, ...]
    caches: tuple[CacheState, ...]

    def seen_by(self, identity: str) -> ServerState:
        """Returns what an identity that is no administrator sees: of identities and sessions its own."""
        return ServerState(
            self.version, self.uptime, self.draining, self.counters, self.latencies, self.mean, self.p99, self.devices,
            tuple(found for found in self.identities if found.name == identity),
            tuple(found for found in self.sessions if found.identity == identity),
            self.caches,
        )  # fmt: skip
