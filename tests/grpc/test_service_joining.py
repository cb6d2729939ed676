"""Joining a server with a line, and what it refuses to do unprotected. Servers are real processes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import umd_core as umd
from tests.grpc.identities import X, double, mode, move_home
from umd_cli.app import app
from umd_core.errors import NotAuthorisedError, UmdError
from umd_grpc.client import Client
from umd_grpc.config.arguments import from_arguments
from umd_grpc.server import Settings
from umd_grpc.server.entries import new_secret
from umd_grpc.server.protection import Protection

Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user and a server without files of their own."""
    move_home(tmp_path, monkeypatch)
    return tmp_path


def umd_command(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_command_and_one_line(start_server: Start, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server("--auto-tls")
    line = server.ready["join"]
    url, _, facts = line.partition("#")
    assert url == f"grpcs://{server.address}/sim:0"
    with pytest.raises(NotAuthorisedError, match="not trusted here"):
        umd.open_device(url)
    used = umd_command("join", line)
    assert url in used
    device = umd.open_device(url)
    np.testing.assert_array_equal(double(device), 2 * X)
    device.close()
    assert url in umd_command("devices", url)
    assert "right" in umd_command("check", url)

    for path in (home / "state", home / "config/umd"):
        assert mode(path) == 0o700
        assert [p.name for p in path.iterdir() if mode(p) != 0o600] == []
    secrets = [line.rpartition("=")[2], *(p.read_text() for p in (home / "config/umd").glob("*.json"))]
    kept = (home / "state/tokens.json").read_text(encoding="utf-8")
    assert not any(secret in kept for secret in secrets)

    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "thief"))
    with pytest.raises(NotAuthorisedError, match="used before"):
        umd.open_device(line)
    with pytest.raises(NotAuthorisedError, match="asks who calls"):
        umd.open_device(line.partition("&")[0])
    wrong = facts.replace(facts[7:71], "0" * 64)
    with pytest.raises(NotAuthorisedError, match="somebody is in between"):
        umd.open_device(f"{url}#{wrong}")

    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    assert server.terminate() == 0
    again = start_server("--auto-tls", listen=server.address)
    assert "join" not in again.ready
    device = umd.open_device(url)
    np.testing.assert_array_equal(double(device), 2 * X)
    device.close()
    again.check_sound()


def test_a_join_line_is_a_device_and_others_are_invited(
    start_server: Start, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server("--auto-tls")
    for _ in range(2):  # the token is exchanged once and kept: the line stays good for whoever used it first
        device = umd.open_device(server.ready["join"])
        np.testing.assert_array_equal(double(device), 2 * X)
        device.close()
    line = umd_command("token", "invite", "guest", "--address", server.address, "--sessions", "1").strip()
    expired = umd_command("token", "invite", "late", "--address", server.address, "--expires", "0").strip()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "guest"))
    with pytest.raises(NotAuthorisedError, match="has expired"):
        umd.open_device(expired)
    device = umd.open_device(line)
    np.testing.assert_array_equal(double(device), 2 * X)
    device.close()
    names = [event["name"] for event in server.events("joined")]
    assert names == ["owner", "guest"]
    server.check_sound()


def test_a_token_never_travels_in_the_clear() -> None:
    for target in ("192.0.2.1:50051", "example.org:50051", "dns:///localhost:1"):
        with pytest.raises(NotAuthorisedError, match="not sent to"):
            Client(target, token=new_secret())
        with pytest.raises(NotAuthorisedError, match="not sent to"):
            umd.open_device(f"grpc://{target.removeprefix('dns:///x')}#token={new_secret(joins=True)}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen", "0.0.0.0:0"], "--auto-tls"),
        (["--listen", "0.0.0.0:0", "--tokens", "t.json"], "--auto-tls"),
        (["--tls-cert", "no.pem"], "tls.cert needs tls.key"),
        (["--tls-cert", "no.pem", "--tls-key", "no.key"], "cannot use no.pem"),
        (["--auto-tls", "--tls-cert", "no.pem", "--tls-key", "no.key"], "leave one of them out"),
        (["--tls-client-ca", "ca.pem"], "tls.client_ca needs TLS"),
        (["--listen", "nowhere"], "has no port"),
        (["--grace", "soon"], "--grace is not an amount"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_not_safe_is_not_begun(arguments: list[str], says: str) -> None:
    with pytest.raises(UmdError, match=re.escape(says)) as caught:
        Protection(Settings.of(from_arguments(arguments)))
    assert "\n" not in str(caught.value)


def test_files_that_others_may_use_are_refused(home: Path) -> None:
    umd_command("token", "add", "alice")
    path = home / "state/tokens.json"
    path.chmod(0o640)
    with pytest.raises(NotAuthorisedError, match=f"chmod 600 {path}"):
        Protection(Settings(tokens=str(path)))


def test_a_unix_socket_may_be_a_groups(start_server: Start, home: Path) -> None:
    start_server("--unix-mode", "660", listen=f"unix:{home}/s")
    assert mode(home / "s") == 0o660


def test_beyond_loopback_with_protection(start_server: Start) -> None:
    server = start_server("--auto-tls", listen="0.0.0.0:0")
    host = server.ready["join"].removeprefix("grpcs://").partition("/")[0].rpartition(":")[0]
    assert host == os.uname().nodename
    line = server.ready["join"].replace(host, "127.0.0.1", 1)
    device = umd.open_device(line)
    np.testing.assert_array_equal(double(device), 2 * X)
    device.close()
    server.check_sound()
