"""Measuring and printing: interleaved runs, medians, one table and one JSON file a benchmark."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Work = Callable[[], object]


def once(work: Work, number: int) -> float:
    """Returns the seconds that one call of `work` takes, averaged over `number` calls in a row."""
    start = time.perf_counter()
    for _ in range(number):
        work()
    return (time.perf_counter() - start) / number


def interleaved(works: Mapping[str, Work], *, number: int = 1, repeat: int = 15) -> dict[str, float]:
    """Returns the median seconds a call of each work, measured in turn A B A B so that a drifting machine is fair."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        once(work, max(1, number // 10))
    for _ in range(repeat):
        for name, work in works.items():
            times[name].append(once(work, number))
    return {name: statistics.median(values) for name, values in times.items()}


def blas() -> str:
    """Returns for which processor NumPy's OpenBLAS has kernels here; "" where it is another library."""
    libraries = Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*")
    for library in map(ctypes.CDLL, map(str, libraries)):
        for name in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename64_"):
            if hasattr(library, name):
                ask = getattr(library, name)
                ask.restype = ctypes.c_char_p
                return f", BLAS for {ask().decode()}"
    return ""


def machine() -> str:
    """Returns a line about where this ran."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}{blas()}"


def report(name: str, title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table and writes it as JSON into benchmarks/results/."""
    texts = [list(header)] + [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    print(f"\n{title}  ({machine()})")
    for index, row in enumerate(texts):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
        if index == 0:
            print("  ".join("-" * width for width in widths))
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    content = {"title": title, "machine": machine(), "header": list(header), "rows": [list(row) for row in rows]}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def _text(cell: Any) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)
