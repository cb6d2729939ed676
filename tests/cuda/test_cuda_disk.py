"""The cache of compiled modules: one step, a digest, damage, no room, no right to write."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umd_cuda import disk


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UMD_CUDA_CACHE", str(tmp_path / "cache"))
    disk.warn_unkept.cache_clear()
    return tmp_path / "cache"


def test_the_folder_is_the_one_that_is_named_or_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMD_CUDA_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert disk.cache_folder() == Path("/a")
    monkeypatch.delenv("UMD_CUDA_CACHE")
    assert disk.cache_folder() == Path("/b/umd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert disk.cache_folder() == Path.home() / ".cache" / "umd"


def test_a_module_is_kept_whole_and_nothing_else_stays(cache: Path) -> None:
    place = disk.place(("source", ("-DA",), "sm_90", (13, 5)), ".cubin")
    assert disk.find(place) is None
    assert disk.keep(place, b"code")
    assert disk.find(place) == b"code"
    assert [path for path in cache.rglob("*") if path.is_file()] == [place]
    assert disk.keep(place, b"other code")
    assert disk.find(place) == b"other code"


def test_every_part_makes_another_place(cache: Path) -> None:
    parts = [
        ("s", "o", "a", "v"),
        ("t", "o", "a", "v"),
        ("s", "p", "a", "v"),
        ("s", "o", "b", "v"),
        ("s", "o", "a", "w"),
    ]
    assert len({disk.place(part, ".cubin") for part in parts}) == len(parts)


@given(data=st.binary(min_size=1, max_size=80), damage=st.data())
def test_any_damage_is_found(tmp_path_factory: pytest.TempPathFactory, data: bytes, damage: st.DataObject) -> None:
    place = tmp_path_factory.mktemp("cache") / "module"
    assert disk.keep(place, data)
    sealed = place.read_bytes()
    at = damage.draw(st.integers(0, len(sealed) - 1))
    cut = damage.draw(st.booleans())
    place.write_bytes(sealed[:at] if cut else sealed[:at] + bytes([sealed[at] ^ 0x10]) + sealed[at + 1 :])
    assert disk.find(place) is None
    assert not place.exists()


def test_damage_is_one_line_in_the_log(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = disk.place(("source",), ".cubin")
    disk.keep(place, b"code")
    place.write_bytes(b"rubbish")
    with caplog.at_level(logging.WARNING, "umd_cuda"):
        assert disk.find(place) is None
        assert disk.find(place) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"the compiled module {place} is damaged: it is removed and compiled again"
    ]


def test_a_full_disk_is_one_warning_that_names_the_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    place = disk.place(("source",), ".cubin")
    with caplog.at_level(logging.WARNING, "umd_cuda"):
        assert not disk.keep(place, b"code")
        assert not disk.keep(place, b"code")
    (record,) = caplog.records
    assert f"cannot be kept in {cache}: No space left on device" in record.getMessage()
    assert "UMD_CUDA_CACHE" in record.getMessage()
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_folder_that_cannot_be_made_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UMD_CUDA_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "umd_cuda"):
        assert not disk.keep(disk.place(("source",), ".so"), b"code")
    assert str(tmp_path / "file") in caplog.text
