"""Launch geometry: how many workgroups a launch has, and how wide they are.

Every function accepts a flat block of Python integers, or of arrays with one entry a launch. Kernels loop over the
grid, so a count at its limit is still right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Indices = tuple[int, ...]
Flat = Sequence[Any]
"""A parameter block as a flat sequence of numbers, or of arrays with one entry a launch."""
Geometry = tuple[int, int, int, int, int, int, int]
"""workgroup_count xyz, workgroup_size xyz, workgroup memory in bytes."""

GROUP_WIDTH = 256
MAX_GROUPS = 2**31 - 1
TILE = 64


def _product(flat: Flat, indices: Sequence[int]) -> Any:
    total: Any = 1
    for index in indices:
        total = total * flat[index]
    return total


def _at_most(value: Any, limit: int) -> Any:
    return min(value, limit) if isinstance(value, int) else np.minimum(value, limit)


def _elements(extents: Mapping[str, Indices], grid: Indices, flat: Flat) -> Any:
    """One invocation per element of the row's grid operand, in workgroups of 256."""
    count = _product(flat, grid)
    groups = _at_most((count + (GROUP_WIDTH - 1)) // GROUP_WIDTH, MAX_GROUPS)
    return (groups, 1, 1, GROUP_WIDTH, 1, 1, 0)


def _rows(extents: Mapping[str, Indices], grid: Indices, flat: Flat) -> Any:
    """One workgroup of 256 per element of the extents `outer`."""
    count = _product(flat, extents["outer"])
    return (_at_most(count, MAX_GROUPS), 1, 1, GROUP_WIDTH, 1, 1, 4 * GROUP_WIDTH)


def _tiles(extents: Mapping[str, Indices], grid: Indices, flat: Flat) -> Any:
    """One workgroup of 256 per 64 × 64 tile of (rows, columns), batches in z."""
    rows, columns = flat[extents["rows"][0]], flat[extents["columns"][0]]
    batch = _product(flat, extents["batch"])
    across = _at_most((columns + (TILE - 1)) // TILE, MAX_GROUPS)
    down = _at_most((rows + (TILE - 1)) // TILE, 65535)
    return (across, down, _at_most(batch, 65535), GROUP_WIDTH, 1, 1, 0)


GEOMETRIES: dict[str, Callable[[Mapping[str, Indices], Indices, Flat], Any]] = {
    "elements": _elements,
    "rows": _rows,
    "tiles": _tiles,
}
