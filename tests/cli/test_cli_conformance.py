"""`umd conformance` in real processes: a backend that passes, and one of another package that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from umd_core.errors import Status

WRONG_BACKEND = """
from umd_core.device import Available, BackendInfo
from umd_core.hookspecs import hookimpl


def open_wrong(rest):
    from umd_sim.device import SimDevice

    class Wrong(SimDevice):
        def fill(self, destination, pattern):
            super().fill(destination, bytes(len(pattern)))

    return Wrong()


@hookimpl
def umd_register_backends():
    return [BackendInfo("wrong", probe=lambda: Available(("fills with zeros",)), open=open_wrong)]
"""


def run_umd(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    command = [sys.executable, "-m", "umd_cli", "conformance", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment)


def test_the_simulator_passes_what_is_selected() -> None:
    result = run_umd("sim", "-k", "fill or gemm_kernel", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["device"], report["ok"]) == ("sim:0", True)
    assert report["counts"]["passed"] == len(report["results"]) >= 2


def test_a_wrong_backend_of_another_package_is_found_out(tmp_path: Path) -> None:
    info = tmp_path / "wrong-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[umd.backends]\nwrong = wrong_backend\n", encoding="utf-8")
    (tmp_path / "wrong_backend.py").write_text(WRONG_BACKEND, encoding="utf-8")
    result = run_umd("wrong:0", "-k", "fill", path=tmp_path)
    assert result.returncode == 1
    assert "wrong:0: 1 failed" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_a_selection_that_matches_nothing_is_no_success() -> None:
    assert run_umd("sim", "-k", "nothing_has_this_name").returncode == 1


def test_an_unknown_backend_is_refused_before_anything_runs() -> None:
    result = run_umd("nothing")
    assert result.returncode == 10 + Status.UNSUPPORTED
    assert "no backend 'nothing'" in result.stderr
