"""What a device says of how it would make a launch, when its caps have the flag "explain"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from umd_core.kernels import KernelRecord, KernelRow


class Choice(NamedTuple):
    """One launch as the device would make it.

    Attributes:
        runs: what runs it: the backend's own kernel or a library's function.
        grid, block: workgroups, and invocations of each, as x, y, z; () where the device has none.
        shared: bytes of workgroup memory beyond what the kernel declares itself.
        workspace: bytes of memory that the launch needs beside its bindings.
    """

    runs: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    workspace: int = 0

    def __str__(self) -> str:
        grid = [f"grid {_times(self.grid)}", f"block {_times(self.block)}"] if self.grid else []
        sizes = [f"{self.shared} bytes shared"] if self.grid else []
        return ", ".join([self.runs, *grid, *sizes, f"{self.workspace} bytes of workspace"])


def _times(extents: Sequence[int]) -> str:
    return "×".join(map(str, extents))


class Explains(Protocol):
    """What a device with the flag "explain" offers beside `Device`. Nothing is compiled, launched or allocated."""

    def implementation(self, row: KernelRow) -> str:
        """Returns what runs a kernel of the table, and when, in a few words; "" where the device lacks it."""
        ...

    def explain(self, record: KernelRecord, parameters: bytes) -> Sequence[Choice]:
        """Returns how a launch with this parameter block would be made: its passes, in order."""
        ...
