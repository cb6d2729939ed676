"""The small tables of a buffer: kernels, slots with their constants, and what the other checks share."""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

from umd_core.commands import READ, WRITE, Flag, Slot, SlotKind
from umd_core.dtypes import BY_CODE
from umd_core.encoding.frame import Frame
from umd_core.encoding.layout import (
    KERNEL,
    LAUNCH,
    NUMBER_LIMIT,
    SLOT,
    SLOT_ALIGNMENT_LIMIT,
    Limits,
    SectionKind,
    padded,
)
from umd_core.errors import DecodeError, UnsupportedError
from umd_core.kernels import KERNELS, KernelRecord, KernelRow

_K, _S = SectionKind.KERNELS, SectionKind.SLOTS
_ARGUMENT, _ARENA, _CONSTANT, _HANDLE = map(int, SlotKind)
_DETERMINISTIC = int(Flag.DETERMINISTIC)
ACCESS = {"r": READ, "w": WRITE, "rw": READ | WRITE}


class KernelEntry(NamedTuple):
    """A KERNELS record: the row, its type arguments, and what every dispatch of it must show.

    `accesses` are those of its refs, `data_length` the bytes of launch and parameter block.
    """

    row: KernelRow
    types: tuple[int, ...]
    accesses: bytes
    data_length: int


class Tables:
    """What has been read of a buffer so far.

    Attributes:
        frame, limits: of this reading.
        kernels: KERNELS records.
        records: the same with array lengths, known once the commands have been checked.
        slots: SLOTS records.
        alignments: of the slots.
        memory: for each slot a number that slots of one alias group share.
        data: the DATA section.
        commands_at: where the constants end in DATA.
    """

    __slots__ = ("alignments", "commands_at", "data", "frame", "kernels", "limits", "memory", "records", "slots")

    frame: Frame
    limits: Limits

    def __init__(self, frame: Frame, limits: Limits) -> None:
        self.frame, self.limits = frame, limits
        self.data: bytes = bytes(frame.section(SectionKind.DATA).data)
        self.kernels: list[KernelEntry] = _read_kernels(frame, limits)
        self.records: list[KernelRecord] = []
        self.slots: list[Slot] = _read_slots(frame, limits)
        self.alignments: list[int] = [slot.alignment for slot in self.slots]
        self.memory: list[int] = [-slot.alias_group or at for at, slot in enumerate(self.slots)]
        self.commands_at: int = _check_constants(frame, self.slots)

    def data_error(self, rule: str, at: int, detail: str, index: int) -> DecodeError:
        """Returns the error that byte `at` of DATA, which belongs to command `index`, breaks a rule."""
        offset = self.frame.section(SectionKind.DATA).offset + at
        return DecodeError(rule, detail, offset=offset, section="DATA", index=index)


def _read_kernels(frame: Frame, limits: Limits) -> list[KernelEntry]:
    section, strings = frame.section(_K), frame.section(SectionKind.STRINGS)
    count = len(section.data) // KERNEL.size
    if count > limits.kernels:
        raise frame.broken("limit-kernels", _K, f"{count} kernels, the limit is {limits.kernels}")
    names = bytes(strings.data)
    entries: list[KernelEntry] = []
    cursor = 0
    for index, (at, length, *fields) in enumerate(KERNEL.struct.iter_unpack(section.data)):
        if length > limits.name:
            raise frame.broken("limit-name", _K, f"{length} bytes, the limit is {limits.name}", index, "name_length")
        if at != cursor or not length or length > len(names) - at:
            detail = f"{length} bytes at {at}, the cursor is at {cursor} of {len(names)}"
            raise frame.broken("name-cursor", _K, detail, index, "name_offset")
        cursor += length
        try:
            entry = _read_kernel(names[at:cursor], *fields)
        except _RefusedError as refused:
            rule, field, detail, kernel = refused.args
            raise frame.broken(rule, _K, detail, index, field, kernel=kernel) from None
        _check_kernel_limits(frame, limits, index, entry)
        entries.append(entry)
    if cursor != len(names):
        offset = strings.offset + cursor
        raise DecodeError("strings-rest", f"{len(names) - cursor} bytes are unused", offset=offset, section="STRINGS")
    return entries


