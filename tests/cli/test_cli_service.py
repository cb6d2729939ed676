"""`umd serve`, `umd check`, `umd devices` in real processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from umd_cli.app import app
from umd_core.errors import Status

UMD = [sys.executable, "-m", "umd_cli"]


def run_umd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*UMD, *arguments], capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Address of an `umd serve` on a free port, which drains and ends with 0 on SIGTERM."""
    command = [*UMD, "serve", "--backend", "sim", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            assert (ready["event"], ready["devices"], ready["pid"]) == ("ready", ["sim:0"], process.pid)
            yield ready["listen"][0]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_check_prints_the_five_things(server: str) -> None:
    result = run_umd("check", server)
    assert result.returncode == 0, result.stderr
    for name in ("input shape", "translate latency", "command buffer bytes", "kernel name", "execution result"):
        assert f"\n{name}" in result.stdout
    found = json.loads(run_umd("check", f"grpc://{server}", "--device", "sim:0", "--json").stdout)
    assert found["kernel_name"] == "elementwise_add_kernel"
    assert found["execution_result"] == "right"
    assert found["command_buffer_bytes"] > 64


def test_check_of_a_device_that_the_server_lacks(server: str) -> None:
    result = run_umd("check", server, "--device", "sim:7")
    assert result.returncode == 10 + Status.UNSUPPORTED
    assert "sim:0" in result.stderr


def test_commands_accept_a_remote_device(server: str, tmp_path: Path) -> None:
    remote = f"grpc://{server}/sim:0"
    listed = CliRunner().invoke(app, ["kernels", "--device", remote, "--json"])
    assert listed.exit_code == 0, listed.output
    assert {row["name"]: row["supported"] for row in json.loads(listed.stdout)}["gemm_kernel"] == "all"
    file = tmp_path / "relu.umdcmd"
    assert run_umd("translate", "Relu", "-i", "f32[8]", "--device", remote, "-o", str(file)).returncode == 0
    assert run_umd("verify", str(file)).returncode == 0


@pytest.mark.parametrize("name", ["{}", "grpc://{}", "grpc://{}/sim:0"])
def test_top_takes_an_address_or_a_servers_name(server: str, name: str) -> None:
    found = json.loads(run_umd("top", name.format(server), "--json").stdout)
    assert [device["name"] for device in found["devices"]] == ["sim:0"]


def test_check_without_a_server_says_how_to_start_one() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    result = run_umd("check", address)
    assert result.returncode == 10 + Status.DEVICE_LOST
    assert f"umd serve --listen {address}" in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--listen", "0.0.0.0:0"], Status.NOT_AUTHORISED, "--allow-insecure"),
        (["--backend", "nothing"], Status.UNSUPPORTED, "no backend 'nothing'"),
        (["--device", "sim:99"], Status.UNSUPPORTED, "sim:99"),
    ],
    ids=["open-to-all", "no-backend", "no-device"],
)
def test_serve_refuses_with_a_reason(arguments: list[str], status: Status, says: str) -> None:
    result = run_umd("serve", *arguments)
    assert result.returncode == 10 + status
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_an_address_in_use_is_named(server: str) -> None:
    result = run_umd("serve", "--listen", server)
    assert result.returncode == 10 + Status.UNSUPPORTED
    assert server in result.stderr


def test_devices_lists_what_is_there_and_why_something_is_not() -> None:
    result = run_umd("devices", "--json")
    assert result.returncode == 0
    found = {row["name"]: row for row in json.loads(result.stdout)}
    assert found["sim:0"]["available"]
    assert not found["grpc"]["available"]
    assert "grpc://" in found["grpc"]["detail"]
    table = run_umd("devices").stdout
    assert "sim:0" in table
    assert found["sim:0"]["detail"] in table


BROKEN_PLUGIN = """
[umd.backends]
broken = no_such_module

[umd.commands]
broken = no_such_module:app
hello = hello_command:app
"""
HELLO = """
import typer
app = typer.Typer()

@app.command()
def hello(name: str) -> None:
    print(f"hello {name}")
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package on the path that brings a backend and commands, some of them broken."""
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(BROKEN_PLUGIN, encoding="utf-8")
    (tmp_path / "hello_command.py").write_text(HELLO, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("plugins")
def test_a_broken_plugin_is_shown_and_stops_nobody() -> None:
    result = run_umd("devices", "--json")
    assert result.returncode == 0
    found = {row["name"]: row for row in json.loads(result.stdout)}
    assert found["sim:0"]["available"]
    assert not found["broken"]["available"]
    assert "no_such_module" in found["broken"]["detail"]


@pytest.mark.usefixtures("plugins")
def test_commands_of_other_packages_run() -> None:
    assert "From other." in run_umd("--help").stdout
    result = run_umd("hello", "you")
    assert (result.returncode, result.stdout) == (0, "hello you\n")
    assert run_umd("hello").returncode == 2
    broken = run_umd("broken")
    assert broken.returncode == 10 + Status.UNSUPPORTED
    assert "no_such_module" in broken.stderr
    assert "Traceback" not in broken.stderr
