"""A capture's folder while it is written: manifest, journal of events, programs and data by their SHA-256.

    manifest.json        format, version, device, and, once the run has ended, how many events there are
    events.jsonl         what happened, one event a line, appended as it happens
    programs/HASH.umdcmd encoded command buffers
    data/HASH.bin        bytes that the host wrote, or that lay on the device before work that read them

Data comes before the event that names it, and an event before the work it stands for, so that whatever ends the
process, the folder holds everything up to there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import weakref
from pathlib import Path
from typing import Any, BinaryIO

from umd_core.capture.events import Event, to_line
from umd_core.errors import LimitError

FORMAT, VERSION = "umd-capture", 1
MANIFEST, EVENTS, PROGRAMS, DATA = "manifest.json", "events.jsonl", "programs", "data"
LIMIT = 8 << 30
"""Bytes that a capture may take, unless told otherwise."""


def program_path(folder: Path, digest: str) -> Path:
    """Returns where a program lies."""
    return folder / PROGRAMS / f"{digest}.umdcmd"


def data_path(folder: Path, digest: str) -> Path:
    """Returns where bytes lie."""
    return folder / DATA / f"{digest}.bin"


class Folder:
    """A capture that is being written. The folder is made with the first event, so a run without one leaves nothing.

    Args:
        path: a folder that is not there yet, or is empty.
        device: name of the captured device, for people.
        limit: bytes that it may take.
    """

    path: Path

    def __init__(self, path: Path, device: str, limit: int = LIMIT) -> None:
        self.path, self._device, self._limit = path, device, limit
        self._journal: BinaryIO | None = None
        self._made = False
        self._events = self._bytes = 0
        self._held: set[Path] = set()

    def add(self, event: Event) -> None:
        """Appends an event.

        Raises:
            LimitError: the capture would become larger than its limit.
            FileExistsError: the folder holds something else.
        """
        line = to_line(event)
        self._charge(len(line))
        self._opened().write(line)
        self._events += 1

    def data(self, data: Any) -> str:
        """Keeps bytes; returns their SHA-256."""
        return self._keep(data_path, data)

    def program(self, encoded: bytes) -> str:
        """Keeps an encoded command buffer; returns its SHA-256."""
        return self._keep(program_path, encoded)

    def close(self) -> None:
        """Says in the manifest that the run has ended; another event takes that back."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
            self._write_manifest(complete={"events": self._events, "bytes": self._bytes})

    def _opened(self) -> BinaryIO:
        if self._journal is None:
            if not self._made:
                self._make()
            self._write_manifest(complete=None)
            self._journal = (self.path / EVENTS).open("ab", buffering=0)
            weakref.finalize(self, self._journal.close)  # of a device that is never closed
        return self._journal

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise FileExistsError(errno.EEXIST, "a capture wants a new or an empty folder", str(self.path))
        (self.path / PROGRAMS).mkdir()
        (self.path / DATA).mkdir()
        self._made = True

    def _write_manifest(self, complete: dict[str, int] | None) -> None:
        document = {"format": FORMAT, "version": VERSION, "device": self._device, "complete": complete}
        _replace(self.path / MANIFEST, json.dumps(document, indent=2).encode() + b"\n")

    def _keep(self, place: Any, data: Any) -> str:
        digest = hashlib.sha256(data).hexdigest()
        path: Path = place(self.path, digest)
        if path not in self._held:
            self._charge(memoryview(data).nbytes)
            self._opened()
            _replace(path, data)
            self._held.add(path)
        return digest

    def _charge(self, size: int) -> None:
        if self._bytes + size > self._limit:
            raise LimitError(f"bytes of the capture in {self.path}", self._bytes + size, self._limit)
        self._bytes += size


def _replace(path: Path, data: Any) -> None:
    """Writes a file that is there as a whole or not at all."""
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)
