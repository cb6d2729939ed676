"""The things that one session made on its device, and the commands on them."""

from __future__ import annotations

from collections.abc import Hashable

from umd_core.commands import WRITE
from umd_core.device import Binding, Buffer, Fence, FenceValue, Program, SequentialDevice
from umd_core.device.execution import poison
from umd_core.errors import BindingError, DecodeError, DeviceLostError, LimitError, StaleHandleError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.server.handles import Handles
from umd_grpc.server.programs import Programs
from umd_grpc.server.progress import Done, Progress

_QUEUES = 1 << 32


class Workspace:
    """Buffers, programs and fences of one session. Everything here runs on the device's thread.

    What a refused submission should have written is poisoned, a handle whose making failed keeps the reason, signals
    fire all the same: whatever depends on a failure fails with its root cause, and the rest goes on.

    Attributes:
        progress: what has not ended yet.
    """

    def __init__(
        self, number: int, scope: Hashable, device: SequentialDevice, limits: Limits, known: Programs, done: Done
    ) -> None:
        """`number` and `scope` keep queues and arenas apart from other sessions'. `done` is told about each end."""
        self._first_queue, self._scope, self._device = number * _QUEUES, scope, device
        self._limits, self._known, self._done = limits, known, done
        self._buffers: Handles[Buffer] = Handles("buffer", limits.handles)
        self._programs: Handles[Program] = Handles("program", limits.handles)
        self._fences: dict[int, Fence] = {}
        self.progress = Progress(limits.waits, done)

    def close(self) -> None:
        """Frees everything."""
        lost = DeviceLostError(self._device.name, "the session that submitted this has ended")
        for ticket in self.progress.clear():
            self._device.cancel(ticket, lost)
        self._programs.clear()
        self._device.forget(self._scope)
        for buffer in self._buffers.clear():
            self._device.free(buffer)
        self._fences.clear()

    def allocate(self, seq: int, command: pb.Allocate) -> None:
        """Makes buffers."""
        if len(command.handles) != len(command.sizes):
            raise _unequal("Allocate", len(command.handles), len(command.sizes))
        for handle, size in zip(command.handles, command.sizes, strict=True):
            self._buffers.check_new(handle)
            try:
                self._buffers.make(handle, self._device.allocate(size))
            except UmdError as error:
                self._buffers.fail(handle, error)
                self._done(seq, error, 0)

    def free(self, seq: int, command: pb.Free) -> None:
        """Forgets handles."""
        for handle in command.programs:
            self._programs.remove(handle)
        if command.programs:
            self._device.forget(self._scope)
        for handle in command.fences:
            self._fences.pop(handle, None)
        for handle in command.buffers:
            buffer = self._buffers.remove(handle)
            if buffer is not None:
                self._device.free(buffer)

    def load(self, seq: int, command: pb.Load) -> None:
        """Loads a program."""
        self._programs.check_new(command.handle)
        try:
            raw = command.program or self._known.find(command.sha256)
            program = self._device.load(raw, self._scope)
        except Exception as error:
            self._programs.fail(command.handle, error)
            raise
        self._programs.make(command.handle, program)
        if command.program:
            self._known.keep(raw)

    def submit(self, seq: int, command: pb.Submit) -> None:
        """Runs a program."""
        try:
            program, bindings = self._programs.get(command.program), self._bindings(command)
            waits = [FenceValue(self._fence(wait.fence), wait.value) for wait in command.waits]
            signals = [FenceValue(self._fence(signal.fence), signal.value) for signal in command.signals]
            if waits or self.progress:
                self.progress.check()
            queue = self._first_queue + command.queue
            ticket = self._device.submit(program, bindings, command.values, waits, signals, queue)
        except Exception as error:
            self._refuse(seq, command, error)
            raise
        self.progress.submitted(seq, command.queue, ticket, command.reply)

    def _bindings(self, command: pb.Submit) -> list[Binding]:
        count = len(command.buffers)
        for name, given in (("offsets", len(command.offsets)), ("sizes", len(command.sizes))):
            if given not in (0, count):
                raise _unequal(f"Submit {name}", given, count)
        things = self._buffers.things
        buffers = [things.get(handle) or self._buffers.get(handle) for handle in command.buffers]
        offsets = command.offsets or (0,) * count
        sizes = command.sizes or [buffer.size - offset for buffer, offset in zip(buffers, offsets, strict=True)]
        return list(map(Binding, buffers, offsets, sizes))

    def _refuse(self, seq: int, command: pb.Submit, error: Exception) -> None:
        """Poisons what a submission that never runs should have written, and fires its signals."""
        program = self._programs.things.get(command.program)
        slots = program.command_buffer.slots if program is not None else ()
        spoilt = []
        for index, handle in enumerate(command.buffers):
            buffer = self._buffers.things.get(handle)
            if buffer is None or (index < len(slots) and not slots[index].access & WRITE):
                continue
            start = min(command.offsets[index] if index < len(command.offsets) else 0, buffer.size)
            size = min(command.sizes[index] if index < len(command.sizes) else buffer.size, buffer.size - start)
            spoilt.append(Binding(buffer, start, size))
        poison(self._device, spoilt, error)
        for signal in command.signals:
            self._fence(signal.fence).advance(signal.value)
        self.progress.refused(seq, command.queue)

    def _fence(self, handle: int) -> Fence:
        """Returns a fence; it exists from its first use."""
        fence = self._fences.get(handle)
        if fence is None:
            if not handle:
                raise StaleHandleError("fence", 0, "is null")
            if len(self._fences) >= self._limits.handles:
                raise LimitError("fences", len(self._fences) + 1, self._limits.handles)
            fence = self._fences[handle] = self._device.fence()
        return fence

    def wait(self, seq: int, command: pb.Wait) -> None:
        """Notes who wants to know about a fence."""
        fence = self._fence(command.fence.fence)
        self.progress.check()
        self.progress.wait(seq, fence, command.fence.value, command.timeout_ms / 1000)

    def signal(self, seq: int, command: pb.FenceValue) -> None:
        """Raises a fence."""
        self._fence(command.fence).signal(command.value)

    def read(self, command: pb.ReadRange) -> bytes:
        """Returns bytes of a buffer."""
        if command.size > self._limits.inline:
            raise LimitError("bytes of an inline read", command.size, self._limits.inline)
        return bytes(self._device.read(self._buffers.get(command.buffer), command.offset, command.size))

    def write(self, seq: int, command: pb.WriteRange) -> None:
        """Writes bytes into a buffer."""
        if len(command.data) > self._limits.inline:
            raise LimitError("bytes of an inline write", len(command.data), self._limits.inline)
        self._device.write(self._buffers.get(command.buffer), command.offset, command.data)

    def range(self, handle: int, offset: int, size: int) -> Binding:
        """Returns a range of a buffer.

        Raises:
            BindingError, StaleHandleError, PoisonedError: there is no such range.
        """
        buffer = self._buffers.get(handle)
        if size > buffer.size or offset > buffer.size - size:
            detail = f"bytes [{offset}, {offset + size}) are outside the buffer of {buffer.size} bytes"
            raise BindingError(0, "range", f"transfer: {detail}")
        return Binding(buffer, offset, size)


def _unequal(what: str, got: int, wanted: int) -> DecodeError:
    return DecodeError("frame-lengths", f"{what}: {got} entries, {wanted} would be right", section="SESSION")
