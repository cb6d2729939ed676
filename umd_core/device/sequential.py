"""SequentialDevice: the base of backends that run one command after the other."""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.device.backend import BackendMethods
from umd_core.device.cache import Bounded, Recent
from umd_core.device.execution import clear, execute, poison, poison_in
from umd_core.device.fence import Fence, SubmissionTicket
from umd_core.device.program import Program
from umd_core.device.protocol import Binding, Buffer, Caps, FenceValue
from umd_core.device.submission import Lines, Submission
from umd_core.device.tensor import Tensor, as_bytes, run, span, upload
from umd_core.dtypes import DType
from umd_core.encoding import Limits, decode
from umd_core.errors import (
    BindingError,
    CancelledError,
    DeviceLostError,
    InputCountError,
    InternalError,
    LimitError,
    OutOfMemoryError,
    PoisonedError,
    StaleHandleError,
    UmdError,
    UnsupportedError,
)
from umd_core.kernels import KernelRecord

PROGRAMS, EXECUTABLES = 128, 4096


class SequentialDevice(BackendMethods):
    """Base of backends that run one command after the other, on the thread that owns the device.

    A subclass writes `caps`, `allocate_memory`, `write_memory`, `read_memory`, `load_kernel` and either `dispatch` or
    `bind`. What it calls memory is its own affair; buffers, checks, accounting, programs, queues, fences and failures
    are kept here. Nothing here blocks: a submission whose waits are not met runs when the signal that meets them comes.

    Attributes:
        name: "backend:ordinal".
        poisoned: buffers with bytes that failed work should have written.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name or self.name
        self.poisoned: set[Buffer] = set()
        self._used = 0
        self._programs, self._recent = Bounded(PROGRAMS), Recent(PROGRAMS)
        self._executables = Bounded(EXECUTABLES)
        self._dropped: deque[Buffer] = deque()
        self._zombies: list[Buffer] = []
        self._lines = Lines(self._drain)
        self._running = False
        self._open = True

    def supports(self, name: str, types: tuple[DType, ...]) -> bool:
        """Returns whether `load` accepts a kernel with these type arguments."""
        return self._caps.supports(name, types)

    def resolve(self, handle: int) -> Buffer:
        """Returns the buffer that a direct handle (id | generation << 32) in a command buffer names."""
        raise StaleHandleError("handle", f"{handle & 0xFFFFFFFF}, generation {handle >> 32},")

    @functools.cached_property
    def _caps(self) -> Caps:
        return self.caps()

    @functools.cached_property
    def _limits(self) -> Limits:
        return Limits(total_size=self._caps.max_buffer_bytes)

    @functools.cached_property
    def maps(self) -> bool:
        """Whether the device's buffers are visible to the host."""
        return "map" in self._caps.flags

    # memory

    @property
    def used(self) -> int:
        """Bytes in use: buffers, arenas and constants, not wrapped host memory."""
        self._reap()
        return self._used

    def allocate(self, size: int) -> Buffer:
        self._reap()
        if not self._open:
            raise DeviceLostError(self.name, "it was closed")
        if size < 0:
            raise LimitError("buffer size", size, 0)
        if size > self._caps.memory - self._used:
            self.trim()
        free = self._caps.memory - self._used
        if size > free:
            raise OutOfMemoryError(size, self._used, self._caps.memory, free, device=self.name)
        buffer = Buffer(size, self.allocate_memory(size or 1))
        buffer.charged = size
        self._used += size
        return buffer

    def wrap(self, array: Any) -> Buffer:
        """Returns a buffer over the bytes that a host array lies in, without a copy. The caller keeps it unchanged.

        Raises:
            UnsupportedError: the device's buffers are not visible to the host.
        """
        if not self.maps:
            raise UnsupportedError("its buffers are not visible to the host", device=self.name)
        data = span(np.asarray(array))
        return Buffer(data.size, self.wrap_memory(data))

    def free(self, buffer: Buffer) -> None:
        if not buffer.alive:
            raise StaleHandleError("buffer", repr(buffer), "was freed before")
        buffer.alive = False
        if self._running or (self._lines and self._lines.user(buffer)):
            self._zombies.append(buffer)
        else:
            self._release(buffer)

    def drop(self, *buffers: Buffer) -> None:
        """Frees buffers soon: callable from a finalizer, on any thread; the device's own next call does the work."""
        self._dropped.extend(buffers)

    def trim(self) -> None:
        """Forgets cached programs, with their arenas and constants, that nobody else holds."""
        self._programs.clear()
        self._recent.clear()
        self._executables.clear()
        self._reap()

    def _reap(self) -> None:
        while self._dropped:
            buffer = self._dropped.popleft()
            if buffer.alive:
                self.free(buffer)

    def _release(self, buffer: Buffer) -> None:
        if buffer.users:
            for reference in buffer.users:
                program = reference()
                if program is not None:
                    program.unbind(buffer)
        self.poisoned.discard(buffer)
        self._used -= buffer.charged
        memory, buffer.memory = buffer.memory, None
        self.free_memory(memory)

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        view = as_bytes(data)
        self._check(buffer, offset, view.nbytes, "write")
        if buffer.poison:
            clear(buffer, offset, offset + view.nbytes)
            if not buffer.poison:
                self.poisoned.discard(buffer)
        if view.nbytes:
            self.write_memory(buffer.memory, offset, view)

    def read(self, buffer: Buffer, offset: int, size: int) -> memoryview:
        self._check(buffer, offset, size, "read")
        if buffer.poison:
            root = poison_in(buffer, offset, offset + size)
            if root is not None:
                raise PoisonedError(f"read of bytes [{offset}, {offset + size})", root)
        return self.read_memory(buffer.memory, offset, size) if size else memoryview(b"")

    def _check(self, buffer: Buffer, offset: int, size: int, what: str) -> None:
        if self._dropped:
            self._reap()
        if not buffer.alive:
            raise StaleHandleError("buffer", repr(buffer), "was freed")
        if offset < 0 or size < 0 or size > buffer.size or offset > buffer.size - size:
            detail = f"bytes [{offset}, {offset + size}) are outside the buffer of {buffer.size} bytes"
            raise BindingError(0, "range", f"{what}: {detail}")
        waiting = self._lines.user(buffer) if self._lines else None
        if waiting is not None:
            raise CancelledError(f"{what} of a buffer whose submission {waiting.ticket.blocked_on}")

    # programs

    def load(self, encoded: bytes | CommandBuffer, scope: Hashable = None) -> Program:
        """Returns the validated program. The same bytes give the same program again while it is cached.

        `scope` keeps the arenas of different owners apart: programs are shared only within one.
        """
        described = encoded if isinstance(encoded, CommandBuffer) else CommandBuffer()
        raw = bytes(encoded)
        descs = (tuple(described.inputs), tuple(described.outputs), tuple(described.aliases))
        key = (hashlib.sha256(raw).digest(), scope, descs)
        program: Program | None = self._programs.find(key)
        if program is None:
            program = self._load(raw, *descs)
            if not program.one_shot:
                self._programs.keep(key, program)
        return program

    def forget(self, scope: Hashable) -> None:
        """Drops the cached programs of one owner, with their arenas and constants, unless somebody still holds them."""
        for key in [key for key in self._programs if isinstance(key, tuple) and key[1] == scope]:
            del self._programs[key]
        self._reap()

    def program(self, command_buffer: CommandBuffer) -> Program:
        """Returns the program of a CommandBuffer that is not changed any more; the same object costs a look-up."""
        program = self._recent.find(command_buffer)
        if program is None:
            program = self.load(command_buffer)
            self._recent.keep(command_buffer, program)
        return program

    def _load(self, raw: bytes, inputs: Any, outputs: Any, aliases: Any) -> Program:
        self._reap()
        command_buffer = decode(raw, self._limits, self._caps.max_work)
        for record in command_buffer.kernels:
            if not self.supports(record.row.name, record.types):
                types = tuple(t.name for t in record.types)
                raise UnsupportedError("is not there", kernel=record.row.name, types=types, device=self.name)
        return Program(self, command_buffer, inputs, outputs, aliases)

    def executable(self, record: KernelRecord, parameters: bytes) -> Any:
        """Returns `load_kernel`'s result, once per record and unpatchable parameters."""
        if record.patchable:
            block = bytearray(parameters)
            for position in record.patchable:
                block[position] = 0
            key = (record.key, bytes(block))
        else:
            key = (record.key, parameters)
        found = self._executables.find(key)
        if found is None:
            found = self.load_kernel(record, parameters)
            self._executables.keep(key, found)
        return found

    # submissions

    def fence(self) -> Fence:
        return Fence()

    def submit(
        self,
        program: Program,
        bindings: Sequence[Binding],
        values: Sequence[int] = (),
        waits: Sequence[FenceValue] = (),
        signals: Sequence[FenceValue] = (),
        queue: int = 0,
    ) -> SubmissionTicket:
        if self._dropped:
            self._reap()
        given, words = tuple(bindings), tuple(values)
        self._check_submission(program, signals)
        if program.handles:
            given += tuple(self._handle(slot.value) for slot in program.handles)
        if given != program.bound:
            program.check(given)
        if words != program.words:
            program.check_words(words)
        if program.one_shot:
            program.spend()
        ticket = SubmissionTicket()
        if waits or self._lines or self._running:
            waiting = Submission(program, given, words, tuple(waits), tuple(signals), ticket)
            if self._lines.add(queue, waiting):
                self._drain()
        else:
            self._run(program, given, words, signals, ticket)
            if self._lines or self._zombies:
                self._drain()
        return ticket

    def _check_submission(self, program: Program, signals: Sequence[FenceValue]) -> None:
        if not self._open:
            raise DeviceLostError(self.name, "it was closed")
        if program.device is not self:
            raise StaleHandleError("program", f"of {program.device.name}", f"was not loaded by this {self.name}")
        if len(signals) < program.signal_count:
            least = program.signal_count
            raise InputCountError("submission", len(signals), least, 2**32, "signals")
        for fence, value in signals:
            if value <= fence.value:
                raise LimitError("fence signal", value, fence.value)

    def _handle(self, handle: int) -> Binding:
        buffer = self.resolve(handle)
        return Binding(buffer, 0, buffer.size)

    def _run(
        self,
        program: Program,
        bindings: tuple[Binding, ...],
        words: tuple[int, ...],
        signals: Sequence[FenceValue],
        ticket: SubmissionTicket,
    ) -> None:
        self._running = True
        try:
            error = self.perform(program, bindings, words, signals)
            ticket.complete(error)
            for fence, value in signals:
                fence.advance(value)
        finally:
            self._running = False

    def perform(
        self,
        program: Program,
        bindings: tuple[Binding, ...],
        words: tuple[int, ...],
        signals: Sequence[FenceValue],
    ) -> Exception | None:
        """Does the checked work of a submission and returns what went wrong, None when nothing did.

        A backend overrides it to do something around every submission, or to replay a recording instead.
        """
        return self._bind(program, bindings, words) or execute(self, program, signals)

    def _bind(self, program: Program, bindings: tuple[Binding, ...], words: tuple[int, ...]) -> Exception | None:
        """Makes the program fit; returns what went wrong, with the outputs poisoned."""
        if bindings == program.bound and words == program.words:
            return None
        try:
            program.bind(bindings, words)
        except Exception as error:  # noqa: BLE001  # whatever a backend raises becomes the ticket's error
            known = (
                error if isinstance(error, UmdError) else InternalError(f"{self.name}: {type(error).__name__}: {error}")
            )
            poison(self, program.writable(), known)
            return known
        return None

    def cancel(self, ticket: SubmissionTicket, error: Exception) -> None:
        """Ends a submission that still waits: it never runs, and its ticket raises the error."""
        if self._lines.remove(ticket):
            ticket.complete(error)
            self._drain()

    def _drain(self) -> None:
        """Runs every waiting submission that may run."""
        if self._running:
            return
        while (ready := self._lines.pop()) is not None:
            self._run(ready.program, ready.bindings, ready.words, ready.signals, ready.ticket)
        zombies, self._zombies = self._zombies, []
        for buffer in zombies:
            if self._lines.user(buffer):
                self._zombies.append(buffer)
            else:
                self._release(buffer)

    def run(self, command_buffer: CommandBuffer | Program, inputs: Sequence[Any]) -> list[Tensor]:
        program = command_buffer if isinstance(command_buffer, Program) else self.program(command_buffer)
        return run(self, program, inputs)

    def tensor(self, array: Any) -> Tensor:
        return upload(self, array)

    def close(self) -> None:
        """Ends the device: waiting work fails, programs are dropped, nothing more is accepted."""
        self._open = False
        lost = DeviceLostError(self.name, "it was closed")
        for waiting in self._lines.clear():
            waiting.ticket.complete(lost)
        self.trim()