class _RefusedError(Exception):
    """A KERNELS record is refused: rule, field, detail, kernel."""


@functools.lru_cache(maxsize=1024)
def _read_kernel(
    name: bytes, abi: int, digest: int, parameter_size: int, binding_count: int, reserved: int, types: bytes
) -> KernelEntry:
    """Returns what a KERNELS record stands for (cached: rows never change)."""
    text = name.decode("utf-8", "replace")
    if reserved:
        raise _RefusedError("kernel-reserved", "reserved", f"{reserved:#x} where 0 belongs", text)
    row = KERNELS.get((text, abi))
    if row is None:
        detail = f"no kernel {text!r} of abi {abi} in the kernel table"
        raise _RefusedError("kernel-unknown", "name_offset", detail, text)
    if digest != row.digest:
        detail = f"{text} abi {abi} has digest {row.digest:#018x}, not {digest:#018x}"
        raise _RefusedError("kernel-digest", "digest", detail, text)
    used = types[: len(row.types)]
    for code, (type_name, allowed) in zip(used, row.types, strict=True):
        if BY_CODE.get(code) not in allowed:
            raise _RefusedError("kernel-types", "types", f"{type_name} of {text} cannot be type {code}", text)
    if any(types[len(used) :]):
        raise _RefusedError("kernel-types", "types", f"{text} has {len(used)} type arguments, the rest is 0", text)
    if binding_count != len(row.operands):
        detail = f"{text} has {len(row.operands)} operands, not {binding_count}"
        raise _RefusedError("kernel-bindings", "binding_count", detail, text)
    accesses = bytes([ACCESS[operand.access] for operand in row.operands])
    return KernelEntry(row, tuple(used), accesses, LAUNCH.size + parameter_size)


def _check_kernel_limits(frame: Frame, limits: Limits, index: int, entry: KernelEntry) -> None:
    count, size = len(entry.accesses), entry.data_length - LAUNCH.size
    if count > limits.refs:
        detail = f"{count} operands, the limit is {limits.refs}"
        raise frame.broken("limit-refs", _K, detail, index, "binding_count")
    if size > limits.parameters:
        detail = f"{size} bytes, the limit is {limits.parameters}"
        raise frame.broken("limit-parameters", _K, detail, index, "parameter_size")
    if frame.flags & _DETERMINISTIC and not entry.row.deterministic:
        raise frame.broken("kernel-deterministic", _K, f"{entry.row.name} is not deterministic", index)


def resolve_kernels(tables: Tables, first: list[tuple[int, int]]) -> None:
    """Reads the kernels' array lengths from their first dispatches, given as (command, offset in DATA).

    Raises:
        DecodeError: a kernel is unused, a duplicate, or has lengths or a block size that its row does not allow.
    """
    frame, seen = tables.frame, set()
    if len(first) < len(tables.kernels):
        index = len(first)
        detail = f"{tables.kernels[index].row.name} is never dispatched"
        raise frame.broken("kernel-unused", _K, detail, index)
    for index, (entry, (command, at)) in enumerate(zip(tables.kernels, first, strict=True)):
        row, block = entry.row, at + LAUNCH.size
        count, size = len(row.sizes), entry.data_length - LAUNCH.size
        if 4 * count > size:
            raise frame.broken("kernel-parameters", _K, f"{size} bytes for {row.name}", index, "parameter_size")
        sizes = struct.unpack_from(f"<{count}I", tables.data, block)
        try:
            record = _record(row, entry.types, sizes)
        except UnsupportedError as error:
            raise tables.data_error("kernel-sizes", block, error.args[0], command) from None
        if record.size != size:
            detail = f"{row.name} with array lengths {list(sizes)} has {record.size} bytes, not {size}"
            raise frame.broken("kernel-parameters", _K, detail, index, "parameter_size")
        if record in seen:
            raise frame.broken("kernel-duplicate", _K, f"{record} is there already", index)
        seen.add(record)
        tables.records.append(record)


