"""`umd config`: is a configuration file right, and what does it come to?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from umd_cli.exits import Exit
from umd_cli.output import Json, show, table


def check(file: Annotated[str, typer.Argument(help="A configuration file.")], json: Json = False) -> None:
    """Say everything that is wrong with a configuration file, with its line. Exit code 1 when something is."""
    from umd_grpc.config.load import check_file

    problems = check_file(file)
    rows = [problem._asdict() for problem in problems]
    shown = [(problem.line or "", problem.key, problem.what) for problem in problems]
    show(
        {"file": file, "problems": rows},
        json,
        lambda: [table((">line", "key", "what is wrong"), shown) if problems else f"{file} is right"],
    )
    if problems:
        raise typer.Exit(Exit.FOUND)


def settings(
    file: Annotated[str | None, typer.Argument(help="A configuration file; without it, the defaults.")] = None,
    json: Json = False,
) -> None:
    """Print every setting as a file: what it says, else the default."""
    from umd_grpc.config.load import effective
    from umd_grpc.config.load import show as as_toml

    values = effective(file, {})
    show(values, json, lambda: [as_toml(values).removesuffix("\n")])


COMMANDS: dict[str, Callable[..., None]] = {"check": check, "show": settings}
