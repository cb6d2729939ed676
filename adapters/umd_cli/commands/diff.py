"""`umd diff`: two command buffers, command by command."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from umd_cli.exits import Exit
from umd_cli.output import Json, show

if TYPE_CHECKING:
    from umd_core.encoding import Difference


def diff(
    left: Annotated[Path, typer.Argument(help="A command buffer.")],
    right: Annotated[Path, typer.Argument(help="Another one.")],
    json: Json = False,
) -> None:
    """Compare two command buffers command by command. Exits with 1 if they differ."""
    from umd_core.encoding import diff as differences

    found = differences(left.read_bytes(), right.read_bytes())
    show([one._asdict() for one in found], json, lambda: _lines(found))
    if found:
        raise typer.Exit(Exit.FOUND)


def _lines(found: list[Difference]) -> Iterable[str]:
    return map(str, found) if found else ["no difference"]
