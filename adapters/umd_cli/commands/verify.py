"""`umd verify`: is it valid, and does it say everything that must wait for something else?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from umd_cli.exits import Exit
from umd_cli.output import Json, show

if TYPE_CHECKING:
    from umd_core.encoding import Report


def verify(
    files: Annotated[list[Path], typer.Argument(help="Command buffers, of version 1 or of the original format.")],
    json: Json = False,
) -> None:
    """Name the broken rule and the byte, and the dependencies that are missing. Exits with 1 if there are any."""
    found = {str(file): _verified(file.read_bytes()) for file in files}
    data = [_facts(name, report) for name, report in found.items()]
    show(data, json, lambda: (f"{name}: {report}" for name, report in found.items()))
    if not all(report.ok for report in found.values()):
        raise typer.Exit(Exit.FOUND)


def _verified(raw: bytes) -> Report:
    from umd_core.encoding import Report, decode_original, is_original, verify
    from umd_core.errors import DecodeError

    if not is_original(raw):
        return verify(raw)
    try:
        decode_original(raw)
    except DecodeError as error:
        return Report(error)
    return Report(commands=1)


def _facts(name: str, report: Report) -> dict[str, Any]:
    return {
        "file": name,
        "ok": report.ok,
        "error": None if report.error is None else {"message": str(report.error), **report.error.facts()},
        "missing": [missing._asdict() for missing in report.missing],
        "commands": report.commands,
        "conflicts": report.conflicts,
    }
