"""Reductions of many short contiguous rows, where NumPy's own spend most of their time between the rows."""

from __future__ import annotations

import numpy as np

from umd_sim.lowerings.layout import Array
from umd_sim.scratch import Scratch

_MANY = 64
_FEW = 4
_MOST = 16
_LONGEST = 40


def is_short(rows: int, columns: int) -> bool:
    """Returns whether rows of so many elements are reduced faster here."""
    if rows < _MANY or not 2 <= columns <= _LONGEST:
        return False
    while columns % 2 == 0 and columns > _FEW:
        columns //= 2
    return columns <= _MOST


def reduce_rows(ufunc: np.ufunc, x: Array, out: Array, scratch: Scratch, slot: int) -> None:
    """Writes the ufunc over each row of x, (rows, columns) contiguous, to `out`, (rows,).

    Neighbours are combined, all rows at once, until few columns are left; then those, column by column. Two scratch
    slots from `slot` on are used. The order of the operands is another one than NumPy's.
    """
    rows, columns = x.shape
    left, turn = x.reshape(-1), 0
    while columns % 2 == 0 and columns > _FEW:
        half = scratch.take(slot + turn, (left.size // 2,), x.dtype)
        ufunc(left[0::2], left[1::2], out=half)
        left, columns, turn = half, columns // 2, 1 - turn
    table = left.reshape(rows, columns)
    ufunc(table[:, 0], table[:, 1], out=out)
    for column in range(2, columns):
        ufunc(out, table[:, column], out=out)
