"""A stand-in for the parts of CuPy that CupyDriver uses: memory on the host, calls in a log, launches not run.

It insists on what CuPy and CUDA insist on: a device is current before a stream of it is, every launch and copy happens
under both, a stream that captures is not waited for, and a struct is an array of one element of a structured type.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class FakeCupy:
    """The module. `log` holds what was done; `fail` maps an action's name to the status that it fails with, once."""

    def __init__(self, capacity: int = 1 << 24) -> None:
        self.log: list[Any] = []
        self.fail: dict[str, int] = {}
        self.capacity, self.allocated = capacity, 0
        self.devices: list[int] = []
        self.streams: list[Any] = []
        fake = self

        class Device:
            def __init__(self, ordinal: int) -> None:
                self.id = ordinal

            def __enter__(self) -> Device:
                fake.devices.append(self.id)
                return self

            def __exit__(self, *_: object) -> None:
                fake.devices.pop()

            @property
            def mem_info(self) -> tuple[int, int]:
                return fake.capacity - fake.allocated, fake.capacity

        class Stream:
            def __init__(self, *, non_blocking: bool) -> None:
                assert fake.devices
                assert non_blocking, "only such a stream can be captured beside others"
                self.capturing: list[Any] | None = None

            def __enter__(self) -> Stream:
                assert fake.devices
                fake.streams.append(self)
                return self

            def __exit__(self, *_: object) -> None:
                fake.streams.pop()

            def synchronize(self) -> None:
                assert fake.devices
                assert self.capturing is None
                fake.act("synchronize")

            def begin_capture(self) -> None:
                fake.act("begin_capture")
                self.capturing = []

            def end_capture(self) -> Any:
                captured, self.capturing = self.capturing, None
                fake.act("end_capture")

                def launch(stream: Any) -> None:
                    assert stream is fake.current()
                    fake.act("graph.launch")
                    fake.log.extend(captured or [])

                return SimpleNamespace(launch=launch)

        class Memory:
            def __init__(self, size: int) -> None:
                assert fake.devices
                if fake.allocated + size > fake.capacity:
                    raise CUDARuntimeError(2)
                fake.act("malloc")
                fake.allocated += size
                self.size, self.bytes = size, np.full(size, 0xCD, np.uint8)

            def __del__(self) -> None:
                fake.allocated -= getattr(self, "size", 0)

        class MemoryPointer:
            def __init__(self, mem: Memory, offset: int) -> None:
                self.mem, self.offset = mem, offset

            @property
            def ptr(self) -> int:
                return int(self.mem.bytes.ctypes.data) + self.offset

            def __add__(self, offset: int) -> MemoryPointer:
                return MemoryPointer(self.mem, self.offset + offset)

            def copy_from_host_async(self, source: int, size: int, stream: Any) -> None:
                self._copy(self.ptr, source, size, stream, "copy_from_host_async")

            def copy_to_host_async(self, target: int, size: int, stream: Any) -> None:
                self._copy(target, self.ptr, size, stream, "copy_to_host_async")

            def copy_from_device_async(self, source: MemoryPointer, size: int, stream: Any) -> None:
                self._copy(self.ptr, source.ptr, size, stream, "copy_from_device_async")

            def memset_async(self, value: int, size: int, stream: Any) -> None:
                assert stream is fake.current()
                fake.act("memset_async")
                ctypes.memset(self.ptr, value, size)

            def _copy(self, target: int, source: int, size: int, stream: Any, what: str) -> None:
                assert stream is fake.current()
                fake.act(what)
                ctypes.memmove(target, source, size)

        class ndarray:  # noqa: N801  # CuPy's name
            def __init__(self, shape: tuple[int, ...], dtype: Any, memptr: MemoryPointer) -> None:
                self.view = np.ndarray(shape, dtype, memptr.mem.bytes, memptr.offset)

            def fill(self, value: Any) -> None:
                fake.current()
                fake.act("ndarray.fill")
                self.view.fill(value)

        class RawModule:
            def __init__(self, *, code: str, options: tuple[str, ...], backend: str) -> None:
                assert isinstance(options, tuple)
                fake.act(("RawModule", code, options, backend))

            def get_function(self, name: str) -> Any:
                fake.act(("get_function", name))
                return RawKernel(name)

        class RawKernel:
            def __init__(self, name: str) -> None:
                self.name, self.max_dynamic_shared_size_bytes = name, 48 << 10

            @property
            def attributes(self) -> dict[str, int]:
                assert fake.devices
                fake.act("compile")
                return {"num_regs": 32}

            def __call__(self, grid: Any, block: Any, args: tuple[Any, ...], *, shared_mem: int = 0) -> None:
                assert shared_mem <= self.max_dynamic_shared_size_bytes
                *pointers, struct = args
                assert all(type(p) is np.uint64 for p in pointers)
                assert struct.shape == (1,)
                assert struct.dtype.names
                entry = ("launch", self.name, grid, block, [int(p) for p in pointers], struct.tobytes(), shared_mem)
                stream = fake.current()
                if stream.capturing is not None:
                    stream.capturing.append(entry)
                else:
                    fake.act(entry)

        self.cuda = SimpleNamespace(
            Device=Device, Stream=Stream, Memory=Memory, MemoryPointer=MemoryPointer,
            cublas=SimpleNamespace(
                CUBLAS_OP_N=0, CUBLAS_OP_T=1,
                sgemmStridedBatched=lambda *a: fake.gemm(np.float32, *a),
                dgemmStridedBatched=lambda *a: fake.gemm(np.float64, *a),
            ),
            device=SimpleNamespace(get_cublas_handle=lambda: 77),
            runtime=SimpleNamespace(
                getDeviceProperties=lambda ordinal: {"name": b"Test GPU", "major": 9, "minor": ordinal}
            ),
        )  # fmt: skip
        self.ndarray, self.RawModule = ndarray, RawModule

    def current(self) -> Any:
        """Returns the current stream; there must be one, under a current device."""
        assert self.devices
        assert self.streams
        return self.streams[-1]

    def gemm(
        self, dtype: Any, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: int, lda: int,
        step_a: int, b: int, ldb: int, step_b: int, beta: int, c: int, ldc: int, step_c: int, count: int,
    ) -> None:  # fmt: skip
        """What BLAS does, column by column; the argument checks are its own."""
        self.current()
        assert handle == 77
        assert lda >= max(1, k if transa else m)
        assert ldb >= max(1, n if transb else k)
        assert ldc >= max(1, m)
        self.act("gemm")

        def matrices(address: int, down: int, across: int, leading: int, step: int, transposed: bool) -> Any:
            size = np.dtype(dtype).itemsize
            shape = (count, across, down) if transposed else (count, down, across)
            strides = (step * size, size, leading * size)
            reach = sum((e - 1) * s for e, s in zip(shape, strides, strict=True)) + size
            data = np.frombuffer((ctypes.c_uint8 * reach).from_address(address), np.uint8)
            view = np.lib.stride_tricks.as_strided(data.view(dtype), shape, strides)
            return view.transpose(0, 2, 1) if transposed else view

        scale, keep = (
            np.frombuffer((ctypes.c_uint8 * np.dtype(dtype).itemsize).from_address(p), dtype)[0] for p in (alpha, beta)
        )
        assert (scale, keep) == (1, 0)
        left, right = matrices(a, m, k, lda, step_a, bool(transa)), matrices(b, k, n, ldb, step_b, bool(transb))
        matrices(c, m, n, ldc, step_c, False)[...] = left @ right

    def act(self, what: Any) -> None:
        """Notes an action, or fails."""
        name = what if isinstance(what, str) else what[0]
        status = self.fail.pop(name, 0)
        if status:
            raise CUDARuntimeError(status)
        self.log.append(what)
