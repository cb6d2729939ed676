"""The kernel table: what a device runs. Rows are append-only; a changed layout is a new abi."""

from __future__ import annotations

from umd_core.kernels import along, attention, chain, expressions, families, random
from umd_core.kernels.expressions import PRIMITIVES
from umd_core.kernels.geometry import Geometry
from umd_core.kernels.row import (
    RANK_CLASSES,
    Box,
    Extent,
    Field,
    KernelRecord,
    KernelRow,
    Operand,
    OperandView,
)

KERNELS: dict[tuple[str, int], KernelRow] = {
    (row.name, row.abi): row
    for row in (
        *expressions.ROWS,
        *families.ROWS,
        *along.ROWS,
        *attention.ROWS,
        *random.ROWS,
        chain.ROW,
    )
}
"""Every row by (name, abi)."""

BY_NAME: dict[str, KernelRow] = {row.name: row for row in sorted(KERNELS.values(), key=lambda row: row.abi)}
"""The newest abi of each kernel by name."""

__all__ = [
    "BY_NAME",
    "KERNELS",
    "PRIMITIVES",
    "RANK_CLASSES",
    "Box",
    "Extent",
    "Field",
    "Geometry",
    "KernelRecord",
    "KernelRow",
    "Operand",
    "OperandView",
]
