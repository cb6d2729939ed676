"""The entry point of `umd`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and exits with one of the documented codes."""
    try:
        from umd_cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write(f"error: `umd` needs {error.name}: pip install 'umd-runtime[cli]'\n")
        sys.exit(3)
    app(prog_name="umd")
