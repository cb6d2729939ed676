"""How a server is set up, made from the table of fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from umd_grpc.config.fields import FIELDS, defaults
from umd_grpc.files import state_folder
from umd_grpc.limits import DEFAULT, Limits
from umd_grpc.server.identity import Quota

DEFAULT_LISTEN: tuple[str, ...] = FIELDS["listen"].default
TOKENS_NAME = "tokens.json"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Where the certificate comes from; see the fields `tls.…` in docs/service-configuration.md."""

    auto: bool = False
    cert: str = ""
    key: str = ""
    client_ca: str = ""

    @property
    def on(self) -> bool:
        """Whether TCP addresses are served with TLS."""
        return self.auto or bool(self.cert)


@dataclass(frozen=True, slots=True)
class WeightsSettings:
    """The folder in which weights are kept, "" for none, and how many bytes of them."""

    dir: str = ""
    size: int = FIELDS["weights.size"].default


@dataclass(frozen=True, slots=True)
class SharedMemorySettings:
    """Bytes that a session on the same host may share with the server, 0 for none; and all sessions together."""

    size: int = FIELDS["shared_memory.size"].default
    total: int = FIELDS["shared_memory.total"].default


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Which devices have processes of their own: "auto", "on" or "off"; and the longest pause before a new one."""

    use: str = FIELDS["workers.use"].default
    pause: float = FIELDS["workers.pause"].default


@dataclass(frozen=True, slots=True)
class KeepaliveSettings:
    """Seconds of silence after which a client is asked whether it is there, and how long its answer may take."""

    time: float = FIELDS["keepalive.time"].default
    timeout: float = FIELDS["keepalive.timeout"].default


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server is set up.

    Attributes:
        devices: names of the devices to serve; the first is the default.
        listen: addresses "host:port" (port 0: any free one) and "unix:/path".
        grace_seconds: how long a drain waits for work under way.
        allow_insecure: whether addresses beyond loopback may be listened on without TLS and a token.
        limits: what one client may ask for.
        tls: the certificate.
        tokens: the token file; "" for none, or for the usual one with TLS.
        quota: of an identity whose token says nothing.
        weights: those that are kept for clients.
        shared_memory: what clients on the same host may share.
        workers: which devices have processes of their own.
        keepalive: when a client that says nothing counts as gone.
        state_dir: the folder of the server's own files; "" for the usual one.
        advertise: host, or host:port, by which clients reach the server; "" for what it listens on.
        unix_mode: permissions of unix sockets.
        join_seconds: how long the token of a join line is good.
        metrics: "host:port" of the metrics; "" for none.
        traces: whether calls are traced.
    """

    devices: tuple[str, ...] = FIELDS["devices"].default
    listen: tuple[str, ...] = DEFAULT_LISTEN
    grace_seconds: float = FIELDS["grace"].default
    allow_insecure: bool = False
    limits: Limits = field(default=DEFAULT)
    tls: TlsSettings = field(default=TlsSettings())
    tokens: str = ""
    quota: Quota = field(default=Quota())
    weights: WeightsSettings = field(default=WeightsSettings())
    shared_memory: SharedMemorySettings = field(default=SharedMemorySettings())
    workers: WorkerSettings = field(default=WorkerSettings())
    keepalive: KeepaliveSettings = field(default=KeepaliveSettings())
    state_dir: str = ""
    advertise: str = ""
    unix_mode: int = FIELDS["unix_mode"].default
    join_seconds: float = FIELDS["join_expiry"].default
    metrics: str = ""
    traces: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings of a configuration's values, by key; those left out are as usual."""
        v = {**defaults(), **values}
        return cls(
            devices=tuple(dict.fromkeys(name if ":" in name else f"{name}:0" for name in v["devices"])),
            listen=tuple(v["listen"]),
            grace_seconds=v["grace"],
            allow_insecure=v["allow_insecure"],
            limits=Limits(**{k: type(getattr(DEFAULT, k))(x) for k, x in _table(v, "limits", Limits).items()}),
            tls=TlsSettings(**_table(v, "tls", TlsSettings)),
            tokens=v["tokens"],
            quota=Quota(**_table(v, "quota", Quota)),
            weights=WeightsSettings(**_table(v, "weights", WeightsSettings)),
            shared_memory=SharedMemorySettings(**_table(v, "shared_memory", SharedMemorySettings)),
            workers=WorkerSettings(**_table(v, "workers", WorkerSettings)),
            keepalive=KeepaliveSettings(**_table(v, "keepalive", KeepaliveSettings)),
            state_dir=v["state_dir"],
            advertise=v["advertise"],
            unix_mode=v["unix_mode"],
            join_seconds=v["join_expiry"],
            metrics=v["metrics"],
            traces=v["traces"],
        )

    @property
    def asks(self) -> bool:
        """Whether clients are asked who they are."""
        return bool(self.tokens) or self.tls.on

    @property
    def state_folder(self) -> Path:
        """The folder of the server's own files."""
        return state_folder(self.state_dir)

    @property
    def token_path(self) -> Path:
        """The token file."""
        return Path(self.tokens).expanduser() if self.tokens else self.state_folder / TOKENS_NAME


def _table(values: Mapping[str, Any], table: str, cls: Any) -> dict[str, Any]:
    """Returns the values of a table of the file, for the fields of a dataclass that the table has."""
    keys = {f.name: f"{table}.{f.name}" for f in fields(cls)}
    return {name: values[key] for name, key in keys.items() if key in values}
