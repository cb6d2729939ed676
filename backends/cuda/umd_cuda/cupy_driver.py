"""CupyDriver: runs kernels on an NVIDIA GPU through CuPy. Importing this module does not import CuPy."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from umd_cuda.driver import Call, DriverError, DriverMemoryError, Geometry, HostMemory, Memory, MemoryInfo
from umd_cuda.libraries import Gemm, Matrix

_OUT_OF_MEMORY = 2
_FATAL = frozenset((4, 46, 100, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999))
"""Errors of the CUDA runtime and driver after which the context is of no use: a kernel's fault, or a device gone."""
_PLAIN_SHARED = 48 << 10
"""Bytes of dynamic workgroup memory that a kernel gets without asking for more."""


class CupyDriver:
    """One GPU, on one non-blocking stream.

    Every call makes the device and the stream current for its own time, whatever the thread had before.

    Attributes:
        name: the GPU's name and its compute capability.
    """

    maps = False
    asynchronous = True
    captures = True

    def __init__(self, ordinal: int) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        self._device = self._cupy.cuda.Device(ordinal)
        with self._faults(), self._device:
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            properties = self._cupy.cuda.runtime.getDeviceProperties(ordinal)
        name = properties["name"]
        text = name.decode() if isinstance(name, bytes) else str(name)
        self.name = f"{text}, compute capability {properties['major']}.{properties['minor']}"

    @contextlib.contextmanager
    def _faults(self) -> Generator[None]:
        """Turns what CuPy raises into the driver's errors."""
        try:
            yield
        except DriverError:
            raise
        except Exception as error:
            raise fault_of(error) from error

    # memory

    def memory_info(self) -> MemoryInfo:
        with self._faults(), self._device:
            free, total = self._device.mem_info
        return MemoryInfo(int(free), int(total))

    def allocate(self, size: int) -> Memory:
        with self._faults(), self._device:
            pointer = self._cupy.cuda.MemoryPointer(self._cupy.cuda.Memory(size), 0)
        return Memory(int(pointer.ptr), size, pointer)

    def free(self, memory: Memory) -> None:
        with self._faults(), self._device:
            memory.owner = None

    def wrap(self, data: Any) -> HostMemory:
        raise DriverError("host memory cannot be bound on a GPU")

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        source = np.frombuffer(data, np.uint8)
        with self._faults(), self._device, self._stream:
            (memory.owner + offset).copy_from_host_async(source.ctypes.data, source.size, self._stream)
            self._stream.synchronize()

    def read(self, memory: Memory, offset: int, size: int) -> memoryview:
        target = np.empty(size, np.uint8)
        with self._faults(), self._device, self._stream:
            (memory.owner + offset).copy_to_host_async(target.ctypes.data, size, self._stream)
            self._stream.synchronize()
        return target.data

    def copy(self, destination: Memory, at: int, source: Memory, offset: int, size: int) -> None:
        with self._faults(), self._device, self._stream:
            (destination.owner + at).copy_from_device_async(source.owner + offset, size, self._stream)

    def fill(self, memory: Memory, offset: int, pattern: bytes, count: int) -> None:
        start = memory.owner + offset
        with self._faults(), self._device, self._stream:
            if pattern == pattern[:1] * len(pattern):
                start.memset_async(pattern[0], count * len(pattern), self._stream)
            else:
                words = np.dtype(f"u{len(pattern)}")
                self._cupy.ndarray((count,), words, memptr=start).fill(np.frombuffer(pattern, words)[0])

    # kernels

    def load(self, text: str, options: Sequence[str]) -> Any:
        """Returns a RawModule.

        CuPy keeps what it compiled under CUPY_CACHE_DIR by source, options, architecture and compiler version, written
        atomically, with a checksum that it verifies.
        """
        with self._faults(), self._device:
            return self._cupy.RawModule(code=text, options=tuple(options), backend="nvrtc")

    def function(self, module: Any, name: str) -> Any:
        with self._faults(), self._device:
            kernel = module.get_function(name)
            _ = kernel.attributes  # CuPy compiles and loads when it must: now, not within a capture
            return kernel

    def prepare(self, function: Any, geometry: Geometry, addresses: Sequence[int], block: bytes) -> Call:
        grid, group, shared = geometry
        device, stream = self._device, self._stream
        if shared > _PLAIN_SHARED:
            with self._faults(), device:
                function.max_dynamic_shared_size_bytes = shared
        # One array element of a structured type is passed by value, as a struct of the kernel.
        struct = np.frombuffer(block, np.dtype([("block", np.void, len(block))]))
        arguments = (*(np.uint64(address) for address in addresses), struct)

        def launch() -> None:
            try:
                with device, stream:
                    function(grid, group, arguments, shared_mem=shared)
            except Exception as error:
                raise fault_of(error) from error

        return launch

    def gemm(self, gemm: Gemm, addresses: Sequence[int]) -> Call | None:
        device, stream, blas = self._device, self._stream, self._cupy.cuda.cublas
        left, right, out = gemm.left, gemm.right, gemm.out
        product = getattr(blas, f"{gemm.letter}gemmStridedBatched")
        one, zero = np.array([1.0, 0.0], {"s": np.float32, "d": np.float64}[gemm.letter])[:, None]
        operations = [blas.CUBLAS_OP_T if matrix.transposed else blas.CUBLAS_OP_N for matrix in (left, right)]
        with self._faults(), device:
            handle = self._cupy.cuda.device.get_cublas_handle()

        def place(matrix: Matrix) -> tuple[int, int, int]:
            return addresses[matrix.operand] + matrix.offset, matrix.leading, matrix.step

        arguments = (
            handle, *operations, gemm.rows, gemm.columns, gemm.depth,
            one.ctypes.data, *place(left), *place(right), zero.ctypes.data, *place(out), gemm.batch,
        )  # fmt: skip

        def call(factors: Any = (one, zero)) -> None:  # the factors live as long as the call
            try:
                with device, stream:
                    product(*arguments)
            except Exception as error:
                raise fault_of(error) from error

        return call

    # order

    def begin_capture(self) -> None:
        with self._faults(), self._device, self._stream:
            self._stream.begin_capture()

    def end_capture(self) -> Call | None:
        device, stream = self._device, self._stream
        try:
            with device, stream:
                graph = stream.end_capture()
        except Exception as error:
            fault = fault_of(error)
            if not fault.fatal:
                return None
            raise fault from error

        def replay() -> None:
            try:
                with device, stream:
                    graph.launch(stream)
            except Exception as error:
                raise fault_of(error) from error

        return replay

    def synchronise(self) -> None:
        with self._faults(), self._device:
            self._stream.synchronize()

    def close(self) -> None:
        self.synchronise()


def fault_of(error: Exception) -> DriverError:
    """Returns the driver's error for one that CuPy raised."""
    status = getattr(error, "status", None)
    if status == _OUT_OF_MEMORY or type(error).__name__ == "OutOfMemoryError":
        return DriverMemoryError(str(error))
    return DriverError(f"{type(error).__name__}: {error}", fatal=status in _FATAL)
