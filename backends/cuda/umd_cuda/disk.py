"""Compiled modules on the disk: kept in one step, checked when read, done without where they cannot be kept."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import tempfile
from pathlib import Path

LOGGER = logging.getLogger("umd_cuda")
_MARK = b"umd:"
_SEAL = len(_MARK) + hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Returns the folder of compiled code: UMD_CUDA_CACHE, or umd under the user's cache folder."""
    chosen = os.environ.get("UMD_CUDA_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umd"


def place(parts: tuple[object, ...], suffix: str) -> Path:
    """Returns where the module lies that these parts (source, options, compiler, machine …) determine."""
    key = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:40]
    return cache_folder() / key[:2] / f"{key}{suffix}"


def find(path: Path) -> bytes | None:
    """Returns a module as it was kept, None when it is not there. A damaged one is removed, with a line in the log."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return None
    data = sealed[:-_SEAL]
    if data and sealed[-_SEAL:] == _seal(data):
        return data
    LOGGER.warning("the compiled module %s is damaged: it is removed and compiled again", path)
    with contextlib.suppress(OSError):  # one that stays is found damaged again
        path.unlink()
    return None


def keep(path: Path, data: bytes) -> bool:
    """Keeps a module, in one step and with its digest behind its last byte; returns whether that worked.

    Loaders of shared libraries do not look behind the end that the file's header states.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(prefix="new-", dir=path.parent)
        with os.fdopen(number, "wb") as file:
            file.write(data + _seal(data))
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                os.unlink(temporary)
        warn_unkept(str(cache_folder()), error.strerror or str(error))
        return False
    return True


@functools.cache
def warn_unkept(folder: str, reason: str) -> None:
    """Says, once for a folder and a reason, that compiled modules are not kept."""
    LOGGER.warning(
        "compiled modules cannot be kept in %s: %s. Everything works, but each process compiles again: "
        "free some space, or set UMD_CUDA_CACHE to another folder",
        folder,
        reason,
    )


def _seal(data: bytes) -> bytes:
    return _MARK + hashlib.sha256(data).digest()
