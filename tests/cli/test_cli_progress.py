"""`umd run` on a terminal shows what it is doing; in a pipe it is silent but for its result."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.model.test_model_file import model
from tests.onnx import small_models
from umd_cli.app import app
from umd_model import save

STEPS = ["load", "translate", "upload", "first run", "next runs"]


@pytest.fixture
def affine(tmp_path: Path) -> Path:
    file = tmp_path / "affine.onnx"
    file.write_bytes(small_models.affine().SerializeToString())
    return file


def on_a_terminal(*arguments: object) -> tuple[str, str]:
    """Returns (stdout, what the terminal at stderr got) of `umd` with these arguments."""
    main, side = pty.openpty()
    command = [sys.executable, "-m", "umd_cli", *(str(a) for a in arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=side, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(side)
        shown = b""
        try:
            while part := os.read(main, 65536):
                shown += part
        except OSError:
            pass  # on Linux the end of a terminal is an error: nobody holds the other side
        finally:
            os.close(main)
        assert process.stdout is not None
        out = process.stdout.read().decode()
    assert process.returncode == 0, shown
    return out, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_a_terminal_is_shown_every_step(affine: Path) -> None:
    out, shown = on_a_terminal("run", affine, "--random", "--device", "sim:0", "--repeat", 3)
    assert all(step in shown for step in STEPS), shown
    assert "3 of 3" in shown
    assert "sim:0" in out
    assert "load" in out.splitlines()[0]


def test_a_pipe_gets_the_result_and_nothing_else(affine: Path) -> None:
    arguments = ["run", str(affine), "--random", "--device", "sim:0", "--repeat", "3"]
    command = [sys.executable, "-m", "umd_cli", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert list(found["steps"]) == STEPS
    assert all(milliseconds >= 0 for milliseconds in found["steps"].values())
    assert found["milliseconds"] <= found["steps"]["next runs"]


def test_a_saved_model_has_the_same_steps(tmp_path: Path) -> None:
    save(model(), tmp_path / "layer.umd")
    result = CliRunner().invoke(app, ["run", str(tmp_path / "layer.umd"), "--random", "--device", "sim:0", "--json"])
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)["steps"]) == STEPS[:-1]
