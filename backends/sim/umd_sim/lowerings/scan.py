"""Cumulative sums, products, maxima and minima along one axis."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord
from umd_sim.lowerings.layout import NOTHING, Array, Executable, Launch, coalesce, compute_type, filling, running
from umd_sim.lowerings.reduction import identity
from umd_sim.scratch import Scratch

_UFUNCS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


class _Plan(NamedTuple):
    """How to scan.

    Attributes:
        dtype: what is accumulated.
        lead: elements left out at the end: 1 for exclusive scans, else 0.
        step: -1 for reverse scans, else 1.
        first: what an exclusive scan begins with.
    """

    ufunc: np.ufunc
    dtype: np.dtype[Any]
    lead: int
    step: int
    first: Any


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a scan."""
    launch = Launch(record, parameters)
    shape, x_strides, out_strides = launch.shape("x"), launch.strides("x"), launch.strides("out")
    if 0 in shape:
        return NOTHING
    outer, (x_outer, out_outer) = coalesce(shape[:-1], x_strides[:-1], out_strides[:-1])
    out = launch.view("out", (*outer, shape[-1]), (*out_outer, out_strides[-1]))
    program, dtype = record.row.program, launch.dtype("x")
    first = identity(program, dtype)
    if launch["exclusive"] and shape[-1] == 1:
        return Executable((out,), filling(first))
    x = launch.view("x", (*outer, shape[-1]), (*x_outer, x_strides[-1]))
    step = -1 if launch["reverse"] else 1
    plan = _Plan(_UFUNCS[program], _accumulated(program, dtype), int(bool(launch["exclusive"])), step, first)
    return Executable((x, out), running(_scan, plan))


def _accumulated(program: str, dtype: DType) -> np.dtype[Any]:
    """Returns the type that a scan is done in: sums and products of float32 grow in float64, as torch's do."""
    computed = compute_type(dtype)
    return np.dtype(np.float64) if program in ("add", "mul") and computed == np.float32 else computed


def _scan(plan: _Plan, x: Array, out: Array, scratch: Scratch) -> None:
    x, out = x[..., :: plan.step], out[..., :: plan.step]
    part, target = x[..., : x.shape[-1] - plan.lead], out[..., plan.lead :]
    if plan.dtype == out.dtype:
        plan.ufunc.accumulate(part, axis=-1, dtype=plan.dtype, out=target)
    else:
        wide = scratch.take(0, part.shape, plan.dtype)
        np.copyto(wide, part)
        plan.ufunc.accumulate(wide, axis=-1, dtype=plan.dtype, out=wide)
        np.copyto(target, wide, casting="unsafe")
    if plan.lead:
        out[..., 0] = plan.first
