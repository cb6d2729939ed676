"""`umd conformance`: the conformance kit against a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from umd_cli.exits import Exit
from umd_cli.output import Json, show, table

if TYPE_CHECKING:
    from umd_core.testing.report import Report

OUTCOMES = {"failed": "failed", "xfailed": "expected to fail", "skipped": "unsupported", "passed": "passed"}


def conformance(
    name: Annotated[
        str, typer.Argument(help='A device: "sim:0", "mine:0", "grpc://host:50051/sim:0"; "sim" is "sim:0".')
    ],
    select: Annotated[str, typer.Option("-k", help="Run a part: a pytest expression, for example gemm.")] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every test, and show failures in full.")
    ] = False,
    json: Json = False,
) -> None:
    """Run the conformance kit against a device, of a backend in or out of this tree. Exits with 1 if anything failed.

    Every kernel with every dtype that the device claims, every command, replay and patches, legal orders, errors.
    """
    from umd_core.registry import open_device
    from umd_core.testing.report import run

    device = name if ":" in name else f"{name}:0"
    open_device(device).close()
    report = run(device, select=select)
    show(report.as_dict(), json, lambda: _page(report, verbose=verbose))
    if not report.ok:
        raise typer.Exit(Exit.FOUND)


def _page(report: Report, *, verbose: bool) -> Iterable[RenderableType]:
    wanted = [r for r in report.results if verbose or r.outcome != "passed"]
    for outcome, words in OUTCOMES.items():
        rows = [
            (r.name, f"{r.seconds:.2f} s", _detail(r.detail, verbose=verbose)) for r in wanted if r.outcome == outcome
        ]
        if rows:
            yield table((words, ">time", "why"), rows)
            yield ""
    counts = ", ".join(f"{report.count(outcome)} {words}" for outcome, words in OUTCOMES.items())
    yield f"{report.device}: {counts}"


def _detail(text: str, *, verbose: bool) -> str:
    """Returns the whole text, or its last line: what went wrong."""
    return text if verbose else text.strip().rpartition("\n")[2]
