"""`umd compare`: the first command that is wrong on one of two devices."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from umd_cli.exits import Exit
from umd_cli.output import Json, show

if TYPE_CHECKING:
    from umd_core.capture import ComparisonReport

MEMORY = 16 << 30


def compare(
    folder: Annotated[Path, typer.Argument(help="A capture, or a folder that holds one.")],
    device: Annotated[
        list[str], typer.Option("--device", "-d", help="Twice: the device that is trusted, then the other.")
    ],
    most: Annotated[int, typer.Option("--most", min=1, help="Wrong commands after which to stop.")] = 1,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Halve stretches of commands that differ; skip those that agree.")
    ] = False,
    any_nonfinite: Annotated[
        bool, typer.Option("--any-nonfinite", help="Accept NaN and infinities where both devices have them.")
    ] = False,
    memory: Annotated[
        int, typer.Option("--memory", min=0, help="Bytes of buffers that the capture may ask for.")
    ] = MEMORY,
    json: Json = False,
) -> None:
    """Name the first command whose result differs beyond its kernel's tolerance, or brings the first NaN or infinity.

    Says kernel, op, source line, element and both values, and which device is wrong. Exits with 1 if it found one.
    """
    from umd_core.capture import ReadLimits, open_capture
    from umd_core.capture import compare as run
    from umd_core.registry import open_device

    if len(device) != 2:
        raise typer.BadParameter(f"two devices are compared, not {len(device)}", param_hint="--device")
    capture = open_capture(folder, ReadLimits(memory=memory))
    first = open_device(device[0])
    try:
        second = open_device(device[1])
        try:
            strategy = "bisect" if bisect else "steps"
            report = run(capture, first, second, most=most, strategy=strategy, any_nonfinite=any_nonfinite)
        finally:
            second.close()
    finally:
        first.close()
    show(report.as_dict(), json, lambda: _page(report))
    if not report.ok:
        raise typer.Exit(Exit.FOUND)


def _page(report: ComparisonReport) -> Iterable[RenderableType]:
    yield from map(str, report.differences)
    if not report.complete:
        yield "the captured run did not end: this is what there was of it"
    failed = f", {report.failed} failed on both" if report.failed else ""
    yield (
        f"{' and '.join(report.devices)}: {report.submissions} submissions, {report.commands} commands, "
        f"{report.equal} equal, {report.close} within tolerance{failed}, {len(report.differences)} wrong"
    )
