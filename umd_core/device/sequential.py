"""SequentialDevice: the base of backends that run one command after the other."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.device.backend import BackendMethods
from umd_core.device.cache import Bounded, Recent
from umd_core.device.control import Control
from umd_core.device.execution import clear, execute, poison, poison_in
from umd_core.device.fence import Fence, SubmissionTicket
from umd_core.device.program import Program
from umd_core.device.protocol import Binding, Buffer, Caps, FenceValue
from umd_core.device.submission import Lines, Submission
from umd_core.device.tensor import Tensor, as_bytes, run, span, upload, writable
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
        control: that of the submission which runs, None when it has none.
        overtaking: set while bytes are read or written whose place is before submissions that wait.
    """

    def __init__(self, name: str = "") -> None:
        self.name: str = name or self.name
        self.poisoned: set[Buffer] = set()
        self._used = 0
        self._held: Counter[Hashable] = Counter()
        self._scope: Hashable = None
        self._programs, self._recent = Bounded(PROGRAMS), Recent(PROGRAMS)
        self._executables = Bounded(EXECUTABLES)
        self._dropped: deque[Buffer] = deque()
        self._zombies: list[Buffer] = []
        self._lines = Lines(self._drain)
        self._running = False
        self.control: Control | None = None
        self.overtaking = False
        self._given: Control | None = None
        self._decoded: CommandBuffer | None = None
        self._open = True

    @property
    def lost(self) -> str:
        """Why nothing will ever run on the device again, "" while it does; its process has to be started anew."""
        return ""

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

    def held(self, scope: Hashable) -> int:
        """Returns the bytes in use on one owner's account: its buffers, and arenas and constants of its programs."""
        self._reap()
        return self._held[scope]

    def allocate(self, size: int, scope: Hashable = None) -> Buffer:
        """Returns a new buffer of `size` zero bytes, on the account of `scope`: see `held`.

        Raises:
            OutOfMemoryError: the device has no room for it.
        """
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
        buffer.charged, buffer.scope = size, self._scope if scope is None else scope
        self._used += size
        self._held[buffer.scope] += size
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
        self._held[buffer.scope] -= buffer.charged
        if not self._held[buffer.scope]:
            del self._held[buffer.scope]
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

    def read_into(self, buffer: Buffer, offset: int, out: Any) -> None:
        """Fills `out`, anything writable that is contiguous, with the bytes from byte `offset` on.

        Raises:
            ShapeError: it cannot be filled in place.
        """
        view = writable(out)
        np.frombuffer(view, np.uint8)[...] = np.frombuffer(self.read(buffer, offset, len(view)), np.uint8)

    def _check(self, buffer: Buffer, offset: int, size: int, what: str) -> None:
        if self._dropped:
            self._reap()
        if not buffer.alive:
            raise StaleHandleError("buffer", repr(buffer), "was freed")
        if offset < 0 or size < 0 or size > buffer.size or offset > buffer.size - size:
            detail = f"bytes [{offset}, {offset + size}) are outside the buffer of {buffer.size} bytes"
            raise BindingError(0, "range", f"{what}: {detail}")
        waiting = None
        if self._lines and not self.overtaking:
            waiting = self._lines.user(buffer, writers=what == "read")
        if waiting is not None:
            raise CancelledError(f"{what} of a buffer whose submission {waiting.ticket.blocked_on}")

    # programs

    def load(
        self, encoded: bytes | CommandBuffer, scope: Hashable = None, decoded: CommandBuffer | None = None
    ) -> Program:
        """Returns the validated program. The same bytes give the same program again while it is cached.

        `decoded` is what `validate` returned for these bytes, which is then not done again. `scope` keeps the arenas of
        different owners apart: programs are shared only within one, on whose account arena and constants are.
        """
        described = encoded if isinstance(encoded, CommandBuffer) else CommandBuffer()
        raw = bytes(encoded)
        descs = (tuple(described.inputs), tuple(described.outputs), tuple(described.aliases))
        key = (hashlib.sha256(raw).digest(), scope, descs)
        program: Program | None = self._programs.find(key)
        if program is None:
            self._scope, self._decoded = scope, decoded
            try:
                program = self._load(raw, *descs)
            finally:
                self._scope = self._decoded = None
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
        return Program(self, self._decoded or self.validate(raw), inputs, outputs, aliases)

    def validate(self, raw: bytes) -> CommandBuffer:
        """Returns what the bytes of a program say, once it is known that this device can run it.

        Raises:
            DecodeError: the bytes break a rule.
            UnsupportedError: the device lacks one of its kernels.
        """
        command_buffer = decode(raw, self._limits, self._caps.max_work)
        for record in command_buffer.kernels:
            if not self.supports(record.row.name, record.types):
                types = tuple(t.name for t in record.types)
                raise UnsupportedError("is not there", kernel=record.row.name, types=types, device=self.name)
        return command_buffer

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
        ticket = self._new_ticket(queue)
        ticket.control = self._given
        if waits or self._running or (self._lines and self._lines.blocks(queue)):
            waiting = Submission(program, given, words, tuple(waits), tuple(signals), ticket)
            if self._lines.add(queue, waiting):
                self._drain()
        else:
            self._start(program, given, words, signals, ticket)
            if (self._lines and signals) or self._zombies:
                self._drain()
        return ticket

    def submit_with(
        self,
        control: Control,
        program: Program,
        bindings: Sequence[Binding],
        values: Sequence[int] = (),
        waits: Sequence[FenceValue] = (),
        signals: Sequence[FenceValue] = (),
        queue: int = 0,
    ) -> SubmissionTicket:
        """Returns a ticket as `submit` does, for work that `control` governs."""
        self._given = control
        try:
            return self.submit(program, bindings, values, waits, signals, queue)
        finally:
            self._given = None

    def _new_ticket(self, queue: int) -> SubmissionTicket:
        """Returns the ticket of a submission. A backend whose work goes on after `submit` overrides it, and `_run`."""
        return SubmissionTicket()

    def settle(self) -> None:
        """Returns when no work is under way. Here none ever is: work that may start has ended when `submit` returns.

        Raises:
            UmdError: work failed that belongs to no submission.
        """

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

    def _start(
        self,
        program: Program,
        bindings: tuple[Binding, ...],
        words: tuple[int, ...],
        signals: Sequence[FenceValue],
        ticket: SubmissionTicket,
    ) -> None:
        control = ticket.control
        if control is None:
            self._run(program, bindings, words, signals, ticket)
            return
        self.control = control
        try:
            error = control.begin()
            if error is None:
                self._run(program, bindings, words, signals, ticket)
            else:
                self._end_unrun(Submission(program, bindings, words, (), tuple(signals), ticket), error)
        finally:
            self.control = None

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
        """Ends a submission that still waits: it never runs, and its ticket raises the error.

        What it should have written is poisoned, and its signals fire.
        """
        submission = self._lines.remove(ticket)
        if submission is not None:
            self._end_unrun(submission, error)
            self._drain()

    def _end_unrun(self, submission: Submission, error: Exception) -> None:
        poison(self, submission.program.written(submission.bindings), error)
        submission.ticket.complete(error)
        for fence, value in submission.signals:
            fence.advance(value)

    def abandon(self, tickets: Sequence[SubmissionTicket], error: Exception) -> None:
        """Ends submissions whose owner is gone: those that wait never run, and nobody depends on them."""
        for ticket in tickets:
            if self._lines.remove(ticket) is not None:
                ticket.complete(error)
        self._drain()

    def waiting(self, buffer: Buffer, *, writers: bool = False) -> list[SubmissionTicket]:
        """Returns the submissions that have not started and use a buffer, or may write it.

        So long as there are any, writing it is refused; reading it, so long as one may write it.
        """
        return [s.ticket for s in self._lines.users(buffer, writers=writers)] if self._lines else []

    def _drain(self) -> None:
        """Runs every waiting submission that may run."""
        if self._running:
            return
        while (ready := self._lines.pop()) is not None:
            self._start(ready.program, ready.bindings, ready.words, ready.signals, ready.ticket)
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
