"""Captures that somebody else may have written: whatever they hold, a typed error or a capture comes out."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.capture_samples import capturing
from tests.core.device_samples import HostDevice, bound, copy_program
from umd_core.capture import ReadLimits, compare, open_capture, replay
from umd_core.errors import CaptureError, LimitError, UmdError


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a complete capture: three buffers, two copies, a read."""
    folder: Path = tmp_path_factory.mktemp("sample")
    device = capturing(folder, HostDevice())
    a, b, c = bound(device, b"12345678", bytes(8), bytes(8))
    program = device.load(copy_program(8))
    device.submit(program, [a, b]).wait()
    device.submit(program, [b, c]).wait()
    device.read(c.buffer, 0, 8)
    device.close()
    return folder


@pytest.fixture
def folder(sample: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample, tmp_path / "copy"))


def set_manifest(folder: Path, **fields: Any) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def set_event(folder: Path, index: int, **fields: Any) -> None:
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines()
    lines[index] = json.dumps({**json.loads(lines[index]), **fields})
    file.write_text("\n".join(lines) + "\n")


def index_of(folder: Path, kind: str) -> int:
    kinds = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
    return kinds.index(kind)


def refused(folder: Path) -> CaptureError:
    """Returns the error of reading or running a capture."""
    with pytest.raises(CaptureError) as raised:
        replay(open_capture(folder), HostDevice())
    return raised.value


def test_the_sample_is_right(folder: Path) -> None:
    assert replay(open_capture(folder), HostDevice()).ok
    assert replay(open_capture(folder.parent), HostDevice()).ok  # the only one below


def test_a_folder_without_or_with_several(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty").rule == "folder"
    shutil.copytree(folder, tmp_path / "other")
    assert "name one: copy, other" in str(refused(tmp_path))
    with pytest.raises(FileNotFoundError):
        open_capture(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "json"),
        (b"[" * 100_000, "json"),
        (b"\xff\xfe", "json"),
        (b"[]", "format"),
        (b'{"format": "zip"}', "format"),
        (b'{"format": "umd-capture", "version": 2}', "version"),
        (b'{"format": "umd-capture", "version": 1, "device": 5}', "fields"),
        (b'{"format": "umd-capture", "version": 1, "device": "a", "complete": 3}', "fields"),
    ],
)
def test_manifests(folder: Path, content: bytes, rule: str) -> None:
    (folder / "manifest.json").write_bytes(content)
    assert (refused(folder).rule, refused(folder).file) == (rule, "manifest.json")


BAD_LINES: dict[str, tuple[str, dict[str, Any], str]] = {
    "escape by data": ("write", {"data": "../../../etc/passwd"}, "event"),
    "escape by program": ("submit", {"program": "/etc/passwd"}, "event"),
    "absent data": ("write", {"data": "0" * 64}, "missing"),
    "empty data": ("write", {"data": ""}, "data"),
    "huge buffer": ("allocate", {"size": 1 << 61}, "memory"),
    "huge number": ("allocate", {"size": 1 << 62}, "event"),
    "negative": ("write", {"offset": -1}, "event"),
    "float": ("allocate", {"size": 8.0}, "event"),
    "bool": ("allocate", {"size": True}, "event"),
    "unknown field": ("allocate", {"more": 1}, "event"),
    "unknown event": ("allocate", {"event": "explode"}, "event"),
    "no such buffer": ("write", {"buffer": 99}, "buffer"),
    "outside": ("write", {"offset": 1}, "range"),
    "read outside": ("read", {"size": 9}, "range"),
    "binding of no buffer": ("submit", {"bindings": [[7, 0, 8], [1, 0, 8]]}, "buffer"),
    "no such fence": ("submit", {"waits": [[0, 1]]}, "fence"),
    "no such submission": ("result", {"submission": 5}, "submission"),
    "no such output": ("result", {"outputs": [[2, "0" * 64]]}, "output"),
    "value too large": ("submit", {"values": [1 << 64]}, "event"),
    "triple is none": ("submit", {"bindings": [[0, 0]]}, "event"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_events(folder: Path, name: str) -> None:
    kind, fields, rule = BAD_LINES[name]
    set_event(folder, index_of(folder, kind), **fields)
    assert refused(folder).rule == rule


def test_a_complete_capture_that_was_cut_is_refused(folder: Path) -> None:
    file = folder / "events.jsonl"
    whole = file.read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2, 0):
        file.write_bytes(whole[:cut])
        assert refused(folder).rule == "truncated"
    set_manifest(folder, complete=None)
    for cut in range(0, len(whole), 7):  # the process ended in the middle of a line
        file.write_bytes(whole[:cut])
        assert replay(open_capture(folder), HostDevice()).ok


def one_file(folder: Path) -> Path:
    return next(file for file in sorted((folder / "data").iterdir()) if file.read_bytes() == b"12345678")


def _other(file: Path) -> None:
    file.write_bytes(b"12345679")


def _longer(file: Path) -> None:
    file.write_bytes(b"12345678" * 2)


def _link(file: Path) -> None:
    file.rename(file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved"))


def _endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_other, "hash"),
        (_longer, "data-size"),
        (_link, "file-type"),
        (_endless, "file-type"),
        (_pipe, "file-type"),
        (Path.unlink, "missing"),
    ],
)
def test_data(folder: Path, change: Callable[[Path], None], rule: str) -> None:
    change(one_file(folder))
    error = refused(folder)
    assert error.rule == rule
    assert error.file.startswith("data/")


