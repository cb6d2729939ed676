"""A capture from a folder that anybody may have written: everything is checked before anything is allocated."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from umd_core.capture.checks import Checker
from umd_core.capture.events import Event, Refused, Result, Submit, from_line, is_number
from umd_core.capture.folder import EVENTS, FORMAT, MANIFEST, VERSION, data_path, program_path
from umd_core.encoding import LIBRARY_LIMITS
from umd_core.errors import CaptureError, LimitError


class ReadLimits(NamedTuple):
    """What a reader accepts at most.

    Attributes:
        memory: bytes of buffers that live at the same time.
        journal: bytes of the journal.
        line: bytes of one event.
        manifest: bytes of the manifest.
    """

    memory: int = 16 << 30
    journal: int = 1 << 30
    line: int = 16 << 20
    manifest: int = 1 << 20


LIMITS = ReadLimits()
"""What `open_capture` accepts unless told otherwise."""


class Capture:
    """A run that was captured.

    Attributes:
        path: the folder.
        device: name of the device that ran it.
        complete: whether the run ended; otherwise the capture holds what there was when the process ended.
        events: what happened, refused submissions left out.
        results: how submissions ended, by their number.
        peak: bytes of buffers that live at the same time.
    """

    path: Path

    def __init__(self, path: Path, limits: ReadLimits = LIMITS) -> None:
        """Reads a capture; see `open_capture`."""
        self.path, self._limits = path, limits
        manifest = self._manifest()
        self.device: str = manifest["device"]
        self.complete: bool = manifest["complete"] is not None
        found = self._events()
        self._check_count(manifest["complete"], len(found))
        refused = {event.submission for event in found if isinstance(event, Refused)}
        self.results: dict[int, Result] = {event.submission: event for event in found if isinstance(event, Result)}
        self.events: list[tuple[int, Event]] = [
            event for event in _numbered(found, refused) if not isinstance(event[1], (Refused, Result))
        ]
        checker = Checker(limits.memory)
        for line, event in enumerate(found, 1):
            problem = checker.problem(event)
            if problem:
                raise CaptureError(EVENTS, *problem, line=line)
        self.peak: int = checker.peak

    @property
    def submission_count(self) -> int:
        """How many submissions there are."""
        return sum(isinstance(event, Submit) for _, event in self.events)

    def program(self, digest: str) -> bytes:
        """Returns an encoded command buffer.

        Raises:
            CaptureError: it is missing, or its bytes are others.
        """
        path = program_path(self.path, digest)
        return self._whole(path, digest, LIBRARY_LIMITS.total_size)

    def data(self, digest: str, size: int) -> bytes:
        """Returns `size` bytes.

        Raises:
            CaptureError: they are missing, others, or not as many.
        """
        path = data_path(self.path, digest)
        if self._size(path) != size:
            raise CaptureError(self._name(path), "data-size", f"{self._size(path)} bytes, an event says {size}")
        return self._whole(path, digest, size)

    def check_memory(self, size: int) -> None:
        """Checks memory that a program of the capture asks for, beside its buffers.

        Raises:
            LimitError: it is more than the reader accepts.
        """
        if self.peak + size > self._limits.memory:
            raise LimitError("bytes of buffers and a program's arena", self.peak + size, self._limits.memory)

    def _whole(self, path: Path, digest: str, limit: int) -> bytes:
        if self._size(path) > limit:
            raise LimitError(f"bytes of {self._name(path)}", self._size(path), limit)
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise CaptureError(self._name(path), "hash", "its bytes are not those that were captured")
        return data

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.path))

    def _size(self, path: Path) -> int:
        """Returns the size of a plain file; links, pipes and devices are none."""
        try:
            status = path.stat(follow_symlinks=False)
        except FileNotFoundError:
            raise CaptureError(self._name(path), "missing", "the capture lacks this file") from None
        if not stat.S_ISREG(status.st_mode):
            raise CaptureError(self._name(path), "file-type", "it is no plain file")
        return status.st_size

    def _manifest(self) -> dict[str, Any]:
        path = self.path / MANIFEST
        if self._size(path) > self._limits.manifest:
            raise LimitError(f"bytes of {MANIFEST}", self._size(path), self._limits.manifest)
        try:
            found: Any = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise CaptureError(MANIFEST, "json", str(error)) from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise CaptureError(MANIFEST, "format", f"it does not say that its format is {FORMAT!r}")
        if found.get("version") != VERSION:
            raise CaptureError(MANIFEST, "version", f"version {found.get('version')!r}, this umd reads {VERSION}")
        complete = found.get("complete")
        if not isinstance(found.get("device"), str) or not (complete is None or isinstance(complete, dict)):
            raise CaptureError(MANIFEST, "fields", "device is a name, complete is null or an object")
        return {"device": found["device"], "complete": complete}

    def _check_count(self, complete: dict[str, Any] | None, count: int) -> None:
        if complete is not None and (not is_number(complete.get("events")) or complete["events"] != count):
            detail = f"{count} events, the manifest says {complete.get('events')!r}"
            raise CaptureError(EVENTS, "truncated", detail)

    def _events(self) -> list[Event]:
        path = self.path / EVENTS
        if self._size(path) > self._limits.journal:
            raise LimitError(f"bytes of {EVENTS}", self._size(path), self._limits.journal)
        events = []
        for number, line in enumerate(self._lines(path), 1):
            try:
                events.append(from_line(line))
            except ValueError as error:
                raise CaptureError(EVENTS, "event", str(error), line=number) from None
        return events

    def _lines(self, path: Path) -> Iterator[bytes]:
        """Yields the lines; a last one without an end is one that the process did not finish, and is left out."""
        with path.open("rb") as file:
            while line := file.readline(self._limits.line + 1):
                if len(line) > self._limits.line:
                    raise LimitError(f"bytes of a line of {EVENTS}", len(line), self._limits.line)
                if line.endswith(b"\n"):
                    yield line


def _numbered(events: list[Event], refused: set[int]) -> Iterator[tuple[int, Event]]:
    """Yields events with the number of the submission that they are, -1 for others; refused ones are left out."""
    number = -1
    for event in events:
        if not isinstance(event, Submit):
            yield -1, event
            continue
        number += 1
        if number not in refused:
            yield number, event


def open_capture(path: Path, limits: ReadLimits = LIMITS) -> Capture:
    """Returns the capture in a folder, or the only one in the folders right below it.

    Raises:
        CaptureError: there is none, there are several, or it is damaged.
        LimitError: it is larger than `limits` allow.
        OSError: the folder cannot be read.
    """
    if (path / MANIFEST).exists():
        return Capture(path, limits)
    found = sorted(folder for folder in path.iterdir() if (folder / MANIFEST).exists())
    if len(found) == 1:
        return Capture(found[0], limits)
    names = ", ".join(folder.name for folder in found[:16])
    detail = f"it holds {len(found)} captures, name one: {names}" if found else "it holds no capture"
    raise CaptureError(str(path), "folder", detail)
