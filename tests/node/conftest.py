"""Where Node.js is, and what the client for it needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "clients" / "node"


@pytest.fixture(scope="session")
def node() -> str:
    """The path of Node.js. Where there is none the tests are left out."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node.js is not installed")
    return found


@pytest.fixture(scope="session")
def node_client(node: str) -> Path:
    """The folder of the client, its dependencies installed."""
    if not (CLIENT / "node_modules" / "@grpc" / "grpc-js").is_dir():
        pytest.skip("the client's dependencies are not installed: make setup")
    return CLIENT
