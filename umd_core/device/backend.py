"""What the author of a backend writes, and what may be left as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from umd_core.device.protocol import Binding, Caps
from umd_core.errors import UnsupportedError
from umd_core.kernels import Geometry, KernelRecord

if TYPE_CHECKING:
    from umd_core.device.program import Program


class BackendMethods:
    """The methods of a sequential device that are the backend's own; every range has been checked before.

    Attributes:
        name: "backend:ordinal".
    """

    name = ""

    def caps(self) -> Caps:
        """Returns what the device can do. The answer never changes."""
        raise self._lacks("caps")

    def allocate_memory(self, size: int) -> Any:
        """Returns the backend's handle on `size` (at least 1) new bytes."""
        raise self._lacks("allocate_memory")

    def free_memory(self, memory: Any) -> None:
        """Gives memory back; the base drops its reference in any case."""

    def write_memory(self, memory: Any, offset: int, data: memoryview) -> None:
        """Writes bytes at `offset`; the range has been checked."""
        raise self._lacks("write_memory")

    def read_memory(self, memory: Any, offset: int, size: int) -> memoryview:
        """Returns `size` bytes from `offset` on, as a copy or (on a device that maps) as a view."""
        raise self._lacks("read_memory")

    def wrap_memory(self, data: Any) -> Any:
        """Returns memory over host bytes, (size,) uint8, without a copy. Asked of devices with the flag "map" only."""
        raise self._lacks("wrap_memory")

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        """Returns an executable: whatever `dispatch` or `bind` wants.

        It is shared by launches whose parameters agree except in patchable fields, so it must not rely on those.
        """
        raise self._lacks("load_kernel")

    def dispatch(self, executable: Any, launch: Geometry, parameters: bytes, bindings: Sequence[Binding]) -> None:
        """Runs one kernel over the bindings' bytes."""
        raise self._lacks("dispatch")

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None] | None:
        """Returns a call that runs the kernel over these bindings any number of times; None to use `dispatch`."""
        return None

    def copy(self, destination: Binding, source: Binding) -> None:
        """Copies bytes between disjoint ranges of equal size."""
        data = self.read_memory(source.buffer.memory, source.offset, source.size)
        self.write_memory(destination.buffer.memory, destination.offset, data)

    def fill(self, destination: Binding, pattern: bytes) -> None:
        """Repeats a pattern over a range."""
        data = pattern * (destination.size // len(pattern))
        self.write_memory(destination.buffer.memory, destination.offset, memoryview(data))

    def order(self, program: Program) -> Sequence[int] | None:
        """Returns another legal order of the program's steps, None for program order. See `legal_order`."""
        return None

    def _lacks(self, method: str) -> UnsupportedError:
        return UnsupportedError(f"the backend has no {method}", device=self.name or type(self).__name__)
