"""`umd token`: who may use a server, and how much of it. A running server notices within a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from umd_cli.output import Json, note, show, table

if TYPE_CHECKING:
    from umd_grpc.server import Settings
    from umd_grpc.server.entries import Entry

Name = Annotated[str, typer.Argument(help="Of the identity: 1 to 64 letters, digits and . _ @ -")]
Config = Annotated[str | None, typer.Option("--config", "-c", help="The server's configuration file.")]
Tokens = Annotated[str | None, typer.Option("--tokens", help="The server's token file.")]
StateDir = Annotated[str | None, typer.Option("--state-dir", help="The server's state directory.")]
Devices = Annotated[list[str] | None, typer.Option("--device", "-d", help="What it may use; may be repeated.")]
Memory = Annotated[str | None, typer.Option("--memory", help='Device memory, for example "8GiB".')]
Sessions = Annotated[int | None, typer.Option("--sessions", min=1, help="Open sessions.")]
InFlight = Annotated[str | None, typer.Option("--in-flight", help="Bytes that wait to be carried out.")]
Rate = Annotated[int | None, typer.Option("--ops-per-second", min=1, help="Translations and submissions a second.")]
Weight = Annotated[int, typer.Option("--weight", min=1, max=1000, help="Its share of a device beside the others'.")]
Admin = Annotated[bool, typer.Option("--admin", help="It sees what others do (`umd top`).")]
Expires = Annotated[str | None, typer.Option("--expires", help='For how long it is good, for example "30d".')]


def add(
    name: Name,
    memory: Memory = None,
    sessions: Sessions = None,
    in_flight: InFlight = None,
    ops_per_second: Rate = None,
    device: Devices = None,
    weight: Weight = 1,
    admin: Admin = False,
    expires: Expires = None,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="No token: the identity shows a client certificate of this name.")
    ] = False,
    config: Config = None,
    tokens: Tokens = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Make a token and print it: it is shown this once, the server keeps its hash."""
    from dataclasses import replace

    from umd_grpc.server.entries import digest, new_secret
    from umd_grpc.server.tokens import TokenFile

    quota = {"memory": memory, "sessions": sessions, "in_flight": in_flight, "ops_per_second": ops_per_second}
    entry = _entry(name, quota, device, weight, admin, expires)
    secret = "" if certificate else new_secret()
    file = TokenFile(_settings(config, tokens, state_dir).token_path)
    file.add(replace(entry, sha256=digest(secret) if secret else ""))
    if json:
        show({**_described(entry), "token": secret, "file": str(file.path)}, json, list)
    elif secret:
        sys.stdout.write(f"{secret}\n")
        note(f"shown once; the client shows it as UMD_TOKEN. Kept as a hash in {file.path}")
    else:
        note(f"client certificates of {name} are accepted; kept in {file.path}")


def invite(
    name: Name,
    address: Annotated[
        str | None, typer.Option("--address", help="host:port by which the client reaches the server.")
    ] = None,
    memory: Memory = None,
    sessions: Sessions = None,
    in_flight: InFlight = None,
    ops_per_second: Rate = None,
    device: Devices = None,
    weight: Weight = 1,
    admin: Admin = False,
    expires: Expires = None,
    config: Config = None,
    tokens: Tokens = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Print a line for `umd join`, good once and for an hour unless --expires says otherwise."""
    from dataclasses import replace

    from umd_grpc.config.units import read_duration
    from umd_grpc.server.protection import invite

    quota = {"memory": memory, "sessions": sessions, "in_flight": in_flight, "ops_per_second": ops_per_second}
    settings = _settings(config, tokens, state_dir)
    if address:
        settings = replace(settings, advertise=address)
    seconds = settings.join_seconds if expires is None else _read("--expires", read_duration, expires)
    line = invite(settings, _entry(name, quota, device, weight, admin, None), seconds)
    show({"name": name, "join": line}, json, lambda: [line])


def revoke(
    name: Name,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="Refuse client certificates of the name, token or not.")
    ] = False,
    config: Config = None,
    tokens: Tokens = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Take a token away: a running server refuses it, and ends its sessions, within two seconds."""
    from umd_grpc.server.tokens import TokenFile

    file = TokenFile(_settings(config, tokens, state_dir).token_path)
    file.revoke(name, certificate=certificate)
    show({"revoked": name, "file": str(file.path)}, json, lambda: [f"{name} is revoked"])


def listing(config: Config = None, tokens: Tokens = None, state_dir: StateDir = None, json: Json = False) -> None:
    """List the identities, what they may use, and the names whose certificates are refused."""
    from umd_grpc.server.tokens import TokenFile

    file = TokenFile(_settings(config, tokens, state_dir).token_path)
    found = file.load()
    rows = [_described(entry) for entry in found.entries]
    document = {"file": str(file.path), "identities": rows, "refused": sorted(found.refused)}
    columns = tuple(_described(_entry("x", {}, None, 1, False, None)))
    shown = [["" if row[column] is None else row[column] for column in columns] for row in rows]
    show(
        document,
        json,
        lambda: [
            table(tuple(column.replace("_", " ") for column in columns), shown),
            *([f"certificates refused: {', '.join(sorted(found.refused))}"] if found.refused else []),
        ],
    )


COMMANDS: dict[str, Callable[..., None]] = {"add": add, "invite": invite, "revoke": revoke, "list": listing}


def _settings(config: str | None, tokens: str | None, state_dir: str | None) -> Settings:
    """Returns the settings of the server that a command is about."""
    from umd_grpc.config.load import effective
    from umd_grpc.server import Settings

    flags = {"tokens": tokens, "state_dir": state_dir}
    return Settings.of(effective(config, {key: value for key, value in flags.items() if value}))


def _read(option: str, read: Any, value: str) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} {error}", param_hint=option) from None


def _entry(
    name: str, quota: Mapping[str, Any], devices: list[str] | None, weight: int, admin: bool, expires: str | None
) -> Entry:
    """Returns an entry without a secret."""
    from umd_grpc.config.fields import FIELDS
    from umd_grpc.config.units import read_duration
    from umd_grpc.server.entries import Entry
    from umd_grpc.server.identity import Quota

    given = {key: value for key, value in quota.items() if value is not None}
    read = {key: _read(f"--{key}".replace("_", "-"), FIELDS[f"quota.{key}"].read, v) for key, v in given.items()}
    now = int(time.time())
    until = None if expires is None else now + int(_read("--expires", read_duration, expires))
    allowed = None if devices is None else tuple(d if ":" in d else f"{d}:0" for d in devices)
    return Entry(name, created=now, expires=until, devices=allowed, quota=Quota(**read), weight=weight, admin=admin)


def _described(entry: Entry) -> dict[str, Any]:
    from umd_grpc.config.units import show_size

    kind = "one-time" if entry.joins else "token" if entry.sha256 else "certificate"
    quota = entry.quota
    return {
        "name": entry.name,
        "kind": kind,
        "created": _date(entry.created),
        "expires": None if entry.expires is None else _date(entry.expires),
        "devices": None if entry.devices is None else ", ".join(entry.devices),
        "weight": entry.weight,
        "admin": "yes" if entry.admin else None,
        "memory": None if quota.memory is None else show_size(quota.memory),
        "sessions": quota.sessions,
        "in_flight": None if quota.in_flight is None else show_size(quota.in_flight),
        "ops_per_second": quota.ops_per_second,
    }


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
