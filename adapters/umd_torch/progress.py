"""How far a large upload has got: a line in a notebook's cell, a bar on a terminal, nothing anywhere else."""

from __future__ import annotations

import contextlib
import html
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

MIB = 1 << 20
LEAST = 8 * MIB
"""Bytes below which nothing is shown."""
PATIENCE = 1.0
"""Seconds after which a terminal is shown a bar."""
EVERY = 0.2
"""Seconds between two looks."""
_WIDTH = 30


class Screen(Protocol):
    """Where progress is shown. `show` and `end` come from one thread, after `begin` from the one that uploads."""

    def begin(self, text: str) -> None:
        """An upload begins."""
        ...

    def show(self, text: str, seconds: float) -> None:
        """It has got further, so many seconds after it began."""
        ...

    def end(self, text: str) -> None:
        """It is over."""
        ...


class Notebook:
    """One line in the cell that is running, by a Jupyter kernel's own display."""

    def __init__(self) -> None:
        self._display: Any = importlib.import_module("IPython.display")  # loaded already, but for this part
        self._handle: Any = None

    def begin(self, text: str) -> None:
        self._handle = self._display.display(_rich(text), raw=True, display_id=True)

    def show(self, text: str, seconds: float) -> None:
        self._handle.update(_rich(text), raw=True)

    def end(self, text: str) -> None:
        self._handle.update(_rich(text), raw=True)


def _rich(text: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": f"<code>{html.escape(text)}</code>"}


class Terminal:
    """One line on stderr that is written over, from PATIENCE on, and gone in the end."""

    def __init__(self) -> None:
        self._width = 0

    def begin(self, text: str) -> None:
        pass

    def show(self, text: str, seconds: float) -> None:
        if seconds >= PATIENCE:
            sys.stderr.write(f"\r{text.ljust(self._width)}")
            sys.stderr.flush()
            self._width = max(self._width, len(text))

    def end(self, text: str) -> None:
        if self._width:
            sys.stderr.write(f"\r{' ' * self._width}\r")
            sys.stderr.flush()


_shown = os.environ.get("UMD_PROGRESS", "1") != "0"


def show_progress(shown: bool) -> None:
    """Says whether large uploads show how far they are; UMD_PROGRESS=0 says the same before the first."""
    global _shown  # noqa: PLW0603  # one setting of the process
    _shown = shown


def screen() -> Screen | None:
    """Returns where this process would show progress; None: nobody would see it, or nobody wants to."""
    if not _shown:
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return Notebook()
    return Terminal() if sys.stderr is not None and sys.stderr.isatty() else None


@contextlib.contextmanager
def uploading(name: str, sent: Callable[[], int], size: int) -> Generator[None]:
    """Within the block `size` bytes go to the device `name`; `sent` counts what it has been sent since ever."""
    found = screen() if size >= LEAST else None
    if found is None:
        yield
        return
    watch = _Watch(found, name, sent, size)
    try:
        yield
    finally:
        watch.end()


class _Watch:
    """Looks at a count in a thread of its own, until it is told to end."""

    def __init__(self, found: Screen, name: str, sent: Callable[[], int], size: int) -> None:
        self._screen, self._name, self._sent, self._size = found, name, sent, size
        self._start, self._before = time.monotonic(), sent()
        self._over = threading.Event()
        self._screen.begin(self._text())
        self._thread = threading.Thread(target=self._run, name="umd-progress", daemon=True)
        self._thread.start()

    def _text(self) -> str:
        done = min(self._sent() - self._before, self._size)
        seconds = max(time.monotonic() - self._start, 1e-3)
        bar = ("#" * (_WIDTH * done // self._size)).ljust(_WIDTH)
        amount = f"{done / MIB:.1f} of {self._size / MIB:.1f} MiB"
        return f"to {self._name} [{bar}] {amount}, {done / MIB / seconds:.1f} MiB/s"

    def _run(self) -> None:
        try:
            while not self._over.wait(EVERY):
                self._screen.show(self._text(), time.monotonic() - self._start)
            self._screen.end(f"to {self._name}: {self._size / MIB:.1f} MiB in {time.monotonic() - self._start:.1f} s")
        except Exception:  # noqa: BLE001  # a screen that is gone is no reason to fail, nor worth a word: it is gone
            return

    def end(self) -> None:
        """Shows that the upload is over, or has failed."""
        self._over.set()
        self._thread.join(1.0)


__all__ = ["Screen", "screen", "show_progress", "uploading"]
