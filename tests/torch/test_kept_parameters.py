"""Parameters of a model that a server has kept since an earlier session are not sent again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from umd_torch.counters import counters
from umd_torch.session import session_for


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    """A device of a server that keeps weights."""
    command = [sys.executable, "-m", "umd_grpc.server", "--listen", "127.0.0.1:0", "--weights", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield f"grpc://{json.loads(process.stdout.readline())['listen'][0]}"
        process.terminate()


def test_parameters_are_sent_once(device: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).eval()
    x = torch.randn(4, 512)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    sent = []
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="umd", options={"device": device})
        before = counters.bytes_up
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        sent.append(counters.bytes_up - before)
        session_for(device).close()
    assert sent[0] >= size
    assert sent[1] < size // 50
