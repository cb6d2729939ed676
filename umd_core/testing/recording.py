"""Records command buffers by hand, for tests: numbered arguments, an arena, constants; dependencies are derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from umd_core.commands import (
    ARENA_ALIGNMENT,
    READ,
    WRITE,
    Barrier,
    Command,
    CommandBuffer,
    Copy,
    Dispatch,
    Event,
    Fill,
    Mark,
    Nop,
    Patch,
    Ref,
    Slot,
    SlotKind,
    Update,
)
from umd_core.dependencies import Hazards
from umd_core.kernels import KernelRecord

ACCESS = {"r": READ, "w": WRITE, "rw": READ | WRITE}
DEPENDENCIES = 32


@dataclass(slots=True)
class _Slot:
    kind: int
    data: bytes = b""
    access: int = 0
    alignment: int = 1
    reach: int = 0
    alias_group: int = 0


@dataclass(slots=True)
class Recording:
    """Commands over slots. Slots are named by the number that `argument`, `arena` and `constant` return.

    Example:
        >>> r = Recording()
        >>> x, y = r.argument(), r.argument()
        >>> r.copy(r.ref(y, 0, 16), r.ref(x, 0, 16))
        >>> cb = r.finish()
    """

    commands: list[Command] = field(default_factory=list)
    kernels: list[KernelRecord] = field(default_factory=list)
    _slots: list[_Slot] = field(default_factory=list)

    def argument(self, alias_group: int = 0) -> int:
        """Returns a new argument slot."""
        return self._add(_Slot(SlotKind.ARGUMENT, alias_group=alias_group))

    def arena(self) -> int:
        """Returns the slot of the arena; ask for it after the arguments, once."""
        return self._add(_Slot(SlotKind.ARENA, alignment=ARENA_ALIGNMENT))

    def constant(self, data: bytes) -> int:
        """Returns a constant slot; ask for it after the arguments and the arena."""
        return self._add(_Slot(SlotKind.CONSTANT, data))

    def _add(self, slot: _Slot) -> int:
        self._slots.append(slot)
        return len(self._slots) - 1

    def room(self, slot: int) -> int:
        """Returns how many bytes of a slot may be used: a constant's length, any number otherwise."""
        held = self._slots[slot]
        return len(held.data) if held.kind == SlotKind.CONSTANT else 1 << 31

    def ref(self, slot: int, offset: int, length: int, access: int = READ, alignment: int = 1) -> Ref:
        """Returns a range of a slot, noted in the slot's size, access and alignment."""
        held = self._slots[slot]
        held.access |= access
        held.reach = max(held.reach, offset + length)
        held.alignment = max(held.alignment, alignment)
        return Ref(slot, access, offset, length)

    def dispatch(self, record: KernelRecord, parameters: bytes, places: Sequence[tuple[int, int, int]]) -> int:
        """Records a launch over (slot, offset, length) per operand; returns the command's index."""
        if record not in self.kernels:
            self.kernels.append(record)
        refs = tuple(
            self.ref(*place, ACCESS[box.operand.access], box.dtype.size)
            for place, box in zip(places, record.boxes, strict=True)
        )
        launch = record.geometry(record.struct.unpack(parameters))
        return self._append(Dispatch(self.kernels.index(record), launch, parameters, refs))

    def copy(self, destination: tuple[int, int, int], source: tuple[int, int, int]) -> int:
        """Records a copy between (slot, offset, length) ranges; returns the command's index."""
        return self._append(Copy(self.ref(*destination, WRITE), self.ref(*source, READ)))

    def fill(self, destination: tuple[int, int, int], pattern: bytes) -> int:
        """Records a fill; returns the command's index."""
        return self._append(Fill(self.ref(*destination, WRITE, len(pattern)), pattern))

    def update(self, slot: int, offset: int, data: bytes) -> int:
        """Records an update; returns the command's index."""
        return self._append(Update(self.ref(slot, offset, len(data), WRITE), data))

    def barrier(self) -> int:
        """Records a barrier; returns the command's index."""
        return self._append(Barrier())

    def mark(self, label: str, number: int = 0) -> int:
        """Records a mark; returns the command's index."""
        return self._append(Mark(number, label))

    def nop(self) -> int:
        """Records nothing; returns the command's index."""
        return self._append(Nop())

    def _append(self, command: Command) -> int:
        self.commands.append(command)
        return len(self.commands) - 1

    def finish(self, flags: int = 0, events: Sequence[Event] = (), patches: Sequence[Patch] = ()) -> CommandBuffer:
        """Returns the command buffer, every dependency derived from the ranges."""
        slots, at = [], 0
        for slot in self._slots:
            constant = slot.kind == SlotKind.CONSTANT
            length = len(slot.data) if constant else slot.reach if slot.kind == SlotKind.ARENA else 0
            slots.append(
                Slot(
                    slot.kind, slot.access, slot.alias_group, slot.alignment, slot.reach, at if constant else 0, length
                )
            )
            at += len(slot.data) + (-len(slot.data) & 7)
        return CommandBuffer(
            kernels=list(self.kernels),
            slots=slots,
            commands=self._ordered(),
            constants=[slot.data for slot in self._slots if slot.kind == SlotKind.CONSTANT],
            events=sorted(events, key=lambda event: event.signal),
            patches=list(patches),
            flags=flags,
        )

    def _ordered(self) -> list[Command]:
        """Returns the commands with their dependencies. Slots of an alias group count as one memory."""
        hazards = Hazards()
        groups = {
            slot.alias_group: number for number, slot in reversed(list(enumerate(self._slots))) if slot.alias_group
        }
        result: list[Command] = []
        for index, command in enumerate(self.commands):
            if isinstance(command, Barrier):
                hazards.barrier = index
                result.append(command)
                continue
            ranges = [
                (groups.get(self._slots[ref.slot].alias_group, ref.slot), ref.access, ref.offset, ref.length)
                for ref in refs_of(command)
            ]
            result.append(command._replace(deps=tuple(hazards.depend(index, ranges))[-DEPENDENCIES:]))
        return result


def refs_of(command: Command) -> tuple[Ref, ...]:
    """Returns the ranges that a command uses."""
    match command:
        case Dispatch(refs=refs):
            return refs
        case Copy(destination=destination, source=source):
            return (destination, source)
        case Fill(destination=destination) | Update(destination=destination):
            return (destination,)
        case _:
            return ()
