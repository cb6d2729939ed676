"""A server with a simulator, for the tests that go through gRPC."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

_SERVE = (sys.executable, "-c", "from umd_cli.main import main; main()", "serve", "--device", "sim:0")


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The address of a server in a process of its own."""
    with subprocess.Popen([*_SERVE, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["listen"][0]
        finally:
            process.terminate()
