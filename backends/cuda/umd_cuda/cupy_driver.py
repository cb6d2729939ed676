"""CupyDriver: runs kernels on an NVIDIA GPU through CuPy. Importing this module does not import CuPy."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from umd_core.errors import UmdError
from umd_cuda.cupy_modules import Compiler, CupyModule, import_cupy
from umd_cuda.driver import Call, DriverError, DriverMemoryError, Geometry, HostMemory, Memory, MemoryInfo
from umd_cuda.faults import FATAL
from umd_cuda.libraries import ROUTINES, Gemm, Matrix

_OUT_OF_MEMORY = 2
_PLAIN_SHARED = 48 << 10
"""Bytes of dynamic workgroup memory that a kernel gets without asking for more."""
_MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
FILL = """
template <typename T> __device__ void fill(T* out, T value, unsigned long long count) {
  unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = value;
}
extern "C" __global__ void fill_2(unsigned short* out, unsigned short value, unsigned long long count) {
  fill(out, value, count);
}
extern "C" __global__ void fill_4(unsigned* out, unsigned value, unsigned long long count) { fill(out, value, count); }
extern "C" __global__ void fill_8(unsigned long long* out, unsigned long long value, unsigned long long count) {
  fill(out, value, count);
}
"""
_FILL_BLOCK, _FILL_BLOCKS = 256, 1024


class CupyDriver:
    """One GPU, on non-blocking streams: a queue is a stream.

    CUDA's current device and CuPy's current stream belong to a thread. Every call makes its own current for its own
    time, whatever the thread had before: that costs two calls of the CUDA runtime that touch thread-local state only,
    well under a microsecond. A worker thread that held the context would cost a hand-over between threads, ten times a
    launch, for every call; and contexts are shared by all threads of a process, so nothing else asks for one.

    Attributes:
        name: the GPU's name and its compute capability.
    """

    maps = False
    asynchronous = True
    captures = True

    def __init__(self, ordinal: int) -> None:
        self._cupy: Any = import_cupy()
        self._device = self._cupy.cuda.Device(ordinal)
        with self._faults(), self._device:
            self._first = self._stream = self._cupy.cuda.Stream(non_blocking=True)
            properties = self._cupy.cuda.runtime.getDeviceProperties(ordinal)
            self._compiler = Compiler(self._cupy, self._device)
        self._streams = [self._first]
        self._fill: CupyModule | None = None
        name = properties["name"]
        text = name.decode() if isinstance(name, bytes) else str(name)
        self.name: str = f"{text}, compute capability {properties['major']}.{properties['minor']}"

    @contextlib.contextmanager
    def _faults(self) -> Generator[None]:
        """Turns what CuPy raises into the driver's errors."""
        try:
            yield
        except (DriverError, UmdError):
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
        with self._faults(), self._device:
            if pattern == pattern[:1] * len(pattern):
                start.memset_async(pattern[0], count * len(pattern), self._stream)
                return
            if self._fill is None:
                self._fill = self._compiler.load(FILL, ())
            function = self._compiler.function(self._fill, f"fill_{len(pattern)}")
            grid = min(-(-count // _FILL_BLOCK), _FILL_BLOCKS), 1, 1
            value = np.frombuffer(pattern, f"u{len(pattern)}")[0]
            arguments = (np.uint64(memory.address + offset), value, np.uint64(count))
            function(grid, (_FILL_BLOCK, 1, 1), arguments, shared_mem=0, stream=self._stream)

    # kernels

    def load(self, text: str, options: Sequence[str]) -> CupyModule:
        return self._compiler.load(text, options)

    def function(self, module: CupyModule, name: str) -> Any:
        with self._faults(), self._device:
            return self._compiler.function(module, name)

    def prepare(self, function: Any, geometry: Geometry, addresses: Sequence[int], block: bytes) -> Call:
        grid, group, shared = geometry
        device = self._device
        if shared > _PLAIN_SHARED:
            with self._faults(), device:
                self._cupy.cuda.driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, shared)
        # One array element of a structured type is passed by value, as a struct of the kernel.
        struct = np.frombuffer(block, np.dtype([("block", np.void, len(block))]))
        arguments = (*(np.uint64(address) for address in addresses), struct)

        def launch() -> None:
            try:
                with device:
                    function(grid, group, arguments, shared_mem=shared, stream=self._stream)
            except Exception as error:
                raise fault_of(error) from error

        return launch

    def gemm(self, gemm: Gemm, addresses: Sequence[int]) -> Call | None:
        device, blas = self._device, self._cupy.cuda.cublas
        left, right, out = gemm.left, gemm.right, gemm.out
        routine = ROUTINES[gemm.dtype]
        one, zero = np.array([1.0, 0.0], routine.factor)[:, None]
        element = (getattr(self._cupy.cuda.runtime, routine.element),) if routine.element else ()
        summed = (blas.CUBLAS_COMPUTE_32F, blas.CUBLAS_GEMM_DEFAULT) if element else ()
        operations = [blas.CUBLAS_OP_T if matrix.transposed else blas.CUBLAS_OP_N for matrix in (left, right)]
        with self._faults(), device:
            handle = self._cupy.cuda.device.get_cublas_handle()
        # Without this mode partial sums of halves may be rounded to halves before they are added up.
        mode = blas.CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION if element else blas.CUBLAS_DEFAULT_MATH

        def place(matrix: Matrix) -> tuple[int, ...]:
            return addresses[matrix.operand] + matrix.offset, *element, matrix.leading, matrix.step

        arguments = (
            handle, *operations, gemm.rows, gemm.columns, gemm.depth,
            one.ctypes.data, *place(left), *place(right), zero.ctypes.data, *place(out), gemm.batch, *summed,
        )  # fmt: skip

        def call(factors: Any = (one, zero)) -> None:  # the factors live as long as the call
            try:
                with device, self._stream, _math_mode(blas, handle, mode):
                    getattr(blas, routine.function)(*arguments)
            except Exception as error:
                raise fault_of(error) from error

        return call

    # order

    def queue(self) -> Any:
        with self._faults(), self._device:
            stream = self._cupy.cuda.Stream(non_blocking=True)
        self._streams.append(stream)
        return stream

    def use(self, queue: Any) -> None:
        self._stream = self._first if queue is None else queue

    def record(self) -> Any:
        with self._faults(), self._device:
            return self._stream.record(self._cupy.cuda.Event(disable_timing=True))

    def wait(self, event: Any) -> None:
        with self._faults(), self._device:
            self._stream.wait_event(event)

    def come(self, event: Any) -> bool:
        with self._faults(), self._device:
            return bool(event.done)

    def begin_capture(self) -> None:
        with self._faults(), self._device, self._stream:
            self._stream.begin_capture()

    def end_capture(self) -> Call | None:
        device = self._device
        try:
            with device, self._stream:
                graph = self._stream.end_capture()
        except Exception as error:
            fault = fault_of(error)
            if not fault.fatal:
                return None
            raise fault from error

        def replay() -> None:
            try:
                with device:
                    graph.launch(self._stream)
            except Exception as error:
                raise fault_of(error) from error

        return replay

    def synchronise(self, event: Any = None) -> None:
        with self._faults(), self._device:
            if event is not None:
                event.synchronize()
            else:
                for stream in self._streams:
                    stream.synchronize()

    def close(self) -> None:
        self._compiler.close()
        self.synchronise()


@contextlib.contextmanager
def _math_mode(blas: Any, handle: int, mode: int) -> Generator[None]:
    """Sets a mode of the handle, which belongs to everybody who uses CuPy, for as long as a call is made."""
    before = blas.getMathMode(handle)
    if before == mode:
        yield
        return
    blas.setMathMode(handle, mode)
    try:
        yield
    finally:
        blas.setMathMode(handle, before)


def fault_of(error: Exception) -> DriverError:
    """Returns the driver's error for one that CuPy raised."""
    status = getattr(error, "status", None)
    if status == _OUT_OF_MEMORY or type(error).__name__ == "OutOfMemoryError":
        return DriverMemoryError(str(error))
    meaning = f" ({FATAL[status]})" if status in FATAL else ""
    return DriverError(f"{type(error).__name__}: {error}{meaning}", fatal=status in FATAL)
