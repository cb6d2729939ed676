"""Files that hold secrets: where they are, written whole or not at all, readable by their owner only."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from umd_core.errors import LimitError, NotAuthorisedError, UnsupportedError

PRIVATE = 0o600


def state_folder(given: str = "") -> Path:
    """Returns the folder of a server's certificate and tokens: the one given, UMD_STATE_DIR, or the user's."""
    found = given or os.environ.get("UMD_STATE_DIR")
    return Path(found).expanduser() if found else _home("XDG_STATE_HOME", ".local/state") / "umd"


def config_folder() -> Path:
    """Returns the folder of a user's settings."""
    return _home("XDG_CONFIG_HOME", ".config") / "umd"


def _home(variable: str, usual: str) -> Path:
    found = os.environ.get(variable, "")
    if os.path.isabs(found):  # a relative one is to be ignored (XDG)
        return Path(found)
    try:
        return Path.home() / usual
    except RuntimeError:
        raise UnsupportedError(f"there is no home directory: set {variable}") from None


def make_private(folder: Path) -> None:
    """Makes a folder that only its owner enters. One that is there stays as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Replaces a file at once: whoever reads it finds the old bytes or the new ones. Nobody else may read it."""
    make_private(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):  # it was moved already
            temporary.unlink()
        raise


def read_limited(path: Path, limit: int) -> bytes:
    """Returns the bytes of a file.

    Raises:
        OSError: it cannot be read.
        LimitError: it has more than `limit` bytes.
    """
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise LimitError(f"bytes of {path}", os.path.getsize(path), limit)
    return data


def read_private(path: Path, limit: int) -> bytes:
    """Returns the bytes of a file that nobody but its owner may read or write; see `read_limited`.

    Raises:
        NotAuthorisedError: others may.
    """
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise NotAuthorisedError(f"others may use {path} (mode {mode:03o}); `chmod 600 {path}` makes it private")
    return read_limited(path, limit)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Holds the lock of a file: one process at a time changes it."""
    make_private(path.parent)
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