def test_programs_are_checked_as_any_other(folder: Path) -> None:
    (file,) = (folder / "programs").iterdir()
    broken = bytearray(file.read_bytes())
    broken[100] ^= 1
    file.write_bytes(broken)
    assert refused(folder).rule == "hash"
    digest = hashlib.sha256(broken).hexdigest()
    file.rename(file.with_name(f"{digest}.umdcmd"))
    text = (folder / "events.jsonl").read_text()
    (folder / "events.jsonl").write_text(text.replace(file.stem, digest))
    for run in (replay, lambda capture, device: compare(capture, device, HostDevice())):
        with pytest.raises(UmdError, match="rule body-checksum"):
            run(open_capture(folder), HostDevice())


def test_bindings_that_do_not_fit_their_program(folder: Path) -> None:
    set_event(folder, index_of(folder, "submit"), bindings=[[0, 0, 8], [0, 0, 8]])
    set_event(folder, index_of(folder, "result"), outputs=[])
    for run in (replay, lambda capture, device: compare(capture, device, HostDevice())):
        with pytest.raises(UmdError, match="meets binding 0"):
            run(open_capture(folder), HostDevice())
    set_event(folder, index_of(folder, "submit"), bindings=[[0, 0, 8]])
    with pytest.raises(CaptureError, match="1 bindings"):
        compare(open_capture(folder), HostDevice(), HostDevice())


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (ReadLimits(journal=100), "bytes of events.jsonl"),
        (ReadLimits(line=40), "bytes of a line of events.jsonl"),
        (ReadLimits(manifest=10), "bytes of manifest.json"),
    ],
)
def test_limits(folder: Path, limits: ReadLimits, what: str) -> None:
    with pytest.raises(LimitError) as raised:
        open_capture(folder, limits)
    assert raised.value.what == what


def test_memory_is_limited_before_it_is_taken(folder: Path) -> None:
    assert open_capture(folder, ReadLimits(memory=24)).peak == 24
    with pytest.raises(CaptureError, match="24 bytes of buffers at the same time, the limit is 23"):
        open_capture(folder, ReadLimits(memory=23))


@settings(max_examples=150)
@given(
    at=st.floats(0, 1, exclude_max=True),
    change=st.one_of(st.binary(max_size=3), st.sampled_from([b"0", b"9" * 30, b"[[", b'"', b"\n", b"-1"])),
    length=st.integers(0, 4),
    finished=st.booleans(),
)
def test_any_journal_gives_a_typed_error_or_runs(
    sample: Path, at: float, change: bytes, length: int, finished: bool
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(sample, Path(scratch) / "copy"))
        file = folder / "events.jsonl"
        whole = file.read_bytes()
        start = int(at * len(whole))
        file.write_bytes(whole[:start] + change + whole[start + length :])
        if not finished:
            set_manifest(folder, complete=None)
        try:
            capture = open_capture(folder)
            report = replay(capture, HostDevice())
            compared = compare(capture, HostDevice(), HostDevice())
        except UmdError:
            return
        assert report.submissions <= 2
        assert compared.ok


def test_numpy_is_not_asked_for_memory_that_is_not_there(folder: Path) -> None:
    """A buffer within the reader's limit and beyond the device's."""
    set_event(folder, index_of(folder, "allocate"), size=1 << 33)
    with pytest.raises(UmdError, match="out of memory"):
        replay(open_capture(folder), HostDevice())
    with pytest.raises(UmdError, match="out of memory"):
        compare(open_capture(folder), HostDevice(), HostDevice())
    assert np.zeros(1).size == 1
