"""Progress of uploads to a server in another process: in a notebook, on a terminal, and nowhere else."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import umd_torch
from umd_torch import progress, session

WIDTH = 1200  # a weight of 5.5 MiB


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    """The name of a device of a server in another process."""
    command = [sys.executable, "-m", "umd_grpc.server", "--device", "sim:0", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        name = f"grpc://{json.loads(process.stdout.readline())['listen'][0]}/sim:0"
        yield name
        session._SESSIONS.pop(name).device.close()
        process.terminate()


class Handle:
    """What IPython's `display` returns."""

    def __init__(self, shown: list[dict[str, str]]) -> None:
        self._shown = shown

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self._shown.append(content)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What a kernel of Jupyter was asked to display."""
    shown: list[dict[str, str]] = []
    shell = types.SimpleNamespace(kernel=object())
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    module: Any = types.ModuleType("IPython.display")

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append(content)
        return Handle(shown)

    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


class Stream(io.StringIO):
    """A stderr that is a terminal, or none."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """What is written to a terminal; pytest would put its own stderr in the place of another one."""
    stream = Stream(True)
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream, modules=sys.modules))
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    return stream


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows uploads from 1 MiB on, and looks often."""
    monkeypatch.setattr(progress, "LEAST", 1 << 20)
    monkeypatch.setattr(progress, "EVERY", 0.001)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)


def upload(device: str) -> None:
    """Sends a model with its first call, and only the input with the second."""
    torch._dynamo.reset()
    model = nn.Linear(WIDTH, WIDTH)
    call: Any = torch.compile(model, backend="umd", options={"device": device, "strict": True})
    x = torch.randn(1, WIDTH)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_notebook_s_cell_has_one_line(notebook: list[dict[str, str]], remote: str) -> None:
    upload(remote)
    first, *_, last = [content["text/plain"] for content in notebook]
    assert first.startswith(f"to {remote} [")
    assert " 0.0 of 5.5 MiB" in first
    assert last.startswith(f"to {remote}: 5.5 MiB in ")
    assert notebook[0]["text/html"].startswith("<code>to grpc://")
    count = len(notebook)
    assert count < 10_000
    upload_of_nothing = torch.compile(lambda v: v + 1, backend="umd", options={"device": remote})
    assert upload_of_nothing(torch.ones(2)).tolist() == [2, 2]
    assert len(notebook) == count


def test_a_terminal_has_a_bar_that_goes_away(stderr: Stream, remote: str) -> None:
    upload(remote)
    *parts, rest = stderr.getvalue().split("\r")
    assert any("MiB/s" in part and "of 5.5 MiB" in part for part in parts)
    assert not parts[-1].strip()
    assert rest == ""
    assert "\n" not in stderr.getvalue()
    assert "IPython" not in sys.modules


def test_a_short_upload_is_not_shown_on_a_terminal(
    stderr: Stream, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 600.0)
    upload(remote)
    assert stderr.getvalue() == ""


def test_nobody_is_shown_what_nobody_sees(stderr: Stream, remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr.terminal = False
    upload(remote)
    assert stderr.getvalue() == ""
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=None, modules={}))  # a process without a console
    assert progress.screen() is None


@pytest.mark.parametrize("place", ["notebook", "stderr"])
def test_it_can_be_switched_off(place: str, remote: str, request: pytest.FixtureRequest) -> None:
    shown: Any = request.getfixturevalue(place)
    assert progress.screen() is not None
    umd_torch.show_progress(False)
    try:
        upload(remote)
    finally:
        umd_torch.show_progress(True)
    assert not (shown.getvalue() if place == "stderr" else shown)


def test_the_environment_can_switch_it_off() -> None:
    code = "from umd_torch import progress; print(progress.screen(), progress._shown)"
    for value, shown in (("0", "False"), ("1", "True")):
        found = subprocess.run(
            [sys.executable, "-c", code], env={"UMD_PROGRESS": value, "PATH": ""}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert found.stdout.split() == ["None", shown]


def test_a_screen_that_fails_does_not_fail_the_upload(
    notebook: list[dict[str, str]], remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise OSError("the kernel is gone")

    monkeypatch.setattr(Handle, "update", gone)
    upload(remote)
    assert len(notebook) >= 1


def test_an_ipython_in_a_terminal_is_a_terminal(monkeypatch: pytest.MonkeyPatch, stderr: Stream) -> None:
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert isinstance(progress.screen(), progress.Terminal)
