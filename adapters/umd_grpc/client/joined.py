"""The servers that a user has joined: fingerprints and tokens, in a file of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from umd_core.errors import ConfigError, UnsupportedError
from umd_grpc.files import config_folder, locked, read_private, write_private

FILE_LIMIT = 4 << 20
_NAME, _VERSION = "joined.json", 1


class Joined(NamedTuple):
    """What is known of one server: its certificate's fingerprint ("" for the system's roots), token, identity."""

    fingerprint: str
    token: str
    name: str = ""


def path() -> Path:
    """Returns where the file is."""
    return config_folder() / _NAME


def find(target: str) -> Joined | None:
    """Returns what is known of a server, None when it was not joined.

    Raises:
        ConfigError, NotAuthorisedError: the file is damaged, or others may read it.
    """
    try:
        return _load().get(target)
    except UnsupportedError:  # no home directory, so nothing was kept there
        return None


def keep(target: str, joined: Joined) -> None:
    """Remembers a server."""
    with locked(path()):
        servers = {**_load(), target: joined}
        document = {"version": _VERSION, "servers": {name: found._asdict() for name, found in servers.items()}}
        write_private(path(), json.dumps(document, indent=1).encode() + b"\n")


def check() -> None:
    """Checks that the file can be written, before a one-time token is spent.

    Raises:
        UmdError, OSError: it cannot.
    """
    with locked(path()):
        _load()


def _load() -> dict[str, Joined]:
    try:
        document: Any = json.loads(read_private(path(), FILE_LIMIT))
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']}")
        servers: dict[str, dict[str, Any]] = document["servers"]
        if not all(isinstance(fact, str) for facts in servers.values() for fact in facts.values()):
            raise TypeError("a fact that is no text")
        found = {target: Joined(**facts) for target, facts in servers.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(str(path()), [f"cannot be read: {error.strerror}"]) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(str(path()), [f"is no list of joined servers: {type(error).__name__}: {error}"]) from error
    return found
