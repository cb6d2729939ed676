"""`umd replay`: a captured run once more, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from umd_cli.exits import Exit
from umd_cli.output import Json, show

if TYPE_CHECKING:
    from umd_core.capture import ReplayReport

SHOWN = 16
MEMORY = 16 << 30


def replay(
    folder: Annotated[Path, typer.Argument(help="A capture, or a folder that holds one.")],
    device: Annotated[str, typer.Option("--device", "-d", help='Where it runs: "sim:0", "cuda:0", …')],
    memory: Annotated[
        int, typer.Option("--memory", min=0, help="Bytes of buffers that the capture may ask for.")
    ] = MEMORY,
    json: Json = False,
) -> None:
    """Run a capture again and compare results with the recorded ones, bit by bit. Exits with 1 if any differ.

    Devices round differently; `umd compare` tells rounding from faults.
    """
    from dataclasses import asdict

    from umd_core.capture import ReadLimits, open_capture
    from umd_core.capture import replay as run
    from umd_core.registry import open_device

    capture = open_capture(folder, ReadLimits(memory=memory))
    opened = open_device(device)
    try:
        report = run(capture, opened)
    finally:
        opened.close()
    data = {"ok": report.ok, **asdict(report), "mismatches": [one._asdict() for one in report.mismatches]}
    show(data, json, lambda: _page(report))
    if not report.ok:
        raise typer.Exit(Exit.FOUND)


def _page(report: ReplayReport) -> Iterable[RenderableType]:
    yield from map(str, report.mismatches[:SHOWN])
    if len(report.mismatches) > SHOWN:
        yield f"… and {len(report.mismatches) - SHOWN} more"
    if not report.complete:
        yield "the captured run did not end: this is what there was of it"
    unrecorded = f", {report.unrecorded} submissions without a record" if report.unrecorded else ""
    yield (
        f"{report.device}: {report.submissions} submissions, {report.equal} results as recorded, "
        f"{len(report.mismatches)} not{unrecorded}"
    )
