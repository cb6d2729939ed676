"""The kernels as a device takes them that runs invocations one after the other; shaped like `umd_cuda.sources`."""

from __future__ import annotations

from umd_cuda.geometry import serial_geometry as launch_geometry
from umd_cuda.sources import KernelSource, needs_wide, source_for

__all__ = ["KernelSource", "launch_geometry", "needs_wide", "source_for"]
