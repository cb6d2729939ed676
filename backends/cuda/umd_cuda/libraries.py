"""Which launches a library does better than our kernels, and how it is asked: matrix products by BLAS."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord
from umd_core.kernels.geometry import Flat

LEAST_WORK = 32**3
"""Multiplications below which our own kernel is launched: a library call costs more to prepare."""
_LIMIT = 2**31 - 1
_A, _B, _OUT = range(3)


class Routine(NamedTuple):
    """How cuBLAS, as CuPy 14 offers it, multiplies matrices of an element type.

    Attributes:
        function: of `cupy.cuda.cublas`.
        factor: NumPy's type of the two factors, and the type that is summed in.
        element: CUDA's name for the element type, "" where the function implies it.
    """

    function: str
    factor: type[np.floating[Any]]
    element: str = ""


ROUTINES = {
    dtypes.float32: Routine("sgemmStridedBatched", np.float32),
    dtypes.float64: Routine("dgemmStridedBatched", np.float64),
    dtypes.float16: Routine("gemmStridedBatchedEx", np.float32, "CUDA_R_16F"),
    dtypes.bfloat16: Routine("gemmStridedBatchedEx", np.float32, "CUDA_R_16BF"),
}
"""By element type. Halves are summed in float32 and rounded once, as our own kernel does."""


class Matrix(NamedTuple):
    """An operand as BLAS takes it, column by column.

    Attributes:
        operand: index of the binding.
        offset: of its first element in the binding, in bytes.
        transposed: whether BLAS has to transpose it.
        leading: elements from one column to the next.
        step: elements from one matrix of the batch to the next.
    """

    operand: int
    offset: int
    transposed: bool
    leading: int
    step: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` products out = left · right, each (rows, depth) · (depth, columns), column by column.

    Attributes:
        dtype: of the elements; a key of `ROUTINES`.
    """

    dtype: DType
    rows: int
    columns: int
    depth: int
    batch: int
    left: Matrix
    right: Matrix
    out: Matrix


def gemm_for(record: KernelRecord, flat: Flat) -> Gemm | None:
    """Returns how BLAS does a launch, None where it cannot, or where our kernel is the better choice.

    BLAS goes column by column and our tables row by row, so it is asked for the transposed product: out' = b' · a'.
    """
    if record.row.family != "gemm" or record.types[0] not in ROUTINES:
        return None
    rows, columns, depth = (int(flat[record.extent_at[name][0]]) for name in ("rows", "columns", "depth"))
    batches = [int(flat[i]) for i in record.extent_at["batch"]]
    if not rows * columns * depth * math.prod(batches) >= LEAST_WORK or max(rows, columns, depth) > _LIMIT:
        return None
    strides = [[int(flat[stride]) for _, stride in box.axes] for box in record.boxes]
    steps = _batch_steps(batches, [own[:-2] for own in strides])
    left = _layout(columns, depth, *reversed(strides[_B][-2:]))
    right = _layout(depth, rows, *reversed(strides[_A][-2:]))
    out = _layout(columns, rows, *reversed(strides[_OUT][-2:]))
    if steps is None or left is None or right is None or out is None or out[0] or math.prod(batches) > _LIMIT:
        return None
    size = record.types[0].size
    offsets = [size * int(flat[box.offset]) for box in record.boxes]
    return Gemm(
        record.types[0], columns, rows, depth, math.prod(batches),
        *(Matrix(i, offsets[i], *layout, steps[i]) for i, layout in ((_B, left), (_A, right), (_OUT, out))),
    )  # fmt: skip


def _layout(down: int, across: int, down_stride: int, across_stride: int) -> tuple[bool, int] | None:
    """Returns whether a (down, across) matrix lies transposed, and its leading dimension; None when BLAS has no way."""
    if (down_stride == 1 or down == 1) and (across_stride >= down or across == 1):
        leading = max(across_stride, down) if across > 1 else down
        return (False, leading) if leading <= _LIMIT else None
    if (across_stride == 1 or across == 1) and (down_stride >= across or down == 1):
        leading = max(down_stride, across) if down > 1 else across
        return (True, leading) if leading <= _LIMIT else None
    return None


def _batch_steps(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int] | None:
    """Returns each operand's step through the batch; None when the batch is no single walk for all of them."""
    axes = [axis for axis, extent in enumerate(extents) if extent != 1]
    if not axes:
        return [0 for _ in strides]
    for outer, inner in itertools.pairwise(axes):
        if any(own[outer] != own[inner] * extents[inner] for own in strides):
            return None
    return [own[axes[-1]] for own in strides]
