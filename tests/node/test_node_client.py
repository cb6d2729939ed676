"""The client for Node.js, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_client_for_node(node: str, node_client: Path) -> None:
    command = [sys.executable, "-m", "umd_grpc.server", "--device", "sim:0", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["listen"][0]
            found = subprocess.run(
                [node, "--test", "--test-reporter=spec", "test/"],
                cwd=node_client,
                env={**os.environ, "UMD_ADDRESS": address},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        finally:
            server.terminate()
    assert found.returncode == 0, found.stdout + found.stderr
