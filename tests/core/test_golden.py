"""The golden files of every release decode, encode and print as on the day they were made."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.encoding_samples import SAMPLES, encoded
from umd_core.disassemble import disassemble
from umd_core.encoding import decode, decode_original, encode, encode_original, validate

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
VERSIONS = ("v1.0",)
NAMES = (*SAMPLES, "original")
FILES = [(version, name) for version in VERSIONS for name in NAMES]


@pytest.mark.parametrize(("version", "name"), FILES)
def test_golden_buffers_read_as_ever(version: str, name: str) -> None:
    raw = (GOLDEN / version / f"{name}.umdcmd").read_bytes()
    digest, file = (GOLDEN / version / f"{name}.sha256").read_text(encoding="utf-8").split()
    assert (hashlib.sha256(raw).hexdigest(), f"{name}.umdcmd") == (digest, file)
    assert disassemble(raw) == (GOLDEN / version / f"{name}.txt").read_text(encoding="utf-8")
    if name == "original":
        original = decode_original(raw)
        assert encode_original(original.kernel_name, original.element_count) == raw
    else:
        validate(raw)
        assert encode(decode(raw)) == raw


@pytest.mark.parametrize("name", SAMPLES)
def test_the_same_programs_encode_to_the_golden_bytes(name: str) -> None:
    assert encoded(name) == (GOLDEN / VERSIONS[-1] / f"{name}.umdcmd").read_bytes()


def test_no_golden_file_is_forgotten() -> None:
    expected = {f"{version}/{name}{ending}" for version, name in FILES for ending in (".umdcmd", ".txt", ".sha256")}
    assert {path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*") if path.is_file()} == expected


def test_the_script_never_overwrites(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_golden.py"), str(tmp_path / "new")]
    first = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert first.returncode == 0, first.stderr
    kept = {path: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert len(kept) == 3 * len(NAMES)
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert again.returncode == 1
    assert "never overwritten" in again.stdout
    assert {path: path.read_bytes() for path in (tmp_path / "new").iterdir()} == kept
