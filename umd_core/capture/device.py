"""CapturingDevice: any device, with everything that it is asked to do written down."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from umd_core.capture.contents import Contents
from umd_core.capture.events import Allocate, Free, NewFence, Read, Refused, Result, Signal, Submit, Write, is_valid
from umd_core.capture.folder import Folder
from umd_core.commands import READ, WRITE, CommandBuffer, SlotKind
from umd_core.device import Binding, Buffer, Caps, FenceValue, Tensor, Ticket
from umd_core.device.tensor import as_bytes, start, upload
from umd_core.encoding import decode
from umd_core.errors import StaleHandleError, UmdError, UnsupportedError
from umd_core.kernels import KernelRecord

OUTPUTS = ("hashes", "bytes", "none")
"""What is recorded of a submission's results."""


class _Loaded(NamedTuple):
    """A program: its bytes, what its arguments are used for, whether direct handles are among its slots."""

    encoded: bytes
    accesses: tuple[int, ...]
    handles: bool


class CapturingFence:
    """A fence of the captured device; signals from the host are written down."""

    __slots__ = ("__weakref__", "_note", "inner", "number")

    inner: Any
    number: int

    def __init__(self, inner: Any, number: int, note: Callable[[int, int], None]) -> None:
        self.inner, self.number, self._note = inner, number, note

    @property
    def value(self) -> int:
        """The highest value signalled so far."""
        value: int = self.inner.value
        return value

    def signal(self, value: int) -> None:
        """Raises the counter, from the host."""
        self._note(self.number, value)
        self.inner.signal(value)

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Returns when the counter has reached `value`."""
        self.inner.wait(value, timeout)


class CapturingDevice:
    """A device that does what another does, and writes it down in a folder.

    Everything else that the other device offers is its own. Results are read back after each submission unless
    `outputs` is "none"; work that waits for a fence, and what follows it, is recorded without them.

    Args:
        device: the device that does the work.
        folder: where it is written down.
        outputs: what is recorded of results: "hashes", "bytes" or "none".

    Attributes:
        name: the device's.
        maps: whether its buffers are visible to the host.
    """

    def __init__(self, device: Any, folder: Folder, outputs: str = "hashes") -> None:
        self._device, self._folder, self._outputs = device, folder, outputs
        self.name: str = device.name
        self.maps: bool = "map" in device.caps().flags
        self._lock = threading.RLock()
        self._buffers: weakref.WeakKeyDictionary[Buffer, Contents] = weakref.WeakKeyDictionary()
        self._programs: weakref.WeakKeyDictionary[Any, _Loaded] = weakref.WeakKeyDictionary()
        self._made = self._fences = self._submissions = 0
        self._gone: deque[int] = deque()
        self._waiting: list[Ticket] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def caps(self) -> Caps:
        """Returns what the device can do."""
        caps: Caps = self._device.caps()
        return caps

    # memory

    def allocate(self, size: int) -> Buffer:
        """Returns a new buffer of `size` bytes."""
        return self._note_buffer(self._device.allocate(size))

    def wrap(self, array: Any) -> Buffer:
        """Returns a buffer over host bytes, on a device that sees them."""
        return self._note_buffer(self._device.wrap(array))

    def _note_buffer(self, buffer: Buffer) -> Buffer:
        with self._lock:
            try:
                self._note_gone()
                self._folder.add(Allocate(buffer.size))
            except BaseException:
                self._device.free(buffer)
                raise
            self._buffers[buffer] = Contents(self._made, buffer.size, self.maps)
            self._made += 1
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Frees a buffer."""
        self._device.free(buffer)
        self._forget(buffer)
        with self._lock:
            self._note_gone()

    def drop(self, *buffers: Buffer) -> None:
        """Frees buffers soon: callable from a finalizer, on any thread; the next call notes it."""
        for buffer in buffers:
            self._forget(buffer)
        self._device.drop(*buffers)

    def _forget(self, buffer: Buffer) -> None:
        contents = self._buffers.pop(buffer, None)
        if contents is not None:
            self._gone.append(contents.number)

    def _note_gone(self) -> None:
        while self._gone:
            self._folder.add(Free(self._gone.popleft()))

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Writes bytes."""
        view = as_bytes(data)
        with self._lock:
            self._device.write(buffer, offset, view)
            contents = self._contents(buffer)
            if view.nbytes:
                self._folder.add(Write(contents.number, offset, view.nbytes, self._folder.data(view), False))
                contents.wrote(offset, view)

    def read(self, buffer: Buffer, offset: int, size: int) -> memoryview:
        """Returns bytes."""
        data: memoryview = self._device.read(buffer, offset, size)
        with self._lock:
            self._note_read(buffer, offset, data)
        return data

    def read_many(self, ranges: Sequence[Binding]) -> list[memoryview]:
        """Returns the bytes of many ranges, as a device that has this method does, in one round trip."""
        found: list[memoryview] = self._device.read_many(ranges)
        with self._lock:
            for (buffer, offset, _), data in zip(ranges, found, strict=True):
                self._note_read(buffer, offset, data)
        return found

    def _note_read(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        digest = "" if self._outputs == "none" else hashlib.sha256(data).hexdigest()
        self._folder.add(Read(self._contents(buffer).number, offset, data.nbytes, digest))

    def _contents(self, buffer: Buffer) -> Contents:
        contents = self._buffers.get(buffer)
        if contents is None:
            raise StaleHandleError("buffer", repr(buffer), "was not allocated through the capturing device, or is gone")
        return contents

    def tensor(self, array: Any) -> Tensor:
        """Returns a copy of a host array on the device."""
        return upload(self, array)  # type: ignore[arg-type]  # it allocates, writes and drops, no more

    # programs

    def load(self, encoded: bytes | CommandBuffer, **options: Any) -> Any:
        """Returns the validated program."""
        program = self._device.load(encoded, **options)
        if program not in self._programs:
            raw = bytes(encoded)
            slots = decode(raw).slots
            accesses = tuple(slot.access for slot in slots if slot.kind == SlotKind.ARGUMENT)
            self._programs[program] = _Loaded(raw, accesses, any(slot.kind == SlotKind.HANDLE for slot in slots))
        return program

    def program(self, command_buffer: CommandBuffer) -> Any:
        """Returns the program of a CommandBuffer."""
        return self.load(command_buffer)

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        """Returns an executable; it is not written down."""
        return self._device.load_kernel(record, parameters)

    def run(self, command_buffer: Any, inputs: Sequence[Any]) -> list[Tensor]:
        """Returns the outputs of a command buffer or a program."""
        program = self.load(command_buffer) if isinstance(command_buffer, CommandBuffer) else command_buffer
        results, ticket = start(self, program, inputs)
        if ticket.done():
            ticket.wait()
        return results

    # submissions

    def fence(self) -> CapturingFence:
        """Returns a new fence, at 0."""
        with self._lock:
            fence = CapturingFence(self._device.fence(), self._fences, self._note_signal)
            self._folder.add(NewFence())
            self._fences += 1
        return fence

    def _note_signal(self, fence: int, value: int) -> None:
        with self._lock:
            self._folder.add(Signal(fence, value))

    def submit(
        self,
        program: Any,
        bindings: Sequence[Binding],
        values: Sequence[int] = (),
        waits: Sequence[FenceValue] = (),
        signals: Sequence[FenceValue] = (),
        queue: int = 0,
    ) -> Ticket:
        """Returns a ticket; what it stands for is in the folder before the work begins."""
        given, words = tuple(bindings), tuple(values)
        with self._lock:
            self._note_gone()
            loaded, contents = self._loaded(program), [self._contents(buffer) for buffer, _, _ in given]
            ends = [[(fence.number, value) for fence, value in some] for some in (waits, signals)]
            self._waiting = [ticket for ticket in self._waiting if not ticket.done()]
            self._note_inputs(loaded, contents, given)
            places = tuple((c.number, b[1], b[2]) for c, b in zip(contents, given, strict=True))
            digest = self._folder.program(loaded.encoded)
            event = Submit(digest, places, words, tuple(ends[0]), tuple(ends[1]), queue)
            written = is_valid(event)  # else the device will not have it either
            number = self._submissions
            if written:
                self._folder.add(event)
                self._submissions += 1
            inner = [[FenceValue(fence.inner, value) for fence, value in some] for some in (waits, signals)]
            try:
                ticket: Ticket = self._device.submit(program, given, words, inner[0], inner[1], queue)
            except UmdError:
                if written:
                    self._folder.add(Refused(number))
                raise
            if written:
                self._note_outputs(number, loaded, contents, given, ticket, bool(waits))
        return ticket

    def _loaded(self, program: Any) -> _Loaded:
        loaded = self._programs.get(program)
        if loaded is None:
            raise StaleHandleError("program", repr(program), "was not loaded through the capturing device")
        if loaded.handles:
            raise UnsupportedError("a program with direct handles cannot be captured", device=self.name)
        return loaded

    def _note_inputs(self, loaded: _Loaded, contents: Sequence[Contents], bindings: Sequence[Binding]) -> None:
        """Writes down bytes that the work is about to read and a replay would not have."""
        if self._waiting:
            return  # reading would wait for work that may never start
        for access, known, (buffer, offset, size) in zip(loaded.accesses, contents, bindings, strict=False):
            if access & READ and known.wants(offset, size):
                try:
                    data = self._device.read(buffer, offset, size)
                except UmdError:
                    continue  # poisoned, or no range of the buffer: the replay gets the same error
                if known.changed(offset, data):
                    self._folder.add(Write(known.number, offset, size, self._folder.data(data), True))

    def _note_outputs(
        self,
        number: int,
        loaded: _Loaded,
        contents: Sequence[Contents],
        bindings: Sequence[Binding],
        ticket: Ticket,
        waits: bool,
    ) -> None:
        """Writes down how the work ended and what it wrote, unless that cannot be known without waiting for others."""
        written = [
            (index, known, binding)
            for index, (access, known, binding) in enumerate(zip(loaded.accesses, contents, bindings, strict=True))
            if access & WRITE
        ]
        for _, known, (_, offset, size) in written:
            known.will_change(offset, size)
        if not ticket.done() and (waits or self._waiting):
            self._waiting.append(ticket)
        elif self.maps or self._outputs != "none":
            status, outputs = _status(ticket), []
            for index, known, binding in written:
                digest = self._output(known, binding)
                if digest:
                    outputs.append((index, digest))
            self._folder.add(Result(number, status, tuple(outputs)))

    def _output(self, known: Contents, binding: Binding) -> str:
        """Returns the SHA-256 of a written range; "" when it is not recorded."""
        buffer, offset, size = binding
        try:
            data = self._device.read(buffer, offset, size)
        except UmdError:  # the run goes on as it would without being captured
            return ""
        known.wrote(offset, data)
        if self._outputs == "none":
            return ""
        return self._folder.data(data) if self._outputs == "bytes" else hashlib.sha256(data).hexdigest()

    def close(self) -> None:
        """Ends the device and completes the capture."""
        self._device.close()
        with self._lock:
            self._folder.close()


def _status(ticket: Ticket) -> int:
    """Returns 0, or the status of what went wrong; whoever holds the ticket gets the error itself."""
    try:
        ticket.wait()
    except UmdError as error:
        return int(error.status)
    return 0
