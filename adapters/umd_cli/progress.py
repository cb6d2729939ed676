"""Steps of a command that takes its time: a bar on a terminal while they go on, milliseconds of each afterwards."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from umd_cli.output import console


class Steps:
    """Milliseconds of steps by name. Where stderr is a terminal, a bar shows the step under way; elsewhere nothing.

    Attributes:
        milliseconds: of the steps that are done.
    """

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str, total: int | None = None) -> Generator[Bar]:
        """Times a step of `total` parts, None when it has none that can be counted."""
        with shown(name, total) as bar:
            start = time.perf_counter()
            yield bar
            self.milliseconds[name] = round((time.perf_counter() - start) * 1e3, 3)


class Bar:
    """What a step tells of how far it is; silent without a bar."""

    def __init__(self, progress: Progress | None, total: int | None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task("", total=total)

    def advance(self, what: str = "") -> None:
        """Notes that one more part is done, and what the next one is called."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, description=what)


@contextlib.contextmanager
def shown(name: str, total: int | None = None) -> Generator[Bar]:
    """Shows a bar while something goes on, if stderr is a terminal; it is gone afterwards."""
    if not sys.stderr.isatty():
        yield Bar(None, total)
        return
    columns = (TextColumn(name), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        yield Bar(progress, total)