@functools.lru_cache(maxsize=4096)
def _record(row: KernelRow, types: tuple[int, ...], sizes: tuple[int, ...]) -> KernelRecord:
    """Returns `row.record`, by the codes of the types (cached: this is looked up for each kernel of each buffer)."""
    return row.record([BY_CODE[code] for code in types], sizes)


def _read_slots(frame: Frame, limits: Limits) -> list[Slot]:
    section = frame.section(_S)
    count = len(section.data) // SLOT.size
    if count > limits.slots:
        raise frame.broken("limit-slots", _S, f"{count} slots, the limit is {limits.slots}")
    if count != frame.slot_count:
        raise frame.broken("slot-count", _S, f"{count} records, the header says {frame.slot_count}")
    slots = list(map(Slot._make, SLOT.struct.iter_unpack(section.data)))
    handles: set[int] = set()
    last = 0
    for index, slot in enumerate(slots):
        _check_slot(frame, index, slot, last)
        last = slot.kind
        if slot.kind == _HANDLE:
            if slot.value in handles or not slot.value:
                detail = "0 is no handle" if not slot.value else f"handle {slot.value:#x} has a slot already"
                raise frame.broken("slot-handle", _S, detail, index, "value")
            handles.add(slot.value)
    return slots


def _check_slot(frame: Frame, index: int, slot: Slot, last: int) -> None:
    kind, access, alias_group, alignment, min_size, value, length = slot
    held = kind in (_ARENA, _CONSTANT)

    def fail(rule: str, field: str, detail: str) -> DecodeError:
        return frame.broken(rule, _S, detail, index, field)

    if kind > _HANDLE:
        raise fail("slot-kind", "kind", f"kind {kind} is unknown")
    if kind < last:
        raise fail("slot-order", "kind", f"{SlotKind(kind).name} after {SlotKind(last).name}")
    if kind == last == _ARENA:
        raise fail("slot-arena", "kind", "there is an arena already")
    if access > (READ if kind == _CONSTANT else READ | WRITE):
        raise fail("slot-access", "access", f"access {access} of {SlotKind(kind).name}")
    if not 1 <= alignment <= SLOT_ALIGNMENT_LIMIT or alignment & (alignment - 1):
        raise fail("slot-alignment", "alignment", f"{alignment} is no power of two up to {SLOT_ALIGNMENT_LIMIT}")
    if alias_group and held:
        raise fail("slot-alias", "alias_group", f"{SlotKind(kind).name} in alias group {alias_group}")
    if length >= NUMBER_LIMIT:
        raise fail("slot-size", "length", f"{length} is not below 2^62")
    if min_size >= NUMBER_LIMIT or (held and min_size > length):
        raise fail("slot-size", "min_size", f"{min_size} of {length} bytes")
    if length and not held:
        raise fail("slot-value", "length", f"{length} where 0 belongs")
    if value and kind <= _ARENA:
        raise fail("slot-value", "value", f"{value} where 0 belongs")


def _check_constants(frame: Frame, slots: list[Slot]) -> int:
    """Returns the offset in DATA where the constants end."""
    section = frame.section(SectionKind.DATA)
    data, cursor = section.data, 0
    for index, slot in enumerate(slots):
        if slot.kind != _CONSTANT:
            continue
        if slot.value != cursor or slot.length > len(data) - cursor:
            detail = f"{slot.length} bytes at {slot.value}, the cursor is at {cursor} of {len(data)}"
            raise frame.broken("constant-cursor", _S, detail, index, "value")
        end = cursor + slot.length
        cursor = padded(end)
        if end != cursor and any(data[end:cursor]):
            raise DecodeError(
                "data-padding", "padding is not zero", offset=section.offset + end, section="DATA", index=index
            )
    return cursor


def check_min_sizes(frame: Frame, slots: list[Slot], reach: list[int]) -> None:
    """Checks each slot's min_size against the largest offset + length of its refs.

    Raises:
        DecodeError: they differ.
    """
    for index, (slot, needed) in enumerate(zip(slots, reach, strict=True)):
        if slot.min_size != needed:
            detail = f"{slot.min_size}, its refs reach {needed}"
            raise frame.broken("slot-min-size", _S, detail, index, "min_size")
