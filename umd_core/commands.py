"""What a command buffer holds, as Python values: slots, commands, patches.

`encoding` turns a CommandBuffer into bytes and back; docs/command-buffer.md gives every field its meaning.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from umd_core.ir import TensorDesc
from umd_core.kernels import Geometry, KernelRecord

READ, WRITE = 1, 2
ARENA_ALIGNMENT = 256


class Opcode(enum.IntEnum):
    """Number of each command in the encoded form."""

    NOP = 0
    DISPATCH = 1
    COPY = 2
    FILL = 3
    UPDATE = 4
    BARRIER = 5
    MARK = 8
    END = 0x7F


class SlotKind(enum.IntEnum):
    """What a slot stands for."""

    ARGUMENT = 0
    ARENA = 1
    CONSTANT = 2
    HANDLE = 3


class Flag(enum.IntFlag):
    """Flags of a command buffer."""

    ONE_SHOT = 1
    SIMULTANEOUS_OK = 2
    DETERMINISTIC = 4


class Ref(NamedTuple):
    """A range of bytes in a slot, and how the command uses it (READ, WRITE or both)."""

    slot: int
    access: int
    offset: int
    length: int


class Slot(NamedTuple):
    """A buffer that the commands refer to.

    `min_size` is the largest offset + length over the slot's refs. `value` is the DATA offset (constant) or handle,
    `length` the bytes of a constant or the arena's peak.
    """

    kind: int
    access: int
    alias_group: int
    alignment: int
    min_size: int
    value: int
    length: int


class Dispatch(NamedTuple):
    """Run a kernel. `kernel` is the index into `CommandBuffer.kernels`."""

    kernel: int
    launch: Geometry
    parameters: bytes
    refs: tuple[Ref, ...]
    deps: tuple[int, ...] = ()
    queue: int = 0


class Copy(NamedTuple):
    """Copy bytes; source and destination are equally long and disjoint."""

    destination: Ref
    source: Ref
    deps: tuple[int, ...] = ()
    queue: int = 0


class Fill(NamedTuple):
    """Repeat a pattern of 1, 2, 4 or 8 bytes over the destination."""

    destination: Ref
    pattern: bytes
    deps: tuple[int, ...] = ()
    queue: int = 0


class Update(NamedTuple):
    """Write inline bytes (at most 64 KiB)."""

    destination: Ref
    data: bytes
    deps: tuple[int, ...] = ()
    queue: int = 0


class Barrier(NamedTuple):
    """Everything before it happens before everything after it."""

    deps: tuple[int, ...] = ()
    queue: int = 0


class Mark(NamedTuple):
    """A labelled place; never changes results."""

    id: int
    label: str
    deps: tuple[int, ...] = ()
    queue: int = 0


class Nop(NamedTuple):
    """Nothing."""

    deps: tuple[int, ...] = ()
    queue: int = 0


Command = Dispatch | Copy | Fill | Update | Barrier | Mark | Nop


def refs_of(command: Command) -> tuple[Ref, ...]:
    """Returns the refs of any command."""
    if isinstance(command, Dispatch):
        return command.refs
    if isinstance(command, Copy):
        return (command.destination, command.source)
    return (command.destination,) if isinstance(command, (Fill, Update)) else ()


class Event(NamedTuple):
    """Signal number `signal` of the submission fires once `command` is done (kind 3)."""

    kind: int
    signal: int
    command: int


class PatchKind(enum.IntEnum):
    """How a submission's value is written into DATA."""

    U32 = 1
    U64 = 2
    BITS32 = 3
    BITS64 = 4


class Patch(NamedTuple):
    """values[symbol] + addend is written at byte `offset` of `command`'s launch block and parameters."""

    command: int
    offset: int
    kind: int
    symbol: int
    addend: int = 0


class DebugInfo(NamedTuple):
    """Where a command came from: op, node name, source line of the model."""

    op: str = ""
    node: str = ""
    source: str = ""


class Newer(NamedTuple):
    """What a buffer of a later minor version has beyond 1.0; kept verbatim.

    `header` is the header from byte 64 on. `tails` holds, for each section whose records are longer than those of 1.0,
    (kind, stride, the records' tails one after the other).
    """

    minor: int
    header: bytes = b""
    tails: tuple[tuple[int, int, bytes], ...] = ()


@dataclass(slots=True)
class CommandBuffer:
    """A program: kernels, slots and commands in program order (END is implied).

    Attributes:
        kernels: distinct kernel records in first-use order.
        slots: arguments, arena, constants, handles, in that order.
        commands: in program order, always a legal schedule.
        constants: bytes of each constant slot, in slot order.
        events, patches, debug: see the format; `debug` is empty or has one entry a command.
        flags, compat: header fields.
        inputs, outputs: descriptions of the argument slots; they travel beside the bytes.
        aliases: (output index, input index) pairs that share one buffer.
        extra: unknown optional sections, kept verbatim: (kind, flags, stride, bytes).
        newer: what a later minor version added, None for version 1.0.
        raw: the encoded bytes when they are known.
    """

    kernels: list[KernelRecord] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    constants: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)
    debug: list[DebugInfo] = field(default_factory=list)
    flags: int = 0
    compat: int = 0
    inputs: Sequence[TensorDesc] = ()
    outputs: Sequence[TensorDesc] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    extra: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    newer: Newer | None = None
    raw: bytes | None = None

    def __bytes__(self) -> bytes:
        if self.raw is None:
            from umd_core.encoding import encode  # noqa: PLC0415  # encoding builds CommandBuffers too

            self.raw = encode(self)
        return self.raw

    @property
    def argument_count(self) -> int:
        """Number of bindings that a submission gives."""
        return sum(slot.kind == SlotKind.ARGUMENT for slot in self.slots)

    @property
    def arena_size(self) -> int:
        """Bytes of transient memory that one submission in flight needs."""
        return next((slot.length for slot in self.slots if slot.kind == SlotKind.ARENA), 0)
