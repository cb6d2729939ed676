"""`umd demo` in a real process: its own server, the check, and two ways of training beside torch's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def test_the_demo_agrees_with_torch_through_a_server_of_its_own() -> None:
    command = [sys.executable, "-m", "umd_cli", "demo", "--epochs", "1", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["agree"]
    assert found["device"].startswith("grpc://127.0.0.1:")
    assert (found["check"]["execution_result"], found["check"]["kernel_name"]) == ("right", "elementwise_add_kernel")
    theirs = found["torch CPU"]["losses"]
    assert len(theirs) == 22
    for way, round_trips in (("torch.compile", 2), ("train_step", 1)):
        assert found[way]["losses"][:20] == pytest.approx(theirs[:20], rel=1e-5)
        assert found[way]["losses"][-1] < 0.8 * found[way]["losses"][0]
        assert found[way]["round_trips_per_step"] == round_trips
        assert found[way]["bytes_up_per_step"] > 0
