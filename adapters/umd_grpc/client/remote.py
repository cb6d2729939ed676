"""RemoteDevice: a device of a server, used as if it were here."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from umd_core.commands import CommandBuffer
from umd_core.device import Binding, Buffer, Caps, FenceValue, Tensor
from umd_core.device.cache import Bounded, Recent
from umd_core.device.tensor import as_bytes, start, upload, writable
from umd_core.dtypes import BY_CODE, DType
from umd_core.errors import LimitError, OutOfMemoryError, StaleHandleError, UnsupportedError
from umd_core.kernels import KernelRecord
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.access import Access, reach
from umd_grpc.client.program import RemoteProgram
from umd_grpc.client.ranges import Ranges
from umd_grpc.client.session import RemoteSession
from umd_grpc.client.things import RemoteBuffer, RemoteFence, RemoteTicket
from umd_grpc.client.weights import offers

PROGRAMS = 128
SECONDS = 60.0
_LARGEST = (1 << 63) - 1
_MESSAGE_MARGIN = 1 << 16


class RemoteDevice:
    """One device of a server, through one session.

    Nothing is sent until a value is asked for or much has gathered, and nothing is waited for but values: any amount
    of allocations, writes and submissions, and the reads that end them, take one round trip. What fails on the way
    poisons what depends on it, so a read never returns what was not computed. Usable from many threads.

    Attributes:
        name: "grpc://host:port/device".
        maps: whether its buffers are visible to the host: never.
    """

    maps = False

    def __init__(
        self,
        target: str | Access,
        device: str = "",
        *,
        secure: bool = False,
        token: str = "",
        timeout: float = SECONDS,
        lease_seconds: int = 0,
        priority: int = 0,
        shared_memory: bool = True,
    ) -> None:
        """Opens a session.

        Args:
            target: "host:port", "unix:/path", or all about how the server is reached.
            device: a device of the server; "" for its first.
            secure: whether to use TLS.
            token: to show there; "" for what joining the server left, or UMD_TOKEN.
            timeout: seconds that an answer may take.
            lease_seconds: how long the session outlives a connection that breaks; the server has a limit. The next
                call attaches to it again and finds everything as it was, but for work and data that the server had not
                got to: their tickets fail with DeviceLostError, and what they should have written is poisoned.
            priority: -2 to 2: doubles or halves the session's share of the device with each step.
            shared_memory: whether large transfers may go through memory shared with a server on this host.

        Raises:
            UmdError: there is no such device, or no server.
        """
        self._session = RemoteSession(
            reach(target, secure=secure, token=token),
            device,
            timeout=timeout,
            lease_seconds=lease_seconds,
            priority=priority,
            shared_memory=shared_memory,
        )
        self.name = self._session.name
        self._programs, self._recent = Bounded(PROGRAMS), Recent(PROGRAMS)
        self._ranges = Ranges(self._session)

    def close(self) -> None:
        """Ends the session: the server frees everything that it made."""
        self._session.close()

    def caps(self) -> Caps:
        """Returns what the device can do."""
        return self._caps

    @functools.cached_property
    def _caps(self) -> Caps:
        found, limits = self._session.description, self._session.limits
        return Caps(
            kernels={kernel.name: _types(kernel) for kernel in found.kernels},
            memory=found.memory,
            max_work=found.max_work,
            max_buffer_bytes=min(found.max_program_size, limits.message_size - _MESSAGE_MARGIN),
            flags=frozenset(found.flags) - {"estimate", "explain", "map"},
        )

    @property
    def round_trips(self) -> int:
        """Times that an answer was waited for; opening is the first."""
        return self._session.round_trips

    @property
    def bytes_up(self) -> int:
        """Bytes of messages sent, transfers included."""
        return self._session.bytes_up

    @property
    def bytes_down(self) -> int:
        """Bytes of messages received, transfers included."""
        return self._session.bytes_down

    def flush(self) -> None:
        """Sends what has gathered; waits for nothing."""
        with self._session.lock:
            self._session.begin()
            self._session.send()

    def synchronize(self) -> None:
        """Returns when everything asked for so far has been carried out, or has failed."""
        self._session.command(lambda frame: frame.flush.SetInParent())

    # memory

    def allocate(self, size: int) -> RemoteBuffer:
        """Returns a new buffer of `size` zero bytes. That the device has no room left shows when the buffer is used.

        Raises:
            OutOfMemoryError: it is more than the device has at all.
        """
        if not 0 <= size <= _LARGEST:
            raise LimitError("buffer size", size, _LARGEST)
        if size > self._caps.memory:
            raise OutOfMemoryError(size, 0, self._caps.memory, self._caps.memory, device=self.name)
        session = self._session
        with session.lock:
            session.begin()
            buffer = RemoteBuffer(size, session.new_buffer())
            buffer.charged = size
            session.outbox.allocate(buffer.memory, size)
            session.end()
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Frees a buffer; work that was submitted with it still finishes."""
        session = self._session
        with session.lock:
            session.begin()
            if not buffer.alive:
                raise StaleHandleError("buffer", repr(buffer), "was freed before")
            session.free([buffer])
            session.end()

    def drop(self, *buffers: Buffer) -> None:
        """Frees buffers soon: callable from a finalizer, on any thread."""
        self._session.drop(*buffers)

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Writes bytes, given as anything that has the buffer protocol, at byte `offset`.

        What the server finds wrong shows where it matters: when the bytes are used.

        Raises:
            UmdError: the connection failed again and again.
        """
        self._ranges.write(buffer, offset, as_bytes(data))

    def write_weights(self, writes: Sequence[tuple[Buffer, int, Any]]) -> int:
        """Writes bytes, given as (buffer, offset, data), that this server may have kept from before.

        The ranges do not overlap. Where the device has the flag "weights", only their hashes are sent at first, in one
        round trip for all, and then what is missing; the server keeps it. Elsewhere they are written as by `write`.

        Returns:
            Bytes that had to be sent.

        Raises:
            UmdError: what went wrong.
        """
        batches = offers(writes, self._session.limits, known="weights" in self.caps().flags)
        return sum(self._ranges.offer(batch) for batch in batches)

    def read(self, buffer: Buffer, offset: int, size: int) -> memoryview:
        """Returns `size` bytes from byte `offset` on, once everything submitted before has run."""
        return self.read_many([Binding(buffer, offset, size)])[0]

    def read_many(self, ranges: Sequence[Binding]) -> list[memoryview]:
        """Returns the bytes of many ranges, in one round trip.

        Raises:
            PoisonedError: work that failed should have written some of them.
        """
        return self._ranges.read(ranges, {})

    def start_read(self, buffer: Buffer, offset: int, size: int) -> Callable[[], memoryview]:
        """Asks for `size` bytes from byte `offset` on, and returns what waits for them: it has to be called.

        Everything asked for so far is sent, and the server works on it in the meantime.
        """
        wait = self._ranges.start_read([Binding(buffer, offset, size)], {})
        return lambda: wait()[0]

    def read_into(self, buffer: Buffer, offset: int, out: Any) -> None:
        """Fills `out`, anything writable that is contiguous, with the bytes from byte `offset` on.

        Raises:
            PoisonedError: work that failed should have written some of them.
        """
        view = writable(out)
        for data in self._ranges.read([Binding(buffer, offset, len(view))], {0: view}):
            if data is not view:
                view[:] = data

    def tensor(self, array: Any) -> Tensor:
        """Returns a copy of a host array on the device."""
        return upload(self, array)  # type: ignore[arg-type]  # it allocates, writes and drops, no more

    # work

    def load(self, encoded: bytes | CommandBuffer) -> RemoteProgram:
        """Returns the validated program. The same bytes give the same program again while it is cached.

        Raises:
            DecodeError: the bytes break a rule.
            UnsupportedError: the device lacks one of its kernels.
        """
        raw, session = bytes(encoded), self._session
        described = encoded if isinstance(encoded, CommandBuffer) else None
        descs = described and (tuple(described.inputs), tuple(described.outputs), tuple(described.aliases))
        key = (hashlib.sha256(raw).digest(), descs)
        with session.lock:
            program: RemoteProgram | None = self._programs.find(key)
            if program is None:
                session.begin()
                program = RemoteProgram(
                    self._caps, self.name, raw, described, session.new_handle(), session.dropped_programs
                )
                command = session.outbox.frame(len(raw)).load
                command.handle, command.program = program.handle, raw
                session.programs[program.handle] = program
                if not program.one_shot:
                    self._programs.keep(key, program)
                session.end()
        return program

    def program(self, command_buffer: CommandBuffer) -> RemoteProgram:
        """Returns the program of a CommandBuffer that is not changed any more; the same object costs a look-up."""
        program: RemoteProgram | None = self._recent.find(command_buffer)  # type: ignore[assignment]  # kept below
        if program is None:
            program = self.load(command_buffer)
            self._recent.keep(command_buffer, program)  # type: ignore[arg-type]  # any program will do
        return program

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        """Refuses: kernels run where the device is."""
        raise UnsupportedError("single kernels are not run remotely: load a command buffer", device=self.name)

    def fence(self) -> RemoteFence:
        """Returns a new fence, at 0."""
        with self._session.lock:
            return RemoteFence(self._session, self._session.new_handle())

    def submit(
        self,
        program: RemoteProgram,
        bindings: Sequence[Binding],
        values: Sequence[int] = (),
        waits: Sequence[FenceValue] = (),
        signals: Sequence[FenceValue] = (),
        queue: int = 0,
        *,
        priority: int = 0,
        deadline: float = 0.0,
        profile: bool = False,
    ) -> RemoteTicket:
        """Returns a ticket for running the program over the bindings; see `Device.submit`.

        Args:
            program: what `load` returned.
            bindings: a range for each of its arguments.
            values: the words that its patches name.
            waits: fences that must have reached values.
            signals: fences and the values that they reach.
            queue: in which it has its turn.
            priority: of submissions that may start at one time, the highest starts first.
            deadline: seconds after which it is cancelled, 0 for none; they begin when the server has the message.
            profile: whether the ticket's `times` shall say how long each command took.
        """
        given, words, session = tuple(bindings), tuple(values), self._session
        with session.lock:
            session.begin()
            program.check(given, words, len(signals))
            frame = session.outbox.frame(24 * len(given) + 9 * len(words))
            command = frame.submit
            command.program, command.queue = program.handle, queue
            command.buffers.extend([buffer.memory for buffer, _, _ in given])
            offsets = [offset for _, offset, _ in given]
            if any(offsets):
                command.offsets.extend(offsets)
            command.sizes.extend([size for _, _, size in given])
            command.values.extend(words)
            for fence, value in waits:
                command.waits.add(fence=fence.handle, value=value)
            for fence, value in signals:
                command.signals.add(fence=fence.handle, value=value)
            if priority or deadline or profile:
                command.priority, command.profile = priority, profile
                command.deadline_ms = max(1, round(1000 * deadline)) if deadline else 0
            ticket = RemoteTicket(session, frame.seq, queue)
            session.link.tickets[frame.seq] = ticket
            session.end()
        return ticket

    def cancel(self, *queues: int) -> None:
        """Ends what was submitted and has not ended, on these queues, or on all when none is named.

        What has not started never runs; what runs stops at its next command. Tickets raise CancelledError, and what
        the work should have written is poisoned.
        """
        self._session.cancel(queues=queues)

    def run(self, command_buffer: CommandBuffer | RemoteProgram, inputs: Sequence[Any]) -> list[Tensor]:
        """Returns the outputs of a command buffer. Nothing is waited for until their values are read."""
        program = command_buffer if isinstance(command_buffer, RemoteProgram) else self.program(command_buffer)
        return start(self, program, inputs)[0]


def _types(kernel: pb.KernelSupport) -> frozenset[tuple[DType, ...]] | None:
    """Returns the type arguments of a kernel; combinations with types that are not known here are left out."""
    if kernel.every:
        return None
    known = (tuple(BY_CODE[code] for code in codes) for codes in kernel.types if all(code in BY_CODE for code in codes))
    return frozenset(known)
