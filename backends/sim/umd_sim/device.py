"""SimDevice: runs every kernel of the table on NumPy, in host memory."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from umd_core.commands import CommandBuffer
from umd_core.device import Binding, Caps, Choice, FenceValue, Program, SequentialDevice
from umd_core.device.estimation import Timeline
from umd_core.errors import OutOfMemoryError, UnsupportedError
from umd_core.kernels import KERNELS, Geometry, KernelRecord, KernelRow
from umd_sim.lowerings import Executable, lowering_of
from umd_sim.lowerings.layout import bind
from umd_sim.options import Options
from umd_sim.scratch import Scratch, aligned

if TYPE_CHECKING:
    from umd_sim.timing_profile import Profile

MAX_WORK = 1 << 40
"""Element operations in one launch: minutes of a processor's time."""
THIS_PROCESSOR = "cpu"
"""The profile of a simulator that is given none."""
_FLAGS = frozenset(("estimate", "explain", "map", "trim"))


class SimDevice(SequentialDevice):
    """A device whose memory is NumPy arrays of bytes, visible to the host.

    Attributes:
        options: how it was opened.
        scratch: temporaries of its kernels.
    """

    any_thread = True

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        modelled = self._profile.memory if self.options.profile else _half_of_the_machine()
        self._capacity = self.options.memory or modelled
        super().__init__(f"sim:{self.options.ordinal}")
        self.scratch = Scratch(self.name, self._capacity)
        limit_blas(self.options.threads)

    def caps(self) -> Caps:
        kernels = {row.name: None for row in KERNELS.values() if lowering_of(row) is not None}
        return Caps(kernels, memory=self._capacity, max_work=MAX_WORK, flags=_FLAGS)

    def implementation(self, row: KernelRow) -> str:
        """Returns which NumPy lowering runs a kernel; see `Explains`."""
        lowering = lowering_of(row)
        return "" if lowering is None else f"NumPy, {lowering.__module__.rpartition('.')[2]}.{lowering.__name__}"

    def explain(self, record: KernelRecord, parameters: bytes) -> Sequence[Choice]:
        """Returns the lowering that makes a launch; see `Explains`."""
        found = self.implementation(record.row)
        return [Choice(found)] if found else []

    def estimate(self, command_buffer: CommandBuffer) -> Timeline:
        """Returns how long the commands would take on the device that the profile describes; see `Estimates`."""
        from umd_sim.timing import estimate  # noqa: PLC0415  # few devices are asked

        return dataclasses.replace(estimate(command_buffer, self._profile), capacity=self._capacity)

    @functools.cached_property
    def _profile(self) -> Profile:
        """The device that times are estimated for."""
        from umd_sim.timing_profile import read_profile  # noqa: PLC0415  # reading it takes longer than the rest

        return read_profile(self.options.profile or THIS_PROCESSOR)

    # memory

    def allocate_memory(self, size: int) -> Any:
        try:
            return aligned(size)
        except (MemoryError, ValueError) as error:
            raise OutOfMemoryError(size, self.used, self._capacity, 0, device=self.name) from error

    def wrap_memory(self, data: Any) -> Any:
        return data

    def write_memory(self, memory: Any, offset: int, data: memoryview) -> None:
        memory[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)

    def read_memory(self, memory: Any, offset: int, size: int) -> memoryview:
        view: NDArray[np.uint8] = memory[offset : offset + size]
        return view.data

    def copy(self, destination: Binding, source: Binding) -> None:
        bytes_of(destination)[...] = bytes_of(source)

    def fill(self, destination: Binding, pattern: bytes) -> None:
        words = f"u{len(pattern)}"
        shape = (destination.size // len(pattern),)
        np.ndarray(shape, words, destination.buffer.memory, destination.offset).fill(np.frombuffer(pattern, words)[0])

    def trim(self) -> None:
        super().trim()
        self.scratch.trim()

    # kernels

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Executable:
        lowering = lowering_of(record.row)
        if lowering is None:
            raise UnsupportedError("has no lowering", kernel=record.row.name, device=self.name)
        return lowering(record, parameters)

    def bind(self, executable: Executable, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None] | None:
        return bind(executable, parameters, bindings, self.scratch)

    def dispatch(
        self, executable: Executable, launch: Geometry, parameters: bytes, bindings: Sequence[Binding]
    ) -> None:
        with np.errstate(all="ignore"):
            bind(executable, parameters, bindings, self.scratch)()

    def perform(
        self,
        program: Program,
        bindings: tuple[Binding, ...],
        words: tuple[int, ...],
        signals: Sequence[FenceValue],
    ) -> Exception | None:
        # Division by zero, overflow and NaN have defined results here; NumPy would warn about them.
        with np.errstate(all="ignore"):
            return super().perform(program, bindings, words, signals)


def bytes_of(binding: Binding) -> NDArray[np.uint8]:
    """Returns the bytes of a binding, (size,) uint8."""
    view: NDArray[np.uint8] = binding.buffer.memory[binding.offset : binding.offset + binding.size]
    return view


def _half_of_the_machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def limit_blas(threads: int) -> None:
    """Gives NumPy's BLAS this many threads, in the whole process; other libraries keep theirs.

    With more than one, a call now and then waits milliseconds for a thread that the system has put aside.
    """
    for library in _blas():
        library.set_num_threads(threads)


@functools.cache
def _blas() -> tuple[Any, ...]:
    found = ThreadpoolController().lib_controllers
    return tuple(library for library in found if library.user_api == "blas" and "numpy" in library.filepath)
