"""SequentialDevice: the base of backends that run one command after the other."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

from umd_core.commands import CommandBuffer
from umd_core.device.buffers import BufferMethods
from umd_core.device.cache import Bounded, Recent
from umd_core.device.control import Control
from umd_core.device.execution import execute, poison
from umd_core.device.fence import Fence, SubmissionTicket
from umd_core.device.program import Program
from umd_core.device.protocol import Binding, Buffer, FenceValue
from umd_core.device.submission import Lines, Submission, Work, end
from umd_core.device.tensor import Tensor, run, upload
from umd_core.dtypes import DType
from umd_core.encoding import Limits, decode
from umd_core.errors import (
    DeviceLostError,
    InputCountError,
    InternalError,
    LimitError,
    StaleHandleError,
    UmdError,
    UnsupportedError,
)
from umd_core.kernels import KernelRecord

PROGRAMS, EXECUTABLES = 128, 4096


class SequentialDevice(BufferMethods):
    """Base of backends that run one command after the other, on the thread that owns the device.

    A subclass writes `caps`, `allocate_memory`, `write_memory`, `read_memory`, `load_kernel` and either `dispatch` or
    `bind`. What it calls memory is its own affair; buffers, checks, accounting, programs, queues, fences and failures
    are kept here. Nothing here blocks: a submission whose waits are not met runs when the signal that meets them comes.

    Attributes:
        name: "backend:ordinal".
        poisoned: buffers with bytes that failed work should have written.
        control: that of the submission which runs, None when it has none.
        overtaking: set while bytes are read or written whose place is before submissions that wait.
        any_thread: whether it may be used from any thread, by one at a time; else only from the one that opened it.
    """

    any_thread = False

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._programs, self._recent = Bounded(PROGRAMS), Recent(PROGRAMS)
        self._executables = Bounded(EXECUTABLES)
        self._lines = Lines(self._drain)
        self.control: Control | None = None
        self._given: Control | None = None
        self._decoded: CommandBuffer | None = None

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
    def _limits(self) -> Limits:
        return Limits(total_size=self._caps.max_buffer_bytes)

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

    def trim(self) -> None:
        """Forgets cached programs, with their arenas and constants, that nobody else holds."""
        self._programs.clear()
        self._recent.clear()
        self._executables.clear()
        super().trim()

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
        if waits or self._running or queue in self._lines.by_queue:
            waiting = Submission((program, given, words, tuple(signals)), tuple(waits), ticket)
            if self._lines.add(queue, waiting):
                self._drain()
        else:
            self._start((program, given, words, signals), ticket)
            if (signals and self._lines.by_queue) or self._zombies:
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

    def _start(self, work: Work, ticket: SubmissionTicket) -> None:
        control = ticket.control
        if control is None:
            self._run(work, ticket)
            return
        self.control = control
        try:
            error = control.begin()
            if error is None:
                self._run(work, ticket)
            else:
                self._end_unrun(work, ticket, error)
        finally:
            self.control = None

    def _run(self, work: Work, ticket: SubmissionTicket) -> None:
        self._running = True
        try:
            program, bindings, words, signals = work
            end(work, ticket, self.perform(program, bindings, words, signals))
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
        if bindings != program.bound or words != program.words:
            error = self._bind(program, bindings, words)
            if error is not None:
                return error
        return execute(self, program, signals)

    def _bind(self, program: Program, bindings: tuple[Binding, ...], words: tuple[int, ...]) -> Exception | None:
        """Makes the program fit; returns what went wrong, with the outputs poisoned."""
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
            self._end_unrun(submission.work, ticket, error)
            self._drain()

    def _end_unrun(self, work: Work, ticket: SubmissionTicket, error: Exception) -> None:
        program, bindings, _, _ = work
        poison(self, program.written(bindings), error)
        end(work, ticket, error)

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
        return [s.ticket for s in self._lines.users(buffer, writers=writers)]

    def _drain(self) -> None:
        """Runs every waiting submission that may run."""
        if self._running:
            return
        while (ready := self._lines.pop()) is not None:
            self._start(ready.work, ready.ticket)
        self._bury()

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
