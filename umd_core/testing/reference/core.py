"""The reference's entry: one launch over host arrays, by family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from umd_core.ir import Array
from umd_core.kernels import KernelRecord
from umd_core.testing.reference import along, attention, expressions, families, random, windows
from umd_core.testing.reference.wide import widen


@dataclass(frozen=True, slots=True)
class Case:
    """One launch over host memory.

    Attributes:
        record: the kernel.
        parameters: its parameter block.
        operands: what each operand's box holds, by name, in the operand's own dtype.
    """

    record: KernelRecord
    parameters: bytes
    operands: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a written operand must hold afterwards.

    Attributes:
        value: wide numbers, shaped like the operand's box.
        scale: per element, the size of the numbers whose rounding errors the result may show.
    """

    value: Array
    scale: Array


_FAMILIES: dict[str, Callable[..., Mapping[str, tuple[Any, Any]]]] = {
    "expression": expressions.expression,
    "chain": expressions.chain,
    "reduce": families.reduce,
    "arg_reduce": families.arg_reduce,
    "gather": families.gather,
    "scatter": families.scatter,
    "iota": families.iota,
    "gemm": families.gemm,
    "random": random.random,
    "rows": families.rows,
    "update": families.update,
    "attention": attention.attention,
    "scan": along.scan,
    "sort": along.sort,
    "conv": windows.conv,
    "pool": windows.pool,
}


def reference(case: Case) -> dict[str, Expected]:
    """Returns what every written operand of a launch must hold, by name.

    Raises:
        IndexRangeError: a data-dependent index is out of range.
    """
    record = case.record
    wide = {name: widen(array) for name, array in case.operands.items()}
    parameters = record.unpack(case.parameters)
    with np.errstate(all="ignore"):
        results = _FAMILIES[record.row.family](record, parameters, wide)
    return {
        name: Expected(np.asarray(value), np.broadcast_to(np.asarray(scale), np.shape(value)))
        for name, (value, scale) in results.items()
    }
