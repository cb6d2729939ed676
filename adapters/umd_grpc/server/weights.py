"""Weights kept on disk: bytes that clients have sent, found again by their sha256, within one identity.

A file is `OWNER/SHA256`, where OWNER is the sha256 of the identity's name: whoever asks can only find what the same
identity has sent. Nothing of what is on the disk is believed: the bytes are hashed again whenever they are to be used.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from umd_core.errors import InternalError, UnsupportedError
from umd_grpc.files import PRIVATE, make_private
from umd_grpc.server.report import log

PIECE = 4 << 20
Result = TypeVar("Result")
_PART = ".part-"


class Kept:
    """An open file whose bytes were found to have the hash that was asked for."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on.

        Raises:
            InternalError: they are not there any more.
        """
        try:
            found = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise InternalError(f"kept weights cannot be read: {error.strerror}") from error
        if len(found) != size:
            raise InternalError(f"kept weights were cut off at {offset + len(found)}")
        return found

    def close(self) -> None:
        """Gives the file back."""
        os.close(self._descriptor)


class Weights:
    """A folder of weights, of which those used last stay. Callable from any thread; most calls wait for the disk."""

    def __init__(self, folder: Path, size: int) -> None:
        """Keeps at most `size` bytes; what earlier servers have left in the folder counts.

        Raises:
            OSError: the folder cannot be used.
        """
        self._folder, self._size, self._lock = folder, size, threading.Lock()
        self._files: OrderedDict[str, int] = OrderedDict()
        self._used = self._reserved = 0
        self._told = False
        self.hits = self.misses = 0
        make_private(folder)
        os.chmod(folder, 0o700)
        self._scan()

    def _scan(self) -> None:
        """Finds what is there, oldest use first, and removes what was left unfinished."""
        found = []
        for path in self._folder.glob("*/*"):
            if path.name.startswith(_PART):
                path.unlink(missing_ok=True)
            elif path.is_file() and not path.is_symlink():
                status = path.stat()
                found.append((status.st_mtime_ns, f"{path.parent.name}/{path.name}", status.st_size))
        for _, key, size in sorted(found):
            self._files[key] = size
            self._used += size
        self._make_room()

    def _make_room(self) -> None:
        """Removes what was not used for longest, until the rest fits."""
        while self._files and self._used + self._reserved > self._size:
            key, size = self._files.popitem(last=False)
            self._used -= size
            with suppress(OSError):  # somebody else has removed it
                (self._folder / key).unlink()

    def find(self, identity: str, sha256: bytes, size: int) -> Kept | None:
        """Returns bytes that this identity has sent before; None when they are not here, or not what they were."""
        key = _key(identity, sha256)
        found = self._open(key, sha256, size)
        with self._lock:
            self.hits += found is not None
            self.misses += found is None
            if found is not None and key in self._files:
                self._files.move_to_end(key)
        return found

    def _open(self, key: str, sha256: bytes, size: int) -> Kept | None:
        path = self._folder / key
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            self._forget(key)
            return None
        try:
            if os.fstat(descriptor).st_size == size and _sha256(descriptor) == sha256:
                with suppress(OSError):  # found all the same
                    os.utime(descriptor)  # the order of use outlives the server
                return Kept(descriptor)
            log("weights_damaged", file=key)
            path.unlink(missing_ok=True)
            self._forget(key)
        except OSError:
            pass
        os.close(descriptor)
        return None

    def _forget(self, key: str) -> None:
        with self._lock:
            self._used -= self._files.pop(key, 0)

    def receive(self, identity: str, sha256: bytes, size: int) -> Keeper | None:
        """Returns what takes bytes to be kept; None when there is no room for so many."""
        with self._lock:
            if self._reserved + size > self._size:
                return None
            self._reserved += size
            self._make_room()
        return Keeper(self, self._folder / _key(identity, sha256), sha256, size)

    def finish(self, path: Path, size: int, *, kept: bool) -> None:
        """Takes back the room of a keeper; `kept` says whether its file is in place now."""
        with self._lock:
            self._reserved -= size
            if kept:
                self._told = False
                key = f"{path.parent.name}/{path.name}"
                self._used += size - self._files.pop(key, 0)
                self._files[key] = size

    def tell(self, error: OSError) -> None:
        """Says once that nothing can be kept, until something can."""
        with self._lock:
            told, self._told = self._told, True
        if not told:
            log("weights_not_kept", folder=str(self._folder), reason=error.strerror or str(error))


class Keeper:
    """Takes the bytes of one transfer in and keeps them, if they are what their hash says.

    That it cannot, because the disk is full for example, is no matter of the transfer.
    """

    def __init__(self, weights: Weights, path: Path, sha256: bytes, size: int) -> None:
        self._weights, self._path, self._sha256, self._size = weights, path, sha256, size
        self._part = path.with_name(f"{_PART}{secrets.token_hex(8)}")
        self._hash = hashlib.sha256()
        self._descriptor: int | None = None
        self._over = False
        self._lock = threading.RLock()

    async def add(self, data: memoryview | bytes) -> None:
        """Takes the next bytes."""
        await in_thread(self._add, data)

    async def keep(self) -> None:
        """Puts the file in its place: everything has come."""
        await in_thread(self._keep)

    def _add(self, data: memoryview | bytes) -> None:
        with self._lock:
            if self._over:
                return
            try:
                self._append(memoryview(data))
            except OSError as error:
                self._weights.tell(error)
                self.drop()

    def _append(self, data: memoryview) -> None:
        if self._descriptor is None:
            make_private(self._path.parent)
            self._descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE)
        self._hash.update(data)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _keep(self) -> None:
        with self._lock:
            if self._over:
                return
            if self._hash.digest() != self._sha256:
                self.drop()
                return
            try:
                os.replace(self._part, self._path)
            except OSError as error:
                self._weights.tell(error)
                self.drop()
            else:
                self._close(kept=True)

    def drop(self) -> None:
        """Forgets what has come."""
        with self._lock:
            if not self._over:
                with suppress(OSError):  # the next start removes what is left of it
                    self._part.unlink()
                self._close(kept=False)

    def _close(self, *, kept: bool) -> None:
        self._over = True
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._weights.finish(self._path, self._size, kept=kept)


def open_weights(folder: str, size: int) -> Weights | None:
    """Returns the weights kept in a folder; None when there is none, "".

    Raises:
        UnsupportedError: the folder cannot be used.
    """
    if not folder:
        return None
    try:
        return Weights(Path(folder).expanduser(), size)
    except OSError as error:
        raise UnsupportedError(f"weights cannot be kept in {folder}: {error.strerror}") from error


def _key(identity: str, sha256: bytes) -> str:
    return f"{hashlib.sha256(identity.encode()).hexdigest()}/{sha256.hex()}"


def _sha256(descriptor: int) -> bytes:
    found, offset = hashlib.sha256(), 0
    while piece := os.pread(descriptor, PIECE, offset):
        found.update(piece)
        offset += len(piece)
    return found.digest()


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Returns what a function returns that waits for the disk, without keeping the event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
