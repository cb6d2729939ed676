"""Exit codes of `umd`, and what an exception means to a person at the terminal."""

from __future__ import annotations

import enum
from typing import Any

STATUS_BASE = 10
"""An error with status n (docs/cli.md lists them) ends the program with code 10 + n."""

EXTRAS = {
    "cryptography": "grpc",
    "cupy": "cuda",
    "google": "grpc",
    "grpc": "grpc",
    "grpc_channelz": "grpc",
    "grpc_health": "grpc",
    "grpc_reflection": "grpc",
    "hypothesis": "testing",
    "onnx": "onnx",
    "pytest": "testing",
    "sklearn": "demo",
    "torch": "torch",
    "umd_grpc": "grpc",
    "umd_torch": "torch",
}
"""The extra that brings each optional package."""


class Exit(enum.IntEnum):
    """Exit codes beside 10 + status."""

    DONE = 0
    FOUND = 1
    USAGE = 2
    MISSING_EXTRA = 3
    FILE = 4
    INTERRUPTED = 130


def explain(error: BaseException) -> tuple[int, str, dict[str, Any]]:
    """Returns (exit code, one line that says what was wrong, facts for JSON)."""
    from umd_core.errors import Status, UmdError

    if isinstance(error, UmdError):
        facts = {"status": int(error.status), "status_name": error.status.name, **error.facts()}
        return STATUS_BASE + error.status, str(error), facts
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in EXTRAS:
            extra = EXTRAS[package]
            line = f"this needs {package}, which is not installed: pip install 'umd-runtime[{extra}]'"
            return Exit.MISSING_EXTRA, line, {"package": package, "extra": extra}
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Exit.FILE, f"{where}{error.strerror or error}", {"filename": error.filename, "errno": error.errno}
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED, "interrupted", {}
    line = f"a fault of umd itself, please report it ({type(error).__name__}: {error}); `umd --traceback …` shows where"
    return STATUS_BASE + Status.INTERNAL, line, {"status": int(Status.INTERNAL), "type": type(error).__name__}
