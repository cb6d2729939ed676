"""RecordingDriver: for tests. It keeps what it was told, in order, and behaves like a GPU as far as order goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umd_cuda.driver import Call, DriverError, DriverMemoryError, Geometry, HostMemory, Memory, MemoryInfo
from umd_cuda.libraries import Gemm

_ALIGNMENT = 256


class Launched(NamedTuple):
    """A launch as a kernel would see it."""

    kernel: str
    geometry: Geometry
    addresses: tuple[int, ...]
    block: bytes


@dataclass(eq=False)
class RecordingDriver:
    """Memory is host bytes; launches do nothing, or what `effects` says.

    Attributes:
        capacity: bytes that may be allocated.
        log: names of the calls, in order; "launch KERNEL" for launches, "replay" for a whole capture.
        launches: every launch that ran, those of replays too.
        queues: the queue of each launch: 0 for the first, then in the order in which they were asked for.
        waits: (queue that waits, queue and number of the event) for each wait.
        current: the current queue.
        sources: (text, options) of every module.
        effects: by kernel name, what a launch does.
        fault: raised by the next launch or look at the work, then forgotten.
        allocated: bytes that are allocated now.
    """

    capacity: int = 1 << 30
    name: str = "a recording"
    maps: bool = False
    asynchronous: bool = True
    captures: bool = True
    blas: bool = False
    log: list[str] = field(default_factory=list)
    launches: list[Launched] = field(default_factory=list)
    sources: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    effects: dict[str, Callable[[RecordingDriver, Launched], None]] = field(default_factory=dict)
    fault: DriverError | None = None
    allocated: int = 0
    queues: list[int] = field(default_factory=list)
    waits: list[tuple[int, tuple[int, int]]] = field(default_factory=list)
    current: int = 0
    _count: int = 0
    _events: int = 0
    _captured: list[Launched] | None = None
    _memories: list[Memory] = field(default_factory=list)

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(self.capacity - self.allocated, self.capacity)

    def allocate(self, size: int) -> Memory:
        self.log.append("allocate")
        if size > self.capacity - self.allocated:
            raise DriverMemoryError(f"{size} bytes")
        whole = np.full(size + _ALIGNMENT, 0xCD, np.uint8)
        start = -whole.ctypes.data % _ALIGNMENT
        memory = Memory(whole.ctypes.data + start, size, whole[start : start + size])
        self.allocated += size
        self._memories.append(memory)
        return memory

    def free(self, memory: Memory) -> None:
        self.log.append("free")
        self.allocated -= memory.size
        self._memories.remove(memory)

    def wrap(self, data: Any) -> HostMemory:
        return HostMemory(data.ctypes.data, data.size, data)

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        self._outside_capture("write")
        memory.owner[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)

    def read(self, memory: Memory, offset: int, size: int) -> memoryview:
        self._outside_capture("read")
        copied: NDArray[np.uint8] = memory.owner[offset : offset + size].copy()
        return copied.data

    def copy(self, destination: Memory, at: int, source: Memory, offset: int, size: int) -> None:
        self.log.append("copy")
        destination.owner[at : at + size] = source.owner[offset : offset + size]

    def fill(self, memory: Memory, offset: int, pattern: bytes, count: int) -> None:
        self.log.append("fill")
        memory.owner[offset : offset + count * len(pattern)] = np.frombuffer(pattern * count, np.uint8)

    def load(self, text: str, options: Sequence[str]) -> Any:
        self._outside_capture("load")
        self.sources.append((text, tuple(options)))
        return text

    def function(self, module: Any, name: str) -> Any:
        return name

    def prepare(self, function: Any, geometry: Geometry, addresses: Sequence[int], block: bytes) -> Call:
        launched = Launched(function, geometry, tuple(addresses), block)

        def launch() -> None:
            if self._captured is not None:
                self._captured.append(launched)
            else:
                self._launch(launched)

        return launch

    def gemm(self, gemm: Gemm, addresses: Sequence[int]) -> Call | None:
        return self.prepare(f"blas {gemm}", Geometry((1, 1, 1), (1, 1, 1), 0), addresses, b"") if self.blas else None

    def _launch(self, launched: Launched) -> None:
        self._fail()
        self.log.append(f"launch {launched.kernel}")
        self.launches.append(launched)
        self.queues.append(self.current)
        effect = self.effects.get(launched.kernel)
        if effect is not None:
            effect(self, launched)

    def queue(self) -> int:
        self._count += 1
        return self._count

    def use(self, queue: int | None) -> None:
        self.current = queue or 0

    def record(self) -> tuple[int, int]:
        self._events += 1
        return self.current, self._events

    def wait(self, event: tuple[int, int]) -> None:
        self.waits.append((self.current, event))

    def come(self, event: tuple[int, int]) -> bool:
        self._fail()
        return True

    def begin_capture(self) -> None:
        self.log.append("begin_capture")
        self._captured = []

    def end_capture(self) -> Call | None:
        self.log.append("end_capture")
        captured, self._captured = self._captured or [], None

        def replay() -> None:
            self.log.append("replay")
            for launched in captured:
                self._launch(launched)

        return replay

    def synchronise(self, event: tuple[int, int] | None = None) -> None:
        self._outside_capture("synchronise")
        self._fail()

    def close(self) -> None:
        self.log.append("close")

    def at(self, address: int, size: int) -> NDArray[np.uint8]:
        """Returns the bytes at an address that a kernel was given, (size,) uint8.

        Raises:
            DriverError: they are not within one allocation.
        """
        for memory in self._memories:
            if memory.address <= address and address + size <= memory.address + memory.size:
                view: NDArray[np.uint8] = memory.owner[address - memory.address :][:size]
                return view
        raise DriverError("illegal memory access", fatal=True)

    def _outside_capture(self, call: str) -> None:
        self.log.append(call)
        if self._captured is not None:
            raise DriverError(f"{call} while work is captured")

    def _fail(self) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
