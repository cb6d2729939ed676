"""`umd dis`: a command buffer as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from umd_cli.output import Json, show


def dis(
    file: Annotated[Path, typer.Argument(help="A command buffer, of version 1 or of the original format.")],
    json: Json = False,
) -> None:
    """Print a command buffer: header, kernels, slots, then one line a command."""
    from umd_core.disassemble import disassemble, to_json

    raw = file.read_bytes()
    if json:
        show(to_json(raw), True, tuple)
    else:
        typer.echo(disassemble(raw), nl=False)
