"""The kernels as a device takes them that runs invocations one after the other; shaped like `umd_cuda.sources`."""

from __future__ import annotations

from umd_core.kernels import KernelRecord
from umd_core.kernels.geometry import Flat
from umd_cuda import plans, sources
from umd_cuda.geometry import serial_geometry as launch_geometry
from umd_cuda.plans import Plan
from umd_cuda.sources import KernelSource, needs_wide

__all__ = ["KernelSource", "launch_geometry", "needs_wide", "source_for"]

_SPARSE = {"conv_kernel": 2, "conv_input_grad_kernel": 2, "conv_weight_grad_kernel": 8}
"""The kernels that gain from tiles here too, and how many times the multiplications these may do."""


def source_for(record: KernelRecord, wide: bool = False) -> KernelSource | None:
    """Returns the source of a kernel, mostly without a plan: there are no workgroups to spread the work over."""
    source = sources.source_for(record, wide, planned=record.row.name in _SPARSE)
    return source if source is None or source.plan is None else source._replace(plan=_plan)


def _plan(record: KernelRecord, flat: Flat) -> Plan:
    tiles = plans.plan_of_conv(record, flat, _SPARSE[record.row.name])
    if tiles is None:
        return Plan(0, ((0, launch_geometry(record, flat)),))
    return tiles if len(tiles.passes) == 1 else plans.split_depth(record, flat, 1)
