"""A stand-in for the parts of CuPy that CupyDriver uses: memory on the host, calls in a log, launches not run.

It insists on what CuPy and CUDA insist on: current devices and streams belong to a thread; a device is current before a
stream of it is, and whenever a stream, event, kernel or memory of it is used; a stream that captures is not waited for,
and a struct is an array of one element of a structured type.
"""

from __future__ import annotations

import ctypes
import threading
import time
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class FakeCupy:
    """The module.

    Attributes:
        log: what was done.
        fail: maps an action's name to the status that it fails with, once.
        pause: seconds that a use of a device takes, so that threads meet.
    """

    def __init__(self, capacity: int = 1 << 24) -> None:
        self.log: list[Any] = []
        self.fail: dict[str, int] = {}
        self.capacity, self.allocated = capacity, 0
        self.pause = 0.0
        self._local = threading.local()
        self.__version__ = "14.2.0"
        self.math_mode = 0
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
            def compute_capability(self) -> str:
                return f"9{self.id}"

            @property
            def mem_info(self) -> tuple[int, int]:
                return fake.capacity - fake.allocated, fake.capacity

        class Stream:
            def __init__(self, *, non_blocking: bool) -> None:
                assert fake.devices
                assert non_blocking, "only such a stream can be captured beside others"
                fake.act("stream")
                self.device = fake.devices[-1]
                self.capturing: list[Any] | None = None

            def __enter__(self) -> Stream:
                fake.on(self.device)
                fake.streams.append(self)
                return self

            def __exit__(self, *_: object) -> None:
                fake.streams.pop()

            def synchronize(self) -> None:
                fake.on(self.device)
                assert self.capturing is None
                fake.act("synchronize")

            def record(self, event: Any) -> Any:
                fake.on(self.device)
                assert event.device == self.device
                event.stream = self
                fake.act("record")
                return event

            def wait_event(self, event: Any) -> None:
                fake.on(self.device)
                assert event.stream is not None
                fake.act(("wait_event", fake.number(event.stream), fake.number(self)))

            def begin_capture(self) -> None:
                fake.on(self.device)
                fake.act("begin_capture")
                self.capturing = []

            def end_capture(self) -> Any:
                captured, self.capturing = self.capturing, None
                fake.act("end_capture")

                def launch(stream: Any) -> None:
                    fake.on(stream.device)
                    fake.act("graph.launch")
                    fake.graphs.append(fake.number(stream))
                    fake.log.extend(captured or [])

                return SimpleNamespace(launch=launch)

        class Event:
            def __init__(self, *, disable_timing: bool) -> None:
                assert disable_timing, "it would cost time"
                self.device, self.stream = fake.devices[-1], None

            @property
            def done(self) -> bool:
                fake.on(self.device)
                fake.act("query")
                return True

            def synchronize(self) -> None:
                fake.on(self.device)
                assert self.stream is not None
                fake.act("event.synchronize")

        class Memory:
            def __init__(self, size: int) -> None:
                self.device = fake.devices[-1]
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
                fake.on(stream.device, self.mem.device)
                fake.act("memset_async")
                ctypes.memset(self.ptr, value, size)

            def _copy(self, target: int, source: int, size: int, stream: Any, what: str) -> None:
                fake.on(stream.device, self.mem.device)
                fake.act(what)
                ctypes.memmove(target, source, size)

        class Module:
            def __init__(self) -> None:
                self.device = fake.devices[-1]

            def load(self, image: bytes) -> None:
                fake.on(self.device)
                fake.act(("load", image))

            def get_function(self, name: str) -> Any:
                fake.on(self.device)
                fake.act(("get_function", name))
                return Function(self, name)

        class Function:
            def __init__(self, module: Module, name: str) -> None:
                self.module, self.name, self.ptr, self.most = module, name, id(self), 48 << 10
                fake.functions[self.ptr] = self

            def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0, stream: Any = None) -> None:
                fake.on(self.module.device, stream.device)
                assert shared_mem <= self.most
                if self.name.startswith("fill_"):
                    start, value, count = args
                    size = int(count) * value.itemsize
                    ctypes.memmove(int(start), value.tobytes() * int(count), size)
                    fake.act((self.name, grid, block))
                    return
                *pointers, struct = args
                assert all(type(p) is np.uint64 for p in pointers)
                assert struct.shape == (1,)
                assert struct.dtype.names
                entry = ("launch", self.name, grid, block, [int(p) for p in pointers], struct.tobytes(), shared_mem)
                if stream.capturing is not None:
                    stream.capturing.append(entry)
                else:
                    fake.act(entry)
                    fake.used.append(fake.number(stream))

        self.cuda = SimpleNamespace(
            Device=Device, Stream=Stream, Memory=Memory, MemoryPointer=MemoryPointer,
            cublas=SimpleNamespace(
                CUBLAS_OP_N=0, CUBLAS_OP_T=1, CUBLAS_DEFAULT_MATH=0, CUBLAS_COMPUTE_32F=68, CUBLAS_GEMM_DEFAULT=-1,
                CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION=16,
                getMathMode=lambda handle: fake.math_mode, setMathMode=self._set_math_mode,
                sgemmStridedBatched=lambda *a: fake.gemm(np.float32, *a),
                dgemmStridedBatched=lambda *a: fake.gemm(np.float64, *a),
                gemmStridedBatchedEx=self._gemm_ex,
            ),
            device=SimpleNamespace(get_cublas_handle=lambda: 77),
            Event=Event, Module=Module, get_cuda_path=lambda: "/cuda",
            nvrtc=SimpleNamespace(getVersion=lambda: (13, 5)),
            driver=SimpleNamespace(funcSetAttribute=self._set_attribute),
            compiler=SimpleNamespace(compile_using_nvrtc=self._compile),
            runtime=SimpleNamespace(
                CUDA_R_16F=2, CUDA_R_16BF=14,
                getDeviceProperties=lambda ordinal: {"name": b"Test GPU", "major": 9, "minor": ordinal}
            ),
        )  # fmt: skip
        self.functions: dict[int, Any] = {}
        self.used: list[int] = []
        self.graphs: list[int] = []
        self._numbers: dict[Any, int] = {}

    @property
    def devices(self) -> list[int]:
        """The devices that this thread has made current, the innermost last."""
        found: list[int] = self._local.__dict__.setdefault("devices", [])
        return found

    @property
    def streams(self) -> list[Any]:
        """The streams that this thread has made current, the innermost last."""
        found: list[Any] = self._local.__dict__.setdefault("streams", [])
        return found

    def on(self, *devices: int) -> None:
        """Checks that what belongs to these devices may be used: CUDA refuses it while another is current."""
        if not self.devices or any(device != self.devices[-1] for device in devices):
            raise CUDARuntimeError(400)
        if self.pause:
            time.sleep(self.pause)
            assert self.devices[-1] == devices[0]

    def number(self, stream: Any) -> int:
        """Returns a number for a stream, in the order in which streams were seen."""
        return self._numbers.setdefault(stream, len(self._numbers))

    def _compile(self, text: str, options: tuple[str, ...], *, cache_in_memory: bool) -> tuple[bytes, None]:
        assert self.devices
        assert cache_in_memory, "CuPy would write into folders of its own"
        self.act(("compile", text, options))
        return f"{text} for {self.devices[-1]}".encode(), None

    def _set_attribute(self, function: int, attribute: int, value: int) -> None:
        assert attribute == 8
        self.functions[function].most = value

    def _set_math_mode(self, handle: int, mode: int) -> None:
        assert handle == 77
        self.math_mode = mode

    def _gemm_ex(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: int, a_type: int, lda: int,
        step_a: int, b: int, b_type: int, ldb: int, step_b: int, beta: int, c: int, c_type: int, ldc: int, step_c: int,
        count: int, compute: int, algorithm: int,
    ) -> None:  # fmt: skip
        """The order of CuPy 14's `gemmStridedBatchedEx`; halves are summed in float32, in the mode that rounds once."""
        assert a_type == b_type == c_type
        assert (compute, algorithm, self.math_mode) == (68, -1, 16)
        dtype = {2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}[c_type]
        self.gemm(
            dtype, handle, transa, transb, m, n, k, alpha, a, lda, step_a, b, ldb, step_b, beta, c, ldc, step_c, count,
            np.float32,
        )  # fmt: skip

    def current(self) -> Any:
        """Returns the current stream; there must be one, under a current device."""
        assert self.streams
        self.on(self.streams[-1].device)
        return self.streams[-1]

    def gemm(
        self, dtype: Any, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: int, lda: int,
        step_a: int, b: int, ldb: int, step_b: int, beta: int, c: int, ldc: int, step_c: int, count: int,
        summed: Any = None,
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

        factor = summed or dtype
        scale, keep = (
            np.frombuffer((ctypes.c_uint8 * np.dtype(factor).itemsize).from_address(p), factor)[0]
            for p in (alpha, beta)
        )
        assert (scale, keep) == (1, 0)
        left, right = matrices(a, m, k, lda, step_a, bool(transa)), matrices(b, k, n, ldb, step_b, bool(transb))
        matrices(c, m, n, ldc, step_c, False)[...] = left.astype(factor) @ right.astype(factor)

    def act(self, what: Any) -> None:
        """Notes an action, or fails."""
        name = what if isinstance(what, str) else what[0]
        status = self.fail.pop(name, 0)
        if status:
            raise CUDARuntimeError(status)
        self.log.append(what)
