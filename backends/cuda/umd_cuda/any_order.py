"""Sums and products of floats in any order: what a device opened with atomics=1 scatters by atomics as well."""

from __future__ import annotations

from typing import Any

from umd_core.commands import CommandBuffer, Flag
from umd_core.errors import UnsupportedError
from umd_core.kernels import KernelRecord
from umd_core.kernels.geometry import Flat
from umd_cuda import sources
from umd_cuda.geometry import Geometry
from umd_cuda.scatters import needs_order
from umd_cuda.sources import KernelSource


class AnyOrder:
    """The sources given, save for the scatters whose sums and products of floats depend on the order of updates."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def source_for(self, record: KernelRecord, wide: bool = False) -> KernelSource | None:
        """Returns the CUDA C of a kernel, None when there is none."""
        if needs_order(record):
            return sources.source_for(record, wide, any_order=True)
        source: KernelSource | None = self._given.source_for(record, wide)
        return source

    def needs_wide(self, record: KernelRecord, flat: Flat) -> bool:
        """Returns whether a launch with this flat parameter block needs 64-bit positions."""
        return bool(self._given.needs_wide(record, flat))

    def launch_geometry(self, record: KernelRecord, flat: Flat) -> Geometry:
        """Returns grid, block and bytes of workgroup memory of a launch."""
        geometry: Geometry = self._given.launch_geometry(record, flat)
        return geometry


def check_deterministic(command_buffer: CommandBuffer, device: str) -> None:
    """Checks that a program that asks for the same bits at each run has no scatter that atomics would reorder.

    Raises:
        UnsupportedError: it has one.
    """
    if command_buffer.flags & Flag.DETERMINISTIC:
        for record in filter(needs_order, command_buffer.kernels):
            reason = "is not deterministic with atomics=1, and the program is marked DETERMINISTIC"
            raise UnsupportedError(reason, kernel=record.row.name, types=(record.types[0].name,), device=device)
