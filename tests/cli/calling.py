"""Calls the command line in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from umd_cli.app import app


def umd_command(*arguments: object) -> Result:
    """Returns what `umd` with these arguments prints, and its exit code."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


def document(*arguments: object, code: int = 0) -> dict[str, Any]:
    """Returns the JSON document of a command that ends with `code`."""
    result = umd_command(*arguments, "--json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found
