"""How launches are made, in words: `umd kernels --device` and `umd dis --device` show it."""

from __future__ import annotations

from collections.abc import Sequence

from umd_core import dtypes
from umd_core.device import Choice
from umd_core.kernels import KernelRecord, KernelRow
from umd_core.kernels.geometry import Flat
from umd_cuda.driver import Driver
from umd_cuda.libraries import LEAST_WORK, ROUTINES, Gemm, Matrix, gemm_for
from umd_cuda.plans import Plan
from umd_cuda.sources import Geometry, KernelSource

OWN = "our CUDA C"


def has_blas(driver: Driver) -> bool:
    """Returns whether a driver has a BLAS."""
    one = Matrix(0, 0, False, 1, 0)
    return driver.gemm(Gemm(dtypes.float32, 1, 1, 1, 1, one, one, one), [0]) is not None


def implementation(row: KernelRow, driver: Driver, libraries: bool) -> str:
    """Returns what runs a kernel, and when."""
    if row.family != "gemm" or not libraries or not has_blas(driver):
        return OWN
    types = ", ".join(dtype.name for dtype in ROUTINES)
    return f"cuBLAS for {types} from {LEAST_WORK} multiplications on, by rows or columns; else {OWN}"


def explained(
    record: KernelRecord, flat: Flat, driver: Driver, libraries: bool, source: KernelSource, geometry: Geometry
) -> Sequence[Choice]:
    """Returns how a launch would be made."""
    product = gemm_for(record, flat) if libraries else None
    if product is not None and driver.gemm(product, [0] * len(record.boxes)) is not None:
        return [Choice(f"cuBLAS {ROUTINES[product.dtype].function}")]
    plan = Plan(0, ((0, geometry),)) if source.plan is None else source.plan(record, flat)
    count = len(plan.passes)
    return [
        Choice(OWN if count == 1 else f"{OWN}, pass {number} of {count}", *shape, plan.scratch)
        for number, (_, shape) in enumerate(plan.passes, 1)
    ]
