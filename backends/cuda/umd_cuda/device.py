"""CudaDevice: runs our CUDA C kernels through a driver: on a GPU, or compiled for the processor."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from umd_core.device import Binding, Buffer, Caps, Choice, FenceValue, Program
from umd_core.device.execution import located, poison
from umd_core.errors import OutOfMemoryError, UmdError, UnsupportedError
from umd_core.kernels import KERNELS, Geometry, KernelRecord, KernelRow
from umd_core.kernels.geometry import Flat
from umd_cuda import chains
from umd_cuda import sources as our_sources
from umd_cuda.any_order import AnyOrder, check_deterministic
from umd_cuda.driver import Call, Driver, DriverError, HostMemory, Memory
from umd_cuda.driver import Geometry as Launch
from umd_cuda.explain import explained, implementation
from umd_cuda.libraries import gemm_for
from umd_cuda.options import Options
from umd_cuda.passes import prepared
from umd_cuda.plans import Planner
from umd_cuda.pool import Pool
from umd_cuda.queued import QueuedDevice
from umd_cuda.replay import Replays
from umd_cuda.sources import Geometry as SourceGeometry
from umd_cuda.sources import KernelSource
from umd_cuda.status import CheckedCall, StatusWords

MAX_WORK = 1 << 40
"""Element operations in one launch: minutes of a processor's time, seconds of a GPU's."""
MAX_WORK_ON_A_GPU = 1 << 44


class Sources(Protocol):
    """Where the text of kernels comes from: `umd_cuda.sources`, or something of its shape."""

    def source_for(self, record: KernelRecord, wide: bool = False) -> KernelSource | None:
        """Returns the CUDA C of a kernel, None when there is none."""
        ...

    def needs_wide(self, record: KernelRecord, flat: Flat) -> bool:
        """Returns whether a launch with this flat parameter block needs 64-bit positions."""
        ...

    def launch_geometry(self, record: KernelRecord, flat: Flat) -> SourceGeometry:
        """Returns grid, block and bytes of workgroup memory of a launch."""
        ...


class Executable:
    """A kernel of a module, for the launches of one record. The module may still be in the making."""

    __slots__ = ("_driver", "_function", "_module", "entry", "plan", "record")

    entry: str
    record: KernelRecord
    plan: Planner | None

    def __init__(
        self, driver: Driver, module: Any, entry: str, record: KernelRecord, plan: Planner | None = None
    ) -> None:
        self._driver, self._module, self.entry, self.record, self.plan = driver, module, entry, record, plan
        self._function: Any = None

    @property
    def function(self) -> Any:
        """The driver's kernel.

        Raises:
            DriverError, UmdError: the source does not compile.
        """
        if self._function is None:
            self._function = self._driver.function(self._module, self.entry)
        return self._function

    def __str__(self) -> str:
        return f"{self.record.row.name}<{', '.join(t.name for t in self.record.types)}>"


class CudaDevice(QueuedDevice):
    """A device whose kernels are CUDA C.

    Attributes:
        pool: its memory.
    """

    def __init__(
        self, driver: Driver, name: str, options: Options | None = None, sources: Sources = our_sources
    ) -> None:
        super().__init__(driver, name, options or Options())
        self._sources: Sources = AnyOrder(sources) if self.options.atomics else sources
        self._capacity = self.options.memory or driver.memory_info().free // 10 * 9
        self.pool: Pool = Pool(driver, self._capacity)
        self._words = StatusWords(driver, self.pool, name)
        wanted = driver.captures and self.options.replay and not self.options.sync
        self._replays = Replays(driver) if wanted else None
        self._pending: list[Executable] = []
        self._modules: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._chains = chains.Programs(0 if driver.maps else chains.MOST_PROGRAMS)
        self._loaded: weakref.WeakSet[Program] = weakref.WeakSet()

    def caps(self) -> Caps:
        known = {"map": self.driver.maps, "prepare": self._replays is not None, "queues": self.queues > 1}
        flags = {"explain", "trim", *(name for name, there in known.items() if there)}
        work = MAX_WORK if self.driver.maps else MAX_WORK_ON_A_GPU
        kernels = {row.name: None for row in KERNELS.values() if self._has_source(row)}
        return Caps(kernels, memory=self._capacity, max_work=work, flags=frozenset(flags))

    def _has_source(self, row: KernelRow) -> bool:
        record = row.record([allowed[0] for _, allowed in row.types], [allowed[0] for _, allowed in row.sizes])
        return self._sources.source_for(record) is not None

    def implementation(self, row: KernelRow) -> str:
        """Returns what runs a kernel, and when; see `Explains`."""
        return implementation(row, self.driver, self.options.libraries) if self._has_source(row) else ""

    def explain(self, record: KernelRecord, parameters: bytes) -> Sequence[Choice]:
        """Returns how a launch would be made; see `Explains`."""
        flat = record.struct.unpack(parameters)
        source = self._sources.source_for(record, self._sources.needs_wide(record, flat))
        if source is None:
            return []
        geometry = self._sources.launch_geometry(record, flat)
        return explained(record, flat, self.driver, self.options.libraries, source, geometry)

    # memory

    def allocate(self, size: int, scope: Hashable = None) -> Buffer:
        try:
            return super().allocate(size, scope)
        except OutOfMemoryError as error:
            arenas = sum(program.arena.size for program in list(self._loaded) if program.arena is not None)
            kept = self.pool.kept
            error.args = (f"{error}; {arenas} bytes are arenas of loaded programs, {kept} wait in the pool",)
            raise error.at(arena=arenas, pool=kept) from error.__cause__

    def allocate_memory(self, size: int) -> Memory:
        with self._faults():
            try:
                memory = self.pool.allocate(size, self.name)
            except OutOfMemoryError:
                self.settle()
                self.trim()
                memory = self.pool.allocate(size, self.name)
        self._zeroed()
        return memory

    def free_memory(self, memory: Memory) -> None:
        if not isinstance(memory, HostMemory):
            self._release_later(memory, self.pool.free)

    def wrap_memory(self, data: Any) -> HostMemory:
        return self.driver.wrap(data)

    def write_memory(self, memory: Memory, offset: int, data: memoryview) -> None:
        with self._faults():
            self.driver.write(memory, offset, data)

    def read_memory(self, memory: Memory, offset: int, size: int) -> memoryview:
        with self._faults():
            return self.driver.read(memory, offset, size)

    def copy(self, destination: Binding, source: Binding) -> None:
        into, out_of = destination.buffer.memory, source.buffer.memory
        self.driver.copy(into, destination.offset, out_of, source.offset, source.size)

    def fill(self, destination: Binding, pattern: bytes) -> None:
        count = destination.size // len(pattern)
        self.driver.fill(destination.buffer.memory, destination.offset, pattern, count)

    def trim(self, limit: int = 0) -> None:
        """Forgets cached programs that nobody else holds, and keeps at most `limit` bytes for later allocations."""
        super().trim()
        if not self._lost:
            with self._faults():
                self.pool.trim(limit)

    # kernels

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Executable:
        wide = self._sources.needs_wide(record, record.struct.unpack(parameters))
        source = self._sources.source_for(record, wide)
        if source is None:
            types = tuple(t.name for t in record.types)
            raise UnsupportedError("has no CUDA source", kernel=record.row.name, types=types, device=self.name)
        key = (self._chains.text_for(source.text, record, parameters), tuple(source.options))
        with self._faults():
            module = self._modules.get(key)
            if module is None:
                module = self._modules[key] = self.driver.load(*key)
        executable = Executable(self.driver, module, source.entry, record, source.plan)
        self._pending.append(executable)
        return executable

    def _finish_loading(self) -> None:
        """Waits for the modules that were asked for: what does not compile is known when the program is loaded."""
        for executable in self._pending:
            try:
                with self._faults(f"while {executable} is loaded"):
                    _ = executable.function
            except BaseException:
                self._modules.clear()  # what failed is tried again next time: the disk may have room by then
                self._executables.clear()
                raise
        self._pending.clear()

    def bind(self, executable: Executable, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        record = executable.record
        flat = record.struct.unpack(parameters)
        addresses = [buffer.memory.address + offset for buffer, offset, _ in bindings]
        product = gemm_for(record, flat) if self.options.libraries else None
        library = self.driver.gemm(product, addresses) if product is not None else None
        if library is not None:
            return self._waiting(library)
        if executable.plan is not None:

            def prepare(launch: Launch, block: bytes) -> Call:
                return self.driver.prepare(executable.function, launch, addresses, block)

            return self._waiting(prepared(self, executable.plan(record, flat), prepare, parameters))
        launch = Launch(*self._sources.launch_geometry(record, flat))
        if not record.row.status:
            return self._waiting(self.driver.prepare(executable.function, launch, addresses, parameters))
        place = self._words.take()
        addresses.append(place[0].address + place[1])
        call = self._waiting(self.driver.prepare(executable.function, launch, addresses, parameters))
        extent = record.unpack(parameters)["axis"]
        return CheckedCall(self._words, place, call, record.row.name, extent)

    def _waiting(self, call: Call) -> Call:
        """Returns the call, followed by a wait when the device was opened with sync=1."""
        if self.options.sync and self.driver.asynchronous:
            return functools.partial(_call_and_wait, call, self.driver)
        return call

    def dispatch(
        self, executable: Executable, launch: Geometry, parameters: bytes, bindings: Sequence[Binding]
    ) -> None:
        self.bind(executable, parameters, bindings)()

    # submissions

    def _load(self, raw: bytes, inputs: Any, outputs: Any, aliases: Any) -> Program:
        self._check_alive()
        self._pending.clear()
        program = super()._load(raw, inputs, outputs, aliases)
        if self.options.atomics:
            check_deterministic(program.command_buffer, self.name)
        self._finish_loading()
        self._loaded.add(program)
        return program

    def perform(
        self,
        program: Program,
        bindings: tuple[Binding, ...],
        words: tuple[int, ...],
        signals: Sequence[FenceValue],
    ) -> Exception | None:
        timed = self.control is not None and self.control.times is not None
        if self._replays and not (self.poisoned or timed) and self._replays.run(program, bindings, words):
            return self._replayed(self._replays, program)
        error = self._known(super().perform(program, bindings, words, signals))
        if error is None and self._replays:
            self._replays.ran(program)
        return error

    def _replayed(self, replays: Replays, program: Program) -> UmdError | None:
        """Returns the first failure of a replay. All of it has run: every output may depend on what failed."""
        first: UmdError | None = None
        for position, failure in replays.failures(program):
            first = first or located(failure, self.name, program.steps[position])
        if first is not None:
            poison(self, program.writable(), first)
        return first

    def _known(self, error: Exception | None) -> Exception | None:
        """Returns the error of a step; a fatal fault becomes the loss of the device."""
        fault = error.__cause__ if error is not None else None
        if error is None or not isinstance(fault, DriverError):
            return error
        facts = error.facts() if isinstance(error, UmdError) else {}
        return self._fault(fault, str(error)).at(**facts)

    def close(self) -> None:
        if not self._open:
            return
        super().close()
        if self._replays:
            self._replays.forget()
        self._words.close()
        try:
            if not self._lost:
                self.pool.trim()
            self.driver.close()
        except DriverError as fault:
            if not (self._lost or fault.fatal):
                raise self._fault(fault, "while it is closed") from fault


def _call_and_wait(call: Call, driver: Driver) -> None:
    call()
    driver.synchronise()
