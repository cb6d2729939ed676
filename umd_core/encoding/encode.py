"""CommandBuffer → bytes."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

from umd_core.commands import (
    Barrier,
    CommandBuffer,
    Copy,
    Dispatch,
    Fill,
    Mark,
    Newer,
    Nop,
    Opcode,
    Ref,
    Update,
)
from umd_core.encoding.frame import close_frame
from umd_core.encoding.layout import (
    COMMAND,
    DEBUG,
    EVENT,
    KERNEL,
    LAUNCH,
    PATCH,
    REF,
    SECTIONS,
    SLOT,
    VERSION,
    SectionKind,
)
from umd_core.encoding.unfit import unfit
from umd_core.errors import LimitError, UnsupportedError

_Parts = tuple[int, int, Sequence[Ref], bytes]
"""What a command beside a dispatch is made of: opcode, arg0, refs, data."""


def encode(cb: CommandBuffer, target: tuple[int, int] | None = None) -> bytes:
    """Returns the canonical bytes of a command buffer.

    Args:
        cb: what to encode; its `raw` is not looked at.
        target: (major, minor) that the reader knows. By default what the buffer itself needs: 1.0, or the version that
            it was read as.

    Raises:
        UnsupportedError: the target lacks something that the buffer holds; the error names it.
        LimitError: a number or a text does not fit in its field.
    """
    newer = _fit_target(cb, target)
    writer = _Writer()
    try:
        for data in cb.constants:
            writer.append_data(data)
        for command in cb.commands:
            writer.add(command)
        writer.end()
        return _close(cb, writer, newer)
    except (struct.error, OverflowError) as error:
        raise unfit(cb, writer.count) from error


def _fit_target(cb: CommandBuffer, target: tuple[int, int] | None) -> Newer | None:
    newer = cb.newer
    if target is None:
        return newer
    if target[0] != VERSION[0] or target > (VERSION[0], max(VERSION[1], newer.minor if newer else 0)):
        raise UnsupportedError(f"version {target[0]}.{target[1]} is not one that this library writes")
    if newer is None or target[1] >= newer.minor:
        return newer
    needs = [f"longer records of {SectionKind(kind).name}" for kind, _, _ in newer.tails]
    if newer.header:
        needs.insert(0, "a longer header")
    if needs:
        raise UnsupportedError(
            f"version {target[0]}.{target[1]} lacks {', '.join(needs)} of version {VERSION[0]}.{newer.minor}"
        )
    return None if target[1] == 0 else Newer(target[1])


class _Writer:
    """The tables of the commands, growing."""

    __slots__ = ("commands", "count", "data", "deps", "ref_count", "refs")

    def __init__(self) -> None:
        self.commands, self.refs, self.data = bytearray(), bytearray(), bytearray()
        self.deps: list[int] = []
        self.count = self.ref_count = 0

    def append_data(self, data: bytes) -> None:
        """Appends bytes to DATA, padded to 8."""
        self.data += data
        rest = len(data) & 7
        if rest:
            self.data += bytes(8 - rest)

    def add(self, command: Any) -> None:
        """Appends a command."""
        refs: Sequence[Ref]
        if type(command) is Dispatch:
            arg0, launch, parameters, refs, deps, queue = command
            at = len(self.data)
            self.data += _pack_launch(*launch, 0)
            self.append_data(parameters)
            opcode, length = 1, 32 + len(parameters)
        else:
            opcode, arg0, refs, payload = _PARTS[type(command)](command)
            deps, queue = command.deps, command.queue
            at, length = len(self.data), len(payload)
            self.append_data(payload)
        count, own = len(refs), self.deps
        self.commands += _pack_command(
            opcode, 0, queue, len(deps), arg0, at >> 3, length, self.ref_count, count, 0, len(own), 0
        )
        if count:
            self.refs += _ref_packer(count)(*itertools.chain.from_iterable(refs))
            self.ref_count += count
        if deps:
            own += deps
        self.count += 1

    def end(self) -> None:
        """Appends END."""
        at = len(self.data) >> 3
        self.commands += _pack_command(Opcode.END, 0, 0, 0, 0, at, 0, self.ref_count, 0, 0, len(self.deps), 0)


_pack_command, _pack_launch = COMMAND.struct.pack, LAUNCH.struct.pack
_DATA_OFFSET = [field.name for field in COMMAND.fields].index("data_offset")


@functools.cache
def _ref_packer(count: int) -> Callable[..., bytes]:
    return struct.Struct("<" + REF.struct.format.lstrip("<") * count).pack


def _copy_parts(command: Copy) -> _Parts:
    return Opcode.COPY, 0, (command.destination, command.source), b""


def _fill_parts(command: Fill) -> _Parts:
    pattern = command.pattern
    return Opcode.FILL, len(pattern), (command.destination,), pattern.ljust(8, b"\0")


def _update_parts(command: Update) -> _Parts:
    return Opcode.UPDATE, 0, (command.destination,), command.data


def _mark_parts(command: Mark) -> _Parts:
    return Opcode.MARK, command.id, (), command.label.encode("utf-8", "replace")


_PARTS: dict[type[Any], Callable[[Any], _Parts]] = {
    Copy: _copy_parts,
    Fill: _fill_parts,
    Update: _update_parts,
    Mark: _mark_parts,
    Barrier: lambda command: (Opcode.BARRIER, 0, (), b""),
    Nop: lambda command: (Opcode.NOP, 0, (), b""),
}


def _close(cb: CommandBuffer, writer: _Writer, newer: Newer | None) -> bytes:
    for kind, *_ in cb.extra:
        if kind in SECTIONS or not 0 < kind < SectionKind.SIGNATURE:
            raise UnsupportedError(f"an extra section of kind {kind}, which the format uses itself")
    strings, kernels = _kernels(cb)
    sections = (
        (SectionKind.STRINGS, strings),
        (SectionKind.KERNELS, kernels),
        (SectionKind.SLOTS, b"".join([SLOT.struct.pack(*slot) for slot in cb.slots])),
        (SectionKind.COMMANDS, bytes(writer.commands)),
        (SectionKind.REFS, bytes(writer.refs)),
        (SectionKind.DEPS, struct.pack(f"<{len(writer.deps)}I", *writer.deps)),
        (SectionKind.EVENTS, _events(cb)),
        (SectionKind.DATA, bytes(writer.data)),
        (SectionKind.PATCHES, _patches(cb, writer)),
        (SectionKind.DEBUG, _debug(cb)),
    )
    header = (cb.flags, cb.compat, writer.count + 1, len(cb.slots), len(cb.events))
    return close_frame(header, sections, cb.extra, newer)


def _kernels(cb: CommandBuffer) -> tuple[bytes, bytes]:
    names, records = bytearray(), bytearray()
    for record in cb.kernels:
        row, name = record.row, record.row.name.encode()
        types = bytes([dtype.code for dtype in record.types])
        records += KERNEL.struct.pack(
            len(names), len(name), row.abi, row.digest, record.size, len(row.operands), 0, types.ljust(8, b"\0")
        )
        names += name
    return bytes(names), bytes(records)


def _events(cb: CommandBuffer) -> bytes:
    ordered = sorted(cb.events, key=lambda event: event.signal)
    return b"".join([EVENT.struct.pack(*event, 0) for event in ordered])


def _patches(cb: CommandBuffer, writer: _Writer) -> bytes:
    if not cb.patches:
        return b""
    for patch in cb.patches:
        if not 0 <= patch.command < writer.count:
            raise LimitError("command of a patch", patch.command, writer.count - 1)
    starts = [8 * command[_DATA_OFFSET] for command in COMMAND.struct.iter_unpack(writer.commands)]
    ordered = sorted((starts[p.command] + p.offset, p.kind, p.symbol, p.addend) for p in cb.patches)
    return b"".join([PATCH.struct.pack(*patch) for patch in ordered])


def _debug(cb: CommandBuffer) -> bytes:
    if cb.debug and len(cb.debug) != len(cb.commands):
        raise LimitError("number of debug entries", len(cb.debug), len(cb.commands))
    records, texts = bytearray(), bytearray()
    for info in cb.debug:
        parts = [text.encode("utf-8", "replace") for text in info]
        records += DEBUG.struct.pack(*map(len, parts), 0)
        texts += b"".join(parts)
    return bytes(records + texts)
