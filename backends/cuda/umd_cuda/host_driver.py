"""HostDriver: runs the same CUDA C on the processor, over NumPy memory."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umd_cuda import host
from umd_cuda.driver import Call, DriverMemoryError, Geometry, HostMemory, Memory, MemoryInfo
from umd_cuda.host.toolchain import find_compiler
from umd_cuda.libraries import Gemm

_ALIGNMENT = 256


class HostDriver:
    """The processor as a device: memory is the host's, and a call returns when its work is done.

    Sources are compiled side by side, on as many threads as there are processors; launches run one at a time.

    Args:
        options: for the compiler, after its own: ("-O1",) halves the time that it takes.
    """

    maps = True
    asynchronous = False
    captures = False

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = tuple(options)
        self.name: str = describe_compiler()[0]
        self._compilers = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="umd-cuda-compile")

    # memory

    def memory_info(self) -> MemoryInfo:
        """Returns half of the machine's memory: what a device may use beside everything else."""
        half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        return MemoryInfo(half, half)

    def allocate(self, size: int) -> Memory:
        try:
            whole = np.empty(size + _ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:
            raise DriverMemoryError(str(error)) from error
        start = -whole.ctypes.data % _ALIGNMENT
        return Memory(whole.ctypes.data + start, size, whole[start : start + size])

    def free(self, memory: Memory) -> None:
        memory.owner = None

    def wrap(self, data: Any) -> HostMemory:
        return HostMemory(data.ctypes.data, data.size, data)

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        memory.owner[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)

    def read(self, memory: Memory, offset: int, size: int) -> memoryview:
        view: NDArray[np.uint8] = memory.owner[offset : offset + size]
        return view.data

    def copy(self, destination: Memory, at: int, source: Memory, offset: int, size: int) -> None:
        destination.owner[at : at + size] = source.owner[offset : offset + size]

    def fill(self, memory: Memory, offset: int, pattern: bytes, count: int) -> None:
        words = f"u{len(pattern)}"
        np.ndarray((count,), words, memory.owner, offset).fill(np.frombuffer(pattern, words)[0])

    # kernels

    def load(self, text: str, options: Sequence[str]) -> Future[host.HostModule]:
        """Returns the module in the making. Compiled libraries are kept on the disk, see `umd_cuda.host`."""
        return self._compilers.submit(host.compile, text, (*options, *self._options))

    def function(self, module: Future[host.HostModule], name: str) -> host.HostFunction:
        """Returns a kernel, once its module is there.

        Raises:
            UmdError: the source does not compile, or the library cannot be kept.
        """
        return module.result().function(name)

    def prepare(self, function: host.HostFunction, geometry: Geometry, addresses: Sequence[int], block: bytes) -> Call:
        pointers = [address.to_bytes(8, "little") for address in addresses]
        arguments: Any = function.arguments([*pointers, block])
        return functools.partial(function.launch, *geometry, arguments)

    def gemm(self, gemm: Gemm, addresses: Sequence[int]) -> Call | None:
        return None

    # order

    def queue(self) -> None:
        """Returns None: there is one queue, whose work is done when the call that hands it over returns."""

    def use(self, queue: None) -> None:
        """Does nothing: there is one queue."""

    def record(self) -> None:
        """Returns None, an event that has come."""

    def wait(self, event: None) -> None:
        """Does nothing: every event has come."""

    def come(self, event: None) -> bool:
        return True

    def begin_capture(self) -> None:
        """Does nothing: a call runs at once, and a program's calls are their own replay."""

    def end_capture(self) -> Call | None:
        return None

    def synchronise(self, event: None = None) -> None:
        """Does nothing: work is done when its call returns."""

    def close(self) -> None:
        self._compilers.shutdown()


def describe_compiler() -> tuple[str, str]:
    """Returns a line about the processor and its compiler, or "" and what has to be installed."""
    try:
        compiler = find_compiler()
    except host.NoCompilerError as error:
        return "", str(error)
    return f"this machine's processor, by {compiler.version}", ""
