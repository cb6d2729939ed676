"""What hangs on the commands: events, patches, debug text. Read and checked in one pass each."""

from __future__ import annotations

import bisect
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umd_core.commands import DebugInfo, Event, Opcode, Patch, PatchKind
from umd_core.encoding.layout import (
    ADDING_PATCHES,
    COMMAND,
    DEBUG,
    EVENT,
    LAUNCH,
    PATCH,
    PATCH_SIZES,
    SIGNAL_EVENT,
    SectionKind,
    columns_of,
)
from umd_core.encoding.tables import Tables
from umd_core.errors import DecodeError
from umd_core.kernels import KernelRecord

_E, _P, _T = SectionKind.EVENTS, SectionKind.PATCHES, SectionKind.DEBUG
_DISPATCH = int(Opcode.DISPATCH)


def read_events(tables: Tables) -> list[Event]:
    """Returns the events.

    Raises:
        DecodeError: one breaks a rule.
    """
    frame = tables.frame
    section = frame.section(_E).data
    count = len(section) // EVENT.size
    if count != frame.event_count:
        raise frame.broken("event-count", _E, f"{count} records, the header says {frame.event_count}")
    events = []
    last = -1
    for index, (kind, signal, command, reserved) in enumerate(EVENT.struct.iter_unpack(section)):
        if kind != SIGNAL_EVENT:
            raise frame.broken("event-kind", _E, f"kind {kind} is unknown", index, "kind")
        if signal <= last:
            raise frame.broken("event-order", _E, f"signal {signal} after {last}", index, "signal")
        if command >= frame.command_count - 1:
            detail = f"command {command} of {frame.command_count - 1}"
            raise frame.broken("event-command", _E, detail, index, "command")
        if reserved:
            raise frame.broken("event-reserved", _E, f"{reserved:#x} where 0 belongs", index, "reserved")
        last = signal
        events.append(Event(kind, signal, command))
    return events


@functools.lru_cache(maxsize=4096)
def patchable_fields(record: KernelRecord) -> dict[int, tuple[int, bool]]:
    """Returns the patchable numbers of a parameter block: offset → (size, whether it is a float)."""
    columns = columns_of(record.columns)
    return {c.offset: (c.size, c.kind == "f") for c in columns if c.offset in record.patchable}


def read_patches(tables: Tables) -> list[Patch]:
    """Returns the patches, each with its command and the offset in that command's data.

    Raises:
        DecodeError: one breaks a rule.
    """
    frame = tables.frame
    section = frame.section(_P).data
    if not section:
        return []
    starts, dispatches = _dispatch_starts(tables)
    patches = []
    cursor = 0
    for index, (offset, kind, symbol, addend) in enumerate(PATCH.struct.iter_unpack(section)):
        size = PATCH_SIZES.get(kind)
        if size is None:
            raise frame.broken("patch-kind", _P, f"kind {kind} is unknown", index, "kind")
        if addend and kind not in ADDING_PATCHES:
            raise frame.broken("patch-addend", _P, f"addend {addend} of {PatchKind(kind).name}", index, "addend")
        if offset < cursor:
            raise frame.broken("patch-order", _P, f"offset {offset}, before it ends at {cursor}", index, "data_offset")
        cursor = offset + size
        at = bisect.bisect_right(starts, offset) - 1
        command, kernel = dispatches[at] if at >= 0 else (0, -1)
        within = offset - starts[at] if at >= 0 else 0
        field = patchable_fields(tables.records[kernel]).get(within - LAUNCH.size) if kernel >= 0 else None
        if field is None:
            raise frame.broken("patch-place", _P, f"no patchable field begins at {offset}", index, "data_offset")
        if field[0] != size or (field[1] and kind in ADDING_PATCHES):
            what = "float" if field[1] else "integer"
            detail = f"{PatchKind(kind).name} does not fit {what} of {field[0]} bytes"
            raise frame.broken("patch-kind", _P, detail, index, "kind")
        patches.append(Patch(command, within, kind, symbol, addend))
    return patches


def _dispatch_starts(tables: Tables) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns where each command's data begins in DATA, and (command, kernel), kernel -1 for what is no dispatch."""
    starts, owners = [], []
    for index, command in enumerate(COMMAND.struct.iter_unpack(tables.frame.section(SectionKind.COMMANDS).data)):
        op, arg0, at = command[0], command[4], command[5]
        starts.append(at << 3)
        owners.append((index, arg0 if op == _DISPATCH else -1))
    return starts, owners


def check_debug(tables: Tables) -> None:
    """Checks the debug text, without building it where that is not needed.

    Raises:
        DecodeError: it breaks a rule.
    """
    section = tables.frame.section(_T)
    heads = DEBUG.size * (tables.frame.command_count - 1)
    if heads <= section.size:
        lengths: NDArray[Any] = np.frombuffer(section.data[:heads], DEBUG.dtype).view("<u2").reshape(-1, 4)
        plain = not lengths[:, 3].any() and bytes(section.data[heads:]).isascii()
        if plain and int(lengths.sum()) == section.size - heads:
            return
    read_debug(tables)


def read_debug(tables: Tables) -> list[DebugInfo]:
    """Returns the debug text of each command.

    Raises:
        DecodeError: it breaks a rule.
    """
    frame = tables.frame
    section = frame.section(_T)
    if not section.size:
        return []
    count = frame.command_count - 1
    cursor = DEBUG.size * count
    if cursor > section.size:
        raise frame.broken("debug-size", _T, f"{section.size} bytes for {count} commands")
    data = bytes(section.data)
    text = _Text(data, section.offset)
    infos = []
    for index, (op, node, source, reserved) in enumerate(DEBUG.struct.iter_unpack(data[:cursor])):
        if reserved:
            raise frame.broken("debug-reserved", _T, f"{reserved:#x} where 0 belongs", index, "reserved")
        first, second, end = cursor + op, cursor + op + node, cursor + op + node + source
        if end > section.size:
            raise frame.broken("debug-size", _T, f"the text of command {index} leaves the section", index)
        texts = text.cut(cursor, first, index), text.cut(first, second, index), text.cut(second, end, index)
        infos.append(DebugInfo(*texts))
        cursor = end
    if cursor != section.size:
        raise frame.broken("debug-size", _T, f"{section.size - cursor} bytes belong to no command", count)
    return infos


class _Text:
    """The text of DEBUG: where it is all ASCII, slices of one string are the fastest."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset
        self._whole = data.decode("ascii") if data.isascii() else None

    def cut(self, start: int, end: int, index: int) -> str:
        """Returns the text of some bytes of the section, which belong to command `index`."""
        if self._whole is not None:
            return self._whole[start:end]
        try:
            return self._data[start:end].decode()
        except UnicodeDecodeError as error:
            offset = self._offset + start + error.start
            raise DecodeError("text-encoding", "not UTF-8", offset=offset, section="DEBUG", index=index) from None
