"""What the tests of the CUDA device share: sources that do not need a compiler, and kernels played by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cuda.lazy_driver import LazyDriver
from umd_core import dtypes
from umd_core.commands import CommandBuffer
from umd_core.device import Binding
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.kernels.geometry import Flat
from umd_core.testing.recording import Recording
from umd_cuda.device import CudaDevice
from umd_cuda.options import Options
from umd_cuda.recording import Launched, RecordingDriver
from umd_cuda.sources import Geometry, KernelSource
from umd_cuda.status import WORD

COUNT = 5
SIZE = 4 * COUNT
X = np.arange(COUNT, dtype=np.float32)
REVERSED = np.arange(COUNT, dtype=np.int64)[::-1].copy()
ADD = BY_NAME["elementwise_add_kernel"].record((dtypes.float32,), (1,))
GATHER = BY_NAME["gather_kernel"].record((dtypes.float32, dtypes.int64), (1,))
ADD_BLOCK = ADD.pack(
    extents=(COUNT,), a_offset=0, a_strides=(1,), b_offset=0, b_strides=(1,), out_offset=0, out_strides=(1,)
)
GATHER_BLOCK = GATHER.pack(
    extents=(COUNT,), axis=COUNT,
    data_offset=0, data_strides=(0, 1), index_offset=0, index_strides=(1,), out_offset=0, out_strides=(1,),
)  # fmt: skip


class Sources:
    """Stands for `umd_cuda.sources`: two kernels, whose text is their name."""

    def source_for(self, record: KernelRecord, wide: bool = False) -> KernelSource | None:
        name = record.row.name
        return KernelSource(f"// {name}", name, ("-DX",)) if name in (ADD.row.name, GATHER.row.name) else None

    def needs_wide(self, record: KernelRecord, flat: Flat) -> bool:
        return False

    def launch_geometry(self, record: KernelRecord, flat: Flat) -> Geometry:
        return (1, 1, 1), (256, 1, 1), 0


def add(driver: RecordingDriver, launched: Launched) -> None:
    """Plays elementwise_add_kernel."""
    a, b, out = (driver.at(address, SIZE).view(np.float32) for address in launched.addresses)
    out[...] = a + b


def gather(driver: RecordingDriver, launched: Launched) -> None:
    """Plays gather_kernel: an index out of range sets the status word."""
    data, index, out, status = launched.addresses
    values, indices = driver.at(data, SIZE).view(np.float32), driver.at(index, 8 * COUNT).view(np.int64)
    bad = indices[(indices < -COUNT) | (indices >= COUNT)]
    if bad.size:
        driver.at(status, WORD.size)[...] = np.frombuffer(WORD.pack(1, 0, int(bad[0])), np.uint8)
    else:
        driver.at(out, SIZE).view(np.float32)[...] = values[indices]


def recorded(driver: RecordingDriver | None = None, **options: Any) -> tuple[CudaDevice, RecordingDriver]:
    """Returns a device whose driver keeps what it is told."""
    driver = driver or RecordingDriver()
    driver.effects = {"elementwise_add_kernel": add, "gather_kernel": gather}
    return CudaDevice(driver, "cuda:0", Options(**options), Sources()), driver


def lazy(seed: int = 0, strict: bool = True, **options: Any) -> tuple[CudaDevice, LazyDriver]:
    """Returns a device whose work runs when it must."""
    driver = LazyDriver(RecordingDriver(), seed, strict)
    driver.inner.effects = {"elementwise_add_kernel": add, "gather_kernel": gather}
    return CudaDevice(driver, "cuda:0", Options(**options), Sources()), driver


def adding(flags: int = 0) -> CommandBuffer:
    """Returns a program of one addition: a, b, out."""
    recording = Recording()
    places = [(recording.argument(), 0, SIZE) for _ in range(3)]
    recording.dispatch(ADD, ADD_BLOCK, places)
    return recording.finish(flags=flags)


def gathering(count: int = 1) -> CommandBuffer:
    """Returns a program of `count` gathers, each followed by a mark: data, index, then an output each."""
    recording = Recording()
    data, index = recording.argument(), recording.argument()
    for number in range(count):
        recording.mark(f"gather {number}")
        places = [(data, 0, SIZE), (index, 8 * COUNT * number, 8 * COUNT), (recording.argument(), 0, SIZE)]
        recording.dispatch(GATHER, GATHER_BLOCK, places)
    return recording.finish()


def through_arena(length: int = SIZE) -> CommandBuffer:
    """Returns a program that copies bytes of its first argument to the second by way of its arena."""
    recording = Recording()
    source, target = recording.argument(), recording.argument()
    arena = recording.arena()
    recording.copy((arena, 0, length), (source, 0, length))
    recording.copy((target, 0, length), (arena, 0, length))
    return recording.finish()


def floats(device: CudaDevice, binding: Binding) -> list[float]:
    result: list[float] = np.frombuffer(device.read(*binding), np.float32).tolist()
    return result


def addresses(bindings: list[Binding]) -> tuple[int, ...]:
    return tuple(buffer.memory.address + offset for buffer, offset, _ in bindings)
