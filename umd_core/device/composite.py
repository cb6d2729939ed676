"""CompositeDevice: a priority list of devices. What the first lacks runs on the next, counted and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from umd_core.device.program import Program
from umd_core.device.protocol import Binding, Buffer, Caps, FenceValue
from umd_core.device.sequential import SequentialDevice
from umd_core.dtypes import DType
from umd_core.errors import UmdError
from umd_core.kernels import BY_NAME, Geometry, KernelRecord

_Kernels = dict[str, frozenset[tuple[DType, ...]] | None]


class CompositeDevice(SequentialDevice):
    """Devices in order of priority, seen as one. Buffers live on the first.

    A kernel that the first lacks runs on the first of the others that has it: its operands are carried over, and its
    results back. `caps` offers, beside the first device's own kernels, the others' level-0 kernels, so that a
    translator decomposes for the first device before it crosses to another; a program that holds any other kernel of
    theirs is loaded all the same.

    Attributes:
        devices: in order of priority.
        crossings: how many launches crossed, by (kernel, type arguments, device name).
    """

    def __init__(self, devices: Sequence[SequentialDevice]) -> None:
        self.devices: tuple[SequentialDevice, ...] = tuple(devices)
        self._first = self.devices[0]
        self.crossings: Counter[tuple[str, tuple[str, ...], str]] = Counter()
        super().__init__(",".join(device.name for device in self.devices))

    def caps(self) -> Caps:
        first = self._first.caps()
        kernels: _Kernels = dict(first.kernels)
        for device in self.devices[1:]:
            for name, types in device.caps().kernels.items():
                if name in BY_NAME and BY_NAME[name].level == 0:
                    kernels[name] = _union(kernels, name, types)
        flags = first.flags - {"estimate", "explain", "queues"}  # crossings go through the host, one after the other
        return Caps(kernels, first.memory, first.max_work, first.max_buffer_bytes, flags)

    def supports(self, name: str, types: tuple[DType, ...]) -> bool:
        return any(device.supports(name, types) for device in self.devices)

    def allocate_memory(self, size: int) -> Any:
        return self._first.allocate_memory(size)

    def free_memory(self, memory: Any) -> None:
        self._first.free_memory(memory)

    def write_memory(self, memory: Any, offset: int, data: memoryview) -> None:
        self._first.write_memory(memory, offset, data)

    def read_memory(self, memory: Any, offset: int, size: int) -> memoryview:
        return self._first.read_memory(memory, offset, size)

    def wrap_memory(self, data: Any) -> Any:
        return self._first.wrap_memory(data)

    def copy(self, destination: Binding, source: Binding) -> None:
        self._first.copy(destination, source)

    def fill(self, destination: Binding, pattern: bytes) -> None:
        self._first.fill(destination, pattern)

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        device = next(d for d in self.devices if d.supports(record.row.name, record.types))
        return device, record, device.executable(record, parameters)

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None] | None:
        device: SequentialDevice = executable[0]
        own = executable[2]
        return device.bind(own, parameters, bindings) if device is self._first else None

    def dispatch(self, executable: Any, launch: Geometry, parameters: bytes, bindings: Sequence[Binding]) -> None:
        device, record, own = executable
        if device is self._first:
            device.dispatch(own, launch, parameters, bindings)
        else:
            self._cross(device, record, own, launch, parameters, bindings)

    def _cross(
        self,
        device: SequentialDevice,
        record: KernelRecord,
        executable: Any,
        launch: Geometry,
        parameters: bytes,
        bindings: Sequence[Binding],
    ) -> None:
        """Runs one launch on another device, over copies of its operands."""
        self.crossings[record.row.name, tuple(t.name for t in record.types), device.name] += 1
        there: dict[tuple[int, int, int], Binding] = {}
        for buffer, offset, size in bindings:
            if (id(buffer), offset, size) not in there:
                copy = Buffer(size, device.allocate_memory(size or 1))
                device.write_memory(copy.memory, 0, self.read_memory(buffer.memory, offset, size))
                there[id(buffer), offset, size] = Binding(copy, 0, size)
        carried = [there[id(buffer), offset, size] for buffer, offset, size in bindings]
        try:
            call = device.bind(executable, parameters, carried)
            if call:
                call()
            else:
                device.dispatch(executable, launch, parameters, carried)
            for operand, home, away in zip(record.row.operands, bindings, carried, strict=True):
                if operand.writes:
                    data = device.read_memory(away.buffer.memory, 0, away.size)
                    self.write_memory(home.buffer.memory, home.offset, data)
        finally:
            for binding in there.values():
                device.free_memory(binding.buffer.memory)

    def perform(
        self,
        program: Program,
        bindings: tuple[Binding, ...],
        words: tuple[int, ...],
        signals: Sequence[FenceValue],
    ) -> Exception | None:
        # Division by zero, overflow and NaN have defined results; NumPy, under some of the devices, would warn.
        with np.errstate(all="ignore"):
            error = super().perform(program, bindings, words, signals)
        try:
            self._first.settle()
        except UmdError as failed:
            return error or failed
        return error

    def close(self) -> None:
        super().close()
        for device in self.devices:
            device.close()


def _union(
    kernels: _Kernels, name: str, types: frozenset[tuple[DType, ...]] | None
) -> frozenset[tuple[DType, ...]] | None:
    """Returns the type arguments that either device runs; None stands for all of the table's."""
    if name not in kernels:
        return types
    mine = kernels[name]
    return None if mine is None or types is None else mine | types
