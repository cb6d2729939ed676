"""What commands print: a table for people, or one JSON document with `--json`; errors as one red line on stderr."""

from __future__ import annotations

import dataclasses
import functools
import json as json_module
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ParamSpec

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from umd_cli.exits import explain

P = ParamSpec("P")
PIPE_WIDTH = 200

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


@dataclasses.dataclass(slots=True)
class Settings:
    """What the options before the command set."""

    traceback: bool = False


settings = Settings()


def console(*, stderr: bool = False) -> Console:
    """Returns a console; where no terminal says how wide it is, lines are long enough not to be cut."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=None if stream.isatty() else PIPE_WIDTH)


def show(data: Any, json: bool, render: Callable[[], Iterable[RenderableType]]) -> None:
    """Prints `data` as JSON, or what `render` makes of it."""
    if json:
        sys.stdout.write(_dumped(data) + "\n")
        return
    out = console()
    with out.capture() as captured:
        for part in render():
            out.print(part, markup=False, soft_wrap=not isinstance(part, Table))
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """Returns a plain table; headings that start with ">" are right-aligned."""
    result = Table(
        box=box.SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        pad_edge=False,
        show_edge=False,
        show_header=any(headings),
    )
    for heading in headings:
        result.add_column(heading.lstrip(">"), justify="right" if heading.startswith(">") else "left", overflow="fold")
    for row in rows:
        result.add_row(*(Text(str(cell)) for cell in row))
    return result


def facts(found: Mapping[str, Any]) -> Table:
    """Returns a table of names and values; lists are joined by commas, empty values left out."""
    joined = {name: ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else v for name, v in found.items()}
    return table(("", ""), ((name.replace("_", " "), v) for name, v in joined.items() if v != ""))


def note(line: str) -> None:
    """Prints a line for people to stderr, so that stdout stays what the command is for."""
    console(stderr=True).print(line, markup=False)


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """Returns the command with its errors printed and turned into exit codes."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError)):
                raise
            raise typer.Exit(_report(error, as_json=bool(kwargs.get("json")))) from None

    return run


def _report(error: BaseException, *, as_json: bool) -> int:
    code, line, facts = explain(error)
    if settings.traceback:
        sys.stderr.write("".join(traceback.format_exception(error)))
    if as_json:
        document = {"error": {"exit_code": code, "message": line, **facts}}
        sys.stdout.write(_dumped(document) + "\n")
    else:
        console(stderr=True).print(f"error: {line}", style="red", markup=False)
    return int(code)


def _dumped(data: Any) -> str:
    """Returns a JSON document. JSON knows no NaN and no infinity: they become texts, as in protobuf's JSON."""
    try:
        return json_module.dumps(data, indent=2, default=_plain, allow_nan=False)
    except ValueError:
        loose = json_module.dumps(data, default=_plain)
        return json_module.dumps(json_module.loads(loose, parse_constant=str), indent=2)


def _plain(value: Any) -> Any:
    """Returns a value that JSON knows in place of one that it does not."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
