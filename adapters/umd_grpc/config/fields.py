"""The table of everything that can be set: flags, checks and documentation read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from umd_grpc.config.units import COUNT, DURATION, MODE, PATH, SIZE, SWITCH, TEXT, TEXTS, Kind, choice
from umd_grpc.limits import DEFAULT

_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Field:
    """One setting.

    Attributes:
        key: its name in the file, with the table that it is in: "tls.cert".
        kind: how its values are written.
        default: its value when nothing is said; None where that means "no limit" or "none".
        meaning: what it does, one line.
        flags: on the command line; made from the key when there are none.
        least, most: the range of a number.
    """

    key: str
    kind: Kind
    default: Any
    meaning: str
    flags: tuple[str, ...] = ()
    least: int = 0
    most: int = _MOST

    @property
    def options(self) -> tuple[str, ...]:
        """Its flags, the long one first."""
        return self.flags or ("--" + self.key.replace(".", "-").replace("_", "-"),)

    @property
    def parameter(self) -> str:
        """Its name as a parameter of a function."""
        return self.key.replace(".", "_")

    def read(self, value: Any) -> Any:
        """Returns the value of what a file or a flag says.

        Raises:
            ValueError: it does not fit; the message goes after the key.
        """
        found = self.kind.read(value)
        if isinstance(found, (int, float)) and not isinstance(found, bool) and not self.least <= found <= self.most:
            raise ValueError(f"is outside {self.show(self.least)} to {self.show(self.most)}")
        return found

    def show(self, value: Any) -> str:
        """Returns a value as TOML, "" for None."""
        return "" if value is None else self.kind.show(value)


def _limit(name: str, kind: Kind, meaning: str, least: int, most: int) -> Field:
    return Field(f"limits.{name}", kind, getattr(DEFAULT, name), meaning, least=least, most=most)


_FIELDS = (
    Field("devices", TEXTS, ("sim:0",), 'what to serve: "sim" (its device 0) or "sim:0"; the first is the default',
          ("--device", "--backend", "-d")),
    Field("listen", TEXTS, ("127.0.0.1:50051",), "addresses: host:port (port 0: any free one) or unix:/path",
          ("--listen", "-l")),
    Field("grace", DURATION, 30.0, "how long SIGTERM leaves to work under way", most=86_400),
    Field("allow_insecure", SWITCH, False, "listen beyond loopback without TLS and tokens"),
    Field("advertise", TEXT, "", "host, or host:port, by which clients reach the server, for the join line; else the "
          "address listened on, or the host's name"),
    Field("unix_mode", MODE, 0o600, "permissions of unix sockets"),
    Field("state_dir", PATH, "", "where the certificate and the tokens are kept; else UMD_STATE_DIR, "
          "XDG_STATE_HOME/umd or ~/.local/state/umd"),
    Field("tokens", PATH, "", "token file; clients must show a token. With TLS it is tokens.json in the state "
          "directory unless said"),
    Field("join_expiry", DURATION, 3600.0, "how long the one-time token of a join line is good", least=1,
          most=30 * 86_400),
    Field("metrics", TEXT, "", "host:port at which Prometheus finds /metrics over HTTP; not for the world to reach"),
    Field("traces", SWITCH, False, "OpenTelemetry spans of calls and of the work on devices"),
    Field("tls.auto", SWITCH, False, "make a certificate, keep it, and print a join line", ("--auto-tls",)),
    Field("tls.cert", PATH, "", "certificate chain, PEM; read anew when the file changes"),
    Field("tls.key", PATH, "", "its private key, PEM"),
    Field("tls.client_ca", PATH, "", "PEM of those who sign client certificates; clients must show one, and its common "
          "name says who they are"),
    Field("quota.memory", SIZE, None, "device memory of one identity, unless its token says otherwise", least=1),
    Field("quota.sessions", COUNT, None, "open sessions of one identity", least=1),
    Field("quota.in_flight", SIZE, None, "bytes that the server holds for one identity and has not carried out",
          least=1),
    Field("quota.ops_per_second", COUNT, None, "translations and submissions of one identity in a second", least=1),
    Field("weights.dir", PATH, "", "folder in which weights are kept that clients have sent; they need not send them "
          "again. Nothing said: none are kept", ("--weights",)),
    Field("weights.size", SIZE, 20 << 30, "all that is kept; what was not used for longest goes first", least=1 << 20),
    Field("shared_memory.size", SIZE, 64 << 20, "what a session may share with the server when its client is on "
          "the same host; 0 for none", most=1 << 34),
    Field("shared_memory.total", SIZE, 1 << 30, "what all sessions may share together; those beyond it use the stream"),
    Field("workers.use", choice("auto", "on", "off"), "auto", "which devices live in processes of their own: on "
          "(all), off (none), auto (those of cuda)", ("--workers",)),
    Field("workers.pause", DURATION, 10.0, "the longest pause before a worker that ended is started again", most=3_600),
    Field("keepalive.time", DURATION, 30.0, "how long a connection may carry nothing before the server asks whether "
          "its client is still there; less than what balancers and firewalls on the way allow", least=1, most=86_400),
    Field("keepalive.timeout", DURATION, 20.0, "how long the answer may take; then the client counts as gone", least=1,
          most=86_400),
    _limit("message", SIZE, "one message of any call", 1 << 20, 1 << 30),
    _limit("frame", SIZE, "one session frame that is neither a program nor a write", 1 << 10, 1 << 30),
    _limit("inline", SIZE, "one inline read or write", 1 << 10, 1 << 29),
    _limit("chunk", SIZE, "data in one message of Write and Read", 1 << 10, 1 << 29),
    _limit("transfer", SIZE, "one transfer", 1 << 10, 1 << 40),
    _limit("frames", COUNT, "frames in a message", 1, 1 << 20),
    _limit("handles", COUNT, "handle ids of each kind in a session", 1, 1 << 31),
    _limit("waits", COUNT, "unfinished submissions, waits and transfers in a session", 1, 1 << 20),
    _limit("credit", SIZE, "messages of a session that wait to be carried out; beyond it the server stops reading",
           1 << 10, 1 << 34),
    _limit("unread", SIZE, "answers that a client has not taken; beyond it its session stands still", 1 << 10, 1 << 34),
    _limit("stall_seconds", DURATION, "how long a transfer may stand still", 1, 86_400),
    _limit("half_closed_seconds", DURATION, "the same, when the client has sent its last message and no call has taken "
           "the transfer", 0, 86_400),
    _limit("queues", COUNT, "queues of a session with a lease", 1, 1 << 20),
    _limit("lease_seconds", DURATION, "the longest that a session may outlive its stream, in whole seconds", 0,
           30 * 86_400),
    _limit("submission_seconds", DURATION, "the longest that one submission may run; 0 for no limit", 0, 30 * 86_400),
    _limit("look_seconds", DURATION, "between looks at work that a device does in the background", 0, 10),
)  # fmt: skip

FIELDS: Mapping[str, Field] = {field.key: field for field in _FIELDS}
"""Every setting by its key, in the order of the documentation."""


def defaults() -> dict[str, Any]:
    """Returns the values when nothing is said."""
    return {key: field.default for key, field in FIELDS.items()}
