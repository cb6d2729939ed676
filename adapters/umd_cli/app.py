"""The command table, and the commands that other packages bring."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated

import typer

from umd_cli.commands import (
    capture,
    check,
    compare,
    config,
    conformance,
    demo,
    devices,
    diff,
    dis,
    estimate,
    inspect,
    join,
    kernels,
    ops,
    replay,
    run,
    serve,
    token,
    top,
    translate,
    verify,
)
from umd_cli.output import reported, settings

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "check": check.check,
    "serve": serve.serve,
    "top": top.top,
    "join": join.join,
    "devices": devices.devices,
    "ops": ops.ops,
    "kernels": kernels.kernels,
    "run": run.run,
    "inspect": inspect.inspect,
    "estimate": estimate.estimate,
    "translate": translate.translate,
    "dis": dis.dis,
    "verify": verify.verify,
    "diff": diff.diff,
    "conformance": conformance.conformance,
    "capture": capture.capture,
    "replay": replay.replay,
    "compare": compare.compare,
}
GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "token": ("Who may use a server, and how much of it.", token.COMMANDS),
    "config": ("Configuration files of a server.", config.COMMANDS),
}
"""Commands with commands of their own: what they are about, and those."""

app = typer.Typer(
    name="umd",
    help="umd: a user-mode driver for tensors. Ops in, command buffers out, any backend runs them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"umd {version('umd-runtime')}")
        raise typer.Exit


@app.callback()
def options(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error was raised.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Takes the options that stand before the command."""
    settings.traceback = traceback


def _add_plugin(entry: EntryPoint) -> None:
    """Adds a command of another package, loaded when it is called: a broken one costs the others nothing."""
    origin = entry.dist.name if entry.dist else entry.value

    def run(context: typer.Context) -> None:
        from umd_core.errors import UnsupportedError

        try:
            loaded: typer.Typer = entry.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UnsupportedError(f"the command {entry.name!r} of {origin} cannot be loaded: {reason}") from error
        loaded(list(context.args), prog_name=f"umd {entry.name}")

    app.command(
        entry.name,
        help=f"From {origin}.",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(reported(run))


for _name, _command in COMMANDS.items():
    app.command(_name)(reported(_command))
for _name, (_help, _commands) in GROUPS.items():
    _group = typer.Typer(name=_name, help=_help, no_args_is_help=True)
    for _own, _command in _commands.items():
        _group.command(_own)(reported(_command))
    app.add_typer(_group)
for _entry in entry_points(group="umd.commands"):
    if _entry.name not in COMMANDS and _entry.name not in GROUPS:
        _add_plugin(_entry)
