"""`umd dis`, `umd verify`, `umd diff`: what they say about files, and their exit codes."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import umd_core as umd
from umd_cli.app import app
from umd_core.commands import CommandBuffer
from umd_core.encoding import decode, encode, encode_original
from umd_core.errors import Status


def umd_command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def chain(scale: float = 2.0) -> CommandBuffer:
    """Returns exp(x) + exp(x) · scale: commands that depend on each other."""
    graph = umd.Graph()
    y = graph.add("Exp", [graph.input("x", umd.TensorDesc("f32", (4, 5)))])
    scaled = graph.add("Mul", [y, graph.constant(np.float32(scale))])
    graph.output(graph.add("MatMul", [scaled, graph.add("Transpose", [y])]))
    return umd.translate(graph)


@pytest.fixture
def buffer(tmp_path: Path) -> Path:
    file = tmp_path / "chain.umdcmd"
    file.write_bytes(bytes(chain()))
    return file


def test_dis_prints_one_line_a_command(buffer: Path) -> None:
    text = umd_command("dis", buffer).stdout
    data = json.loads(umd_command("dis", buffer, "--json").stdout)
    commands = decode(buffer.read_bytes()).commands
    assert len(data["commands"]) == len(commands) == 3
    lines = [line for line in text.splitlines() if "DISPATCH" in line]
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    for line, command in zip(lines, data["commands"], strict=True):
        assert command["kernel"] in line


def test_dis_reads_the_original_format(tmp_path: Path) -> None:
    file = tmp_path / "original.umdcmd"
    file.write_bytes(encode_original("elementwise_add_kernel", 600))
    assert "elementwise_add_kernel  600 elements" in umd_command("dis", file).stdout
    assert json.loads(umd_command("dis", file, "--json").stdout)["grid"] == 3
    assert umd_command("verify", file).exit_code == 0


def test_verify_accepts_what_the_translator_wrote(buffer: Path) -> None:
    result = umd_command("verify", buffer, "--json")
    (found,) = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["ok"], found["error"], found["missing"], found["commands"]) == (True, None, [], 3)
    assert found["conflicts"] >= 2
    assert umd_command("verify", buffer).stdout.startswith(f"{buffer}: valid")


def test_verify_names_a_missing_dependency(tmp_path: Path) -> None:
    broken = chain()
    last = broken.commands[-1]
    broken.commands[-1] = last._replace(deps=())
    file = tmp_path / "broken.umdcmd"
    file.write_bytes(encode(broken))
    result = umd_command("verify", file, "--json")
    (found,) = json.loads(result.stdout)
    assert result.exit_code == 1
    assert {(m["second"], m["hazard"]) for m in found["missing"]} == {(2, "read-after-write")}
    assert "command 2 does not wait for command" in umd_command("verify", file).stdout


def mutated(raw: bytes, at: int, value: int) -> bytes:
    """Returns the bytes with one changed and both checksums right again."""
    data = bytearray(raw)
    data[at] = value
    data[56:60] = zlib.crc32(data[64:]).to_bytes(4, "little")
    data[60:64] = zlib.crc32(data[:60]).to_bytes(4, "little")
    return bytes(data)


def test_verify_names_the_rule_and_the_byte(buffer: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.umdcmd"
    bad.write_bytes(mutated(buffer.read_bytes(), 52, 1))
    result = umd_command("verify", buffer, bad, "--json")
    good, broken = json.loads(result.stdout)
    assert result.exit_code == 1
    assert good["ok"]
    assert (broken["ok"], broken["error"]["rule"], broken["error"]["offset"]) == (False, "header-reserved", 52)
    assert "rule header-reserved" in umd_command("verify", bad).stdout


@pytest.mark.parametrize("content", [b"", b"UMDCMD", b"\x7fELF and more", bytes(300), b"UMDCMD\x05\x00\x00\x00relu"])
def test_foreign_bytes_are_named_by_rule(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "foreign"
    file.write_bytes(content)
    for command in (["dis", file], ["diff", file, file]):
        result = umd_command(*command)
        assert result.exit_code == 10 + Status.BAD_BYTES
        assert result.stderr.startswith("error: rule ")
        assert result.stderr.count("\n") == 1
    assert umd_command("verify", file).exit_code == 1


def test_diff_tells_what_differs(buffer: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.umdcmd"
    other.write_bytes(bytes(chain(scale=3.0)))
    same: Any = umd_command("diff", buffer, buffer)
    assert (same.exit_code, same.stdout) == (0, "no difference\n")
    result = umd_command("diff", buffer, other, "--json")
    assert result.exit_code == 1
    two, three = (np.float32(v).tobytes().hex() for v in (2, 3))
    assert json.loads(result.stdout) == [{"where": "constants[0]", "left": two, "right": three}]
    assert f"constants[0]: {two} | {three}" in umd_command("diff", buffer, other).stdout


def test_a_missing_file_is_named() -> None:
    for command in (["dis", "no/such.umdcmd"], ["verify", "no/such.umdcmd"], ["diff", "no/such.umdcmd", "x"]):
        result = umd_command(*command)
        assert (result.exit_code, result.stderr) == (4, "error: no/such.umdcmd: No such file or directory\n")
