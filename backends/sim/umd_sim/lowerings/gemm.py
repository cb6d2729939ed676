"""Batched matrix products by BLAS; float16 and bfloat16 in float32, short integers exactly in float64."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord
from umd_sim.lowerings.layout import (
    FLOAT32,
    HALVES,
    NOTHING,
    Array,
    Call,
    Executable,
    Launch,
    View,
    coalesce,
    filling,
    running,
)
from umd_sim.scratch import Scratch

_FLOAT64 = np.dtype(np.float64)
_EXACT = 1 << 53
"""Integers up to this are float64 numbers."""


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a matrix product."""
    launch = Launch(record, parameters)
    rows, columns, depth = launch["rows"], launch["columns"], launch["depth"]
    batch, (a_batch, b_batch, out_batch) = coalesce(
        launch["batch"], *(launch.strides(name)[:-2] for name in ("a", "b", "out"))
    )
    a_tail, b_tail, out_tail = (launch.strides(name)[-2:] for name in ("a", "b", "out"))
    if 0 in batch or rows == 0 or columns == 0:
        return NOTHING
    if batch and not any(b_batch):  # one b for all: the batch is more rows, if a and out allow it
        folded, (a_rows, out_rows) = coalesce((*batch, rows), (*a_batch, a_tail[0]), (*out_batch, out_tail[0]))
        if len(folded) == 1:
            batch, a_batch, b_batch, out_batch = (), (), (), ()
            rows, a_tail, out_tail = folded[0], (a_rows[0], a_tail[1]), (out_rows[0], out_tail[1])
    out = launch.view("out", (*batch, rows, columns), (*out_batch, *out_tail))
    if depth == 0:
        return Executable((out,), filling(0))
    a = _operand(launch, "a", batch, (rows, depth), (*a_batch, *a_tail))
    b = _operand(launch, "b", batch, (depth, columns), (*b_batch, *b_tail))
    dtype = launch.dtype("out")
    through = _through(dtype, depth)
    if through is None:
        return Executable((a, b, out), _bind)
    return Executable((a, b, out), running(_run_through, through))


def _operand(
    launch: Launch, name: str, batch: Sequence[int], matrix: tuple[int, int], strides: tuple[int, ...]
) -> View:
    """Returns a view that broadcasts over the batch where its stride is 0."""
    shape = [1 if step == 0 else extent for extent, step in zip(batch, strides, strict=False)]
    return launch.view(name, (*shape, *matrix), strides)


def _through(dtype: DType, depth: int) -> np.dtype[Any] | None:
    """Returns the type that the product is computed in when that is not its own."""
    if dtype in HALVES:
        return FLOAT32
    if dtype.is_integer and dtype.size <= 2 and depth * (1 << 16 * dtype.size) < _EXACT:
        return _FLOAT64
    return None


def _bind(parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    a, b, out = arrays
    return functools.partial(np.matmul, a, b, out=out)


def _run_through(dtype: np.dtype[Any], a: Array, b: Array, out: Array, scratch: Scratch) -> None:
    wide_a, wide_b = (scratch.take(slot, x.shape, dtype) for slot, x in enumerate((a, b)))
    np.copyto(wide_a, a)
    np.copyto(wide_b, b)
    wide = scratch.take(2, out.shape, dtype)
    np.matmul(wide_a, wide_b, out=wide)
    if out.dtype.kind in "iu":
        np.copyto(out, wide.astype(np.int64), casting="unsafe")
    else:
        np.copyto(out, wide, casting="unsafe")
