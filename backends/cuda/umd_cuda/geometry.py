"""How many invocations a launch gets. Every kernel is right for any grid; this is about speed.

`launch_geometry` is for a GPU, `serial_geometry` for a device that runs invocations one after the other.
"""

from __future__ import annotations

import sys

from umd_core.kernels import KernelRecord
from umd_core.kernels.geometry import Flat

BLOCK = 256
MOST_GROUPS = 4096
"""Kernels walk on by the size of the grid, so that no launch needs more workgroups than fill a device several times."""
TILE = 64
MANY = 2**16
"""From this many elements on, an invocation of an expression takes 16 bytes at a time."""
SHORT, MIDDLING = 8, 1024
"""Rows up to these lengths are for one invocation, and for one warp; longer ones for a workgroup."""

Dim3 = tuple[int, int, int]
Geometry = tuple[Dim3, Dim3, int]
"""Grid, block, and bytes of dynamic workgroup memory (always 0: ours is declared in the kernels)."""


def launch_geometry(record: KernelRecord, flat: Flat) -> Geometry:
    """Returns grid, block and workgroup memory of a launch with this flat parameter block."""
    rows = rows_of(record, flat)
    if rows is not None:
        return _row_geometry(*rows, *_LIMITS.get(record.row.family, (SHORT, MIDDLING)))
    if record.row.family == "gemm":
        return _tiles(record, flat)
    count = product_of(flat, record.grid)
    if record.row.family in ("expression", "chain") and count >= MANY:
        count //= 16 // max(dtype.size for dtype in record.types)
    return (groups_of(count, BLOCK), 1, 1), (BLOCK, 1, 1), 0


def serial_geometry(record: KernelRecord, flat: Flat) -> Geometry:
    """Returns the geometry for a device where switching between invocations costs more than it gains."""
    rows = rows_of(record, flat)
    if rows is not None:
        return _row_geometry(*rows, *_SERIAL_LIMITS.get(record.row.family, (MIDDLING, 32 * MIDDLING)))
    if record.row.family == "gemm":
        return _tiles(record, flat)
    return (1, 1, 1), (1, 1, 1), 0


def product_of(flat: Flat, indices: tuple[int, ...]) -> int:
    """Returns the product of these numbers of a flat block."""
    total = 1
    for index in indices:
        total *= int(flat[index])
    return total


def groups_of(count: int, each: int) -> int:
    """Returns how many workgroups take `count` things, `each` at a time."""
    return max(1, min(-(-count // each), MOST_GROUPS))


def rows_of(record: KernelRecord, flat: Flat) -> tuple[int, int] | None:
    """Returns the number of rows and their length, None for kernels that have none."""
    names = _ROWS.get(record.row.name) or _ROWS.get(record.row.family)
    if names is None:
        return None
    if record.row.name == "attention_grad_kernel":
        batch, queries, keys = (product_of(flat, record.extent_at[name]) for name in ("outer", "queries", "keys"))
        return batch * (queries + keys), max(queries, keys)  # queries are rows, and keys too
    outer, inner = (tuple(i for name in group for i in record.extent_at[name]) for group in names)
    return product_of(flat, outer), product_of(flat, inner)


_ROWS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "reduce": (("outer",), ("inner",)),
    "arg_reduce": (("outer",), ("inner",)),
    "rows": (("outer",), ("inner",)),
    "scan": (("outer",), ("length",)),
    "sort": (("outer",), ("length",)),
    "attention": (("outer", "queries"), ("keys",)),
    "conv_weight_grad_kernel": (("groups", "out_channels", "in_channels", "kernel"), ("batch", "output")),
}
"""By kernel or family: the extents that number the rows, and those that a row runs over."""

SORTED_ALONE = 64
_LIMITS: dict[str, tuple[int, int]] = {"sort": (SORTED_ALONE, SORTED_ALONE), "attention": (0, MIDDLING)}
_SERIAL_LIMITS: dict[str, tuple[int, int]] = dict.fromkeys(("scan", "sort", "attention"), (sys.maxsize, sys.maxsize))
"""By family, what takes the place of SHORT and MIDDLING: no warp sorts, an invocation alone needs no second pass."""


def _row_geometry(rows: int, length: int, short: int, middling: int) -> Geometry:
    if length <= short:
        return (groups_of(rows, BLOCK), 1, 1), (1, BLOCK, 1), 0
    if length <= middling:
        return (groups_of(rows, 4), 1, 1), (32, 4, 1), 0
    return (groups_of(rows, 1), 1, 1), (BLOCK, 1, 1), 0


def _tiles(record: KernelRecord, flat: Flat) -> Geometry:
    across, down = (groups_of(int(flat[record.extent_at[name][0]]), TILE) for name in ("columns", "rows"))
    return (across, down, groups_of(product_of(flat, record.extent_at["batch"]), 1)), (BLOCK, 1, 1), 0
