"""`umd capture`: runs a program and writes down what it asks of its devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from umd_cli.exits import Exit
from umd_cli.output import Json, note, show, table

DEFAULT_LIMIT = 8 << 30


def capture(
    folder: Annotated[Path, typer.Argument(help="Where captures go: one folder a device.")],
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after `--`.")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Bytes that one capture may take.")] = DEFAULT_LIMIT,
    outputs: Annotated[
        str, typer.Option("--outputs", help="What is kept of results: hashes, bytes or none.")
    ] = "hashes",
    json: Json = False,
) -> None:
    """Run a program and write down programs, bindings and input bytes of everything that it submits.

    umd capture DIR -- python train.py. Exits as the program did, and with 1 if it opened no device.
    """
    from umd_core.capture import OUTPUTS

    if outputs not in OUTPUTS:
        raise typer.BadParameter(f"{outputs!r} is none of {', '.join(OUTPUTS)}", param_hint="--outputs")
    before = set(_folders(folder))
    settings = {"UMD_CAPTURE": str(folder), "UMD_CAPTURE_LIMIT": str(limit), "UMD_CAPTURE_OUTPUTS": outputs}
    ended = subprocess.run(
        command, env=os.environ | settings, check=False, stdout=sys.stderr.fileno() if json else None
    )
    found = [_facts(path) for path in _folders(folder) if path not in before]
    headings = ("capture", "device", ">submissions", ">bytes", "ended")
    show(found, json, lambda: [table(headings, (tuple(facts.values()) for facts in found))] if found else [])
    if not found:
        note("nothing was captured: the program ran nothing on a device of umd")
    if ended.returncode or not found:
        raise typer.Exit(ended.returncode if ended.returncode > 0 else Exit.FOUND)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _facts(path: Path) -> dict[str, Any]:
    from umd_core.capture import open_capture

    found = open_capture(path)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {
        "folder": str(path),
        "device": found.device,
        "submissions": found.submission_count,
        "bytes": size,
        "complete": found.complete,
    }
