"""Optimizer updates, in place and in blocks, so that parameters and moments pass through the cache once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from umd_core.kernels import KernelRecord
from umd_sim.lowerings.expression import BLOCK, blocks
from umd_sim.lowerings.layout import (
    NOTHING,
    Array,
    Call,
    Executable,
    Launch,
    coalesce,
    compute_type,
    patchable_values,
    product,
)
from umd_sim.scratch import Scratch


class Values(NamedTuple):
    """The numbers of one update: patchable fields, learning rate, step, and the row's flag."""

    patchable: tuple[float, ...]
    lr: float
    step: float
    flag: bool


Function = Callable[..., None]
"""function(values, a, b, *operands): operands in the type that is computed in; a and b are spare arrays."""


def _sgd(values: Values, a: Array, b: Array, p: Array, g: Array) -> None:
    (weight_decay,) = values.patchable
    if weight_decay:
        np.multiply(p, weight_decay, out=a)
        np.add(a, g, out=a)
        g = a
    np.multiply(g, values.lr, out=a)
    np.subtract(p, a, out=p)


def _sgd_momentum(values: Values, a: Array, b: Array, p: Array, g: Array, m: Array) -> None:
    weight_decay, momentum, dampening = values.patchable
    if weight_decay:
        np.multiply(p, weight_decay, out=a)
        np.add(a, g, out=a)
        g = a
    if values.step == 1:
        np.copyto(m, g)
    else:
        np.multiply(m, momentum, out=m)
        np.multiply(g, 1.0 - dampening, out=b)
        np.add(m, b, out=m)
    if values.flag:
        np.multiply(m, momentum, out=b)
        np.add(b, g, out=b)
        np.multiply(b, values.lr, out=b)
    else:
        np.multiply(m, values.lr, out=b)
    np.subtract(p, b, out=p)


def _adamw(values: Values, a: Array, b: Array, p: Array, g: Array, m: Array, v: Array) -> None:
    beta1, beta2, epsilon, weight_decay = values.patchable
    if values.flag:
        np.multiply(p, 1.0 - values.lr * weight_decay, out=p)
    elif weight_decay:
        np.multiply(p, weight_decay, out=a)
        np.add(a, g, out=a)
        g = a
    np.multiply(m, beta1, out=m)
    np.multiply(g, 1.0 - beta1, out=b)
    np.add(m, b, out=m)
    np.multiply(g, g, out=b)
    np.multiply(b, 1.0 - beta2, out=b)
    np.multiply(v, beta2, out=v)
    np.add(v, b, out=v)
    np.sqrt(v, out=a)
    np.multiply(a, float(1.0 / np.sqrt(_correction(beta2, values.step))), out=a)
    np.add(a, epsilon, out=a)
    np.divide(m, a, out=a)
    np.multiply(a, float(values.lr / _correction(beta1, values.step)), out=a)
    np.subtract(p, a, out=p)


def _correction(beta: float, step: float) -> np.float64:
    """Returns 1 - beta^step as a NumPy number, which divides by 0 without raising."""
    return np.float64(1.0) - np.float64(beta) ** np.float64(step)


_FUNCTIONS: dict[str, Function] = {
    "sgd_kernel": _sgd,
    "sgd_momentum_kernel": _sgd_momentum,
    "adamw_kernel": _adamw,
}


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of an optimizer update."""
    launch = Launch(record, parameters)
    wholes = [o.name for o in record.row.operands if o.box]
    scalars = [o.name for o in record.row.operands if not o.box]
    shape, strides = coalesce(launch["extents"], *(launch.strides(name) for name in wholes))
    if 0 in shape:
        return NOTHING
    views = [launch.view(name, shape, s) for name, s in zip(wholes, strides, strict=True)]
    views += [launch.view(name) for name in scalars]
    flag = any(bool(launch[f.name]) for f in record.row.fields if not f.patchable)
    step = max(1, BLOCK // max(product(shape[1:]), 1))
    return Executable(tuple(views), functools.partial(_bind, record, len(wholes), flag, step))


def _bind(
    record: KernelRecord,
    wholes: int,
    flag: bool,
    step: int,
    parameters: bytes,
    arrays: Sequence[Array],
    scratch: Scratch,
) -> Call:
    patchable = patchable_values(record, parameters)
    return functools.partial(_run, record, patchable, flag, step, arrays[:wholes], arrays[wholes:], scratch)


def _run(
    record: KernelRecord,
    patchable: tuple[float, ...],
    flag: bool,
    step: int,
    arrays: Sequence[Array],
    scalars: Sequence[Array],
    scratch: Scratch,
) -> None:
    function, compute = _FUNCTIONS[record.row.name], compute_type(record.types[0])
    numbers = [float(scalar) for scalar in scalars]
    # Python floats, so that float32 parameters are not computed in float64.
    values = Values(patchable, numbers[0], numbers[1] if len(numbers) > 1 else 1.0, flag)
    writes = [o.writes for o in record.row.operands]
    for block in blocks(arrays, step) if arrays[0].ndim else (arrays,):
        shape = block[0].shape
        spare = [scratch.take(slot, shape, compute) for slot in range(2)]
        if block[0].dtype == compute:
            function(values, *spare, *block)
            continue
        wide = [scratch.take(slot + 2, shape, compute) for slot in range(len(block))]
        for array, number in zip(block, wide, strict=True):
            np.copyto(number, array)
        function(values, *spare, *wide)
        for array, number, written in zip(block, wide, writes, strict=False):
            if written:
                np.copyto(array, number, casting="unsafe")
