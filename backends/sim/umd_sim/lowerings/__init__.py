"""LOWERINGS: how each kernel of the table runs on NumPy."""

from __future__ import annotations

from collections.abc import Callable

from umd_core.kernels import KernelRecord, KernelRow
from umd_sim.lowerings import (
    attention,
    chain,
    conversion,
    convolution,
    expression,
    gemm,
    indexing,
    pooling,
    random,
    reduction,
    rows,
    scan,
    sorting,
    updates,
)
from umd_sim.lowerings.layout import Executable

Lowering = Callable[[KernelRecord, bytes], Executable]

LOWERINGS: dict[str, Lowering] = {
    "expression": expression.lower,
    "chain": chain.lower,
    "elementwise_cast_kernel": conversion.lower,
    "reduce": reduction.lower,
    "arg_reduce": reduction.lower_arg,
    "gather": indexing.lower_gather,
    "scatter": indexing.lower_scatter,
    "iota": indexing.lower_iota,
    "gemm": gemm.lower,
    "conv_kernel": convolution.lower,
    "conv_input_grad_kernel": convolution.lower_input_grad,
    "conv_weight_grad_kernel": convolution.lower_weight_grad,
    "pool": pooling.lower,
    "random": random.lower,
    "attention": attention.lower,
    "rows": rows.lower,
    "scan": scan.lower,
    "sort": sorting.lower,
    "update": updates.lower,
}
"""By kernel, or by family where its rows share a lowering."""


def lowering_of(row: KernelRow) -> Lowering | None:
    """Returns the function that lowers a row, None when there is none."""
    return LOWERINGS.get(row.name) or LOWERINGS.get(row.family)


__all__ = ["LOWERINGS", "Executable", "Lowering", "lowering_of"]
