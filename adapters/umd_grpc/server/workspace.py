"""The things that one session made on its device: buffers, programs and fences."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from weakref import WeakValueDictionary

from umd_core.commands import CommandBuffer, SlotKind
from umd_core.device import Binding, Buffer, Fence, Program, SequentialDevice
from umd_core.errors import BindingError, DecodeError, LimitError, StaleHandleError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.server.handles import Handles
from umd_grpc.server.port import Meter, Setup
from umd_grpc.server.programs import Programs

_OWN = (SlotKind.ARENA, SlotKind.CONSTANT)


class Workspace:
    """Buffers, programs and fences of one session. Everything here runs on the device's thread.

    A handle whose making failed keeps the reason: what uses it fails with its root cause. Memory counts against the
    owner's quota from before it is there until it is released, which may be after its handle is gone.

    Attributes:
        buffers, programs: by handle.
    """

    def __init__(
        self,
        setup: Setup,
        device: SequentialDevice,
        known: Programs,
        meter: Meter,
        fail: Callable[[int, Exception], None],
    ) -> None:
        """`known` are the programs that the server remembers; `fail` answers for one handle of a frame."""
        self._scope, self._identity, self._limits = setup.token, setup.identity, setup.limits
        self._device, self._known, self._meter, self._fail = device, known, meter, fail
        self.buffers: Handles[Buffer] = Handles("buffer", setup.limits.handles)
        self.programs: Handles[Program] = Handles("program", setup.limits.handles)
        self._fences: dict[int, Fence] = {}
        self._loaded: WeakValueDictionary[bytes, Program] = WeakValueDictionary()
        self._charged = 0

    def close(self) -> None:
        """Frees everything."""
        self.programs.clear()
        self._device.forget(self._scope)
        for buffer in self.buffers.clear():
            self._device.free(buffer)
        self._fences.clear()
        self._meter.give_memory(self._charged)
        self._charged = 0

    # memory

    def _charge(self, size: int) -> None:
        self._meter.take_memory(size)
        self._charged += size

    def settle(self) -> None:
        """Gives back what was charged for memory that is released by now."""
        released = self._charged - self._device.held(self._scope)
        if released > 0:
            self._charged -= released
            self._meter.give_memory(released)

    def allocate(self, seq: int, command: pb.Allocate) -> None:
        """Makes buffers."""
        if len(command.handles) != len(command.sizes):
            raise unequal("Allocate", len(command.handles), len(command.sizes))
        for handle, size in zip(command.handles, command.sizes, strict=True):
            self.buffers.check_new(handle)
            try:
                self.settle()
                self._charge(size)
                self.buffers.make(handle, self._device.allocate(size, self._scope))
            except Exception as error:  # noqa: BLE001  # the handle keeps it, and the others are made
                self.settle()
                self.buffers.fail(handle, error)
                self._fail(seq, error)

    def free(self, buffer: Buffer) -> None:
        """Frees a buffer whose handle is gone."""
        self._device.free(buffer)
        self.settle()

    def forget(self, command: pb.Free) -> None:
        """Forgets programs and fences."""
        for handle in command.programs:
            self.programs.remove(handle)
        if command.programs:
            self._device.forget(self._scope)
            self.settle()
        for handle in command.fences:
            self._fences.pop(handle, None)

    # programs

    def load(self, seq: int, command: pb.Load) -> None:
        """Loads a program."""
        self.programs.check_new(command.handle)
        try:
            raw = command.program or self._known.find(self._identity, command.sha256)
            self.programs.make(command.handle, self._program(raw))
        except Exception as error:
            self.programs.fail(command.handle, error)
            raise
        finally:
            self.settle()

    def _program(self, raw: bytes) -> Program:
        """Returns a program; the session has the same bytes once, with one arena."""
        key = hashlib.sha256(raw).digest()
        program = self._loaded.get(key)
        if program is None:
            decoded = self._known.validated(self._identity, self._device.name, raw, self._device.validate)
            self.settle()
            self._charge(_own_size(decoded))
            program = self._device.load(raw, self._scope, decoded)
            if not program.one_shot:
                self._loaded[key] = program
        return program

    # fences and ranges

    def fence(self, handle: int) -> Fence:
        """Returns a fence; it exists from its first use."""
        fence = self._fences.get(handle)
        if fence is None:
            if not handle:
                raise StaleHandleError("fence", 0, "is null")
            if len(self._fences) >= self._limits.handles:
                raise LimitError("fences", len(self._fences) + 1, self._limits.handles)
            fence = self._fences[handle] = self._device.fence()
        return fence

    def range(self, handle: int, offset: int, size: int) -> Binding:
        """Returns a range of a buffer.

        Raises:
            BindingError, StaleHandleError, PoisonedError: there is no such range.
        """
        buffer = self.buffers.get(handle)
        if size > buffer.size or offset > buffer.size - size:
            detail = f"bytes [{offset}, {offset + size}) are outside the buffer of {buffer.size} bytes"
            raise BindingError(0, "range", f"transfer: {detail}")
        return Binding(buffer, offset, size)

    def present(self, handles: list[int], offsets: list[int], sizes: list[int]) -> list[Binding]:
        """Returns those of a frame's ranges whose buffers are there, cut to what they have."""
        found = []
        for index, handle in enumerate(handles):
            buffer = self.buffers.things.get(handle)
            if buffer is not None:
                start = min(offsets[index] if index < len(offsets) else 0, buffer.size)
                size = min(sizes[index] if index < len(sizes) else buffer.size, buffer.size - start)
                found.append(Binding(buffer, start, size))
        return found


def _own_size(decoded: CommandBuffer) -> int:
    """Returns the bytes of device memory that a program takes for itself."""
    return sum(slot.length for slot in decoded.slots if slot.kind in _OWN)


def unequal(what: str, got: int, wanted: int) -> DecodeError:
    """Returns the error for lists of a frame that do not fit together."""
    return DecodeError("frame-lengths", f"{what}: {got} entries, {wanted} would be right", section="SESSION")
