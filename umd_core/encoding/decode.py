"""Bytes → CommandBuffer, after every rule has been checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from umd_core.commands import (
    Barrier,
    Command,
    CommandBuffer,
    Copy,
    Dispatch,
    Fill,
    Mark,
    Nop,
    Opcode,
    Ref,
    SlotKind,
    Update,
)
from umd_core.encoding.annexes import check_debug, read_debug, read_events, read_patches
from umd_core.encoding.bulk import FEWEST, Bulk
from umd_core.encoding.bulk_launches import doubtful_launches
from umd_core.encoding.frame import open_frame
from umd_core.encoding.launches import check_launches
from umd_core.encoding.layout import COMMAND, DEP, LAUNCH, LIBRARY_LIMITS, NUMBER_LIMIT, REF, Limits, SectionKind
from umd_core.encoding.structure import check_command_count, check_structure
from umd_core.encoding.tables import Tables, resolve_kernels

_DISPATCH, _LAUNCH_SIZE = int(Opcode.DISPATCH), LAUNCH.size
Source = bytes | bytearray | memoryview
UNLIMITED_WORK = NUMBER_LIMIT


def validate(source: Source, limits: Limits = LIBRARY_LIMITS, max_work: int = UNLIMITED_WORK) -> None:
    """Returns when the bytes keep every rule of docs/command-buffer.md.

    Args:
        source: the encoded command buffer.
        limits: what is accepted at most.
        max_work: element operations allowed in one launch (`Caps.max_work`).

    Raises:
        DecodeError: a rule is broken; it names rule, byte, section and index.
    """
    tables = _checked(source, limits, max_work)
    read_events(tables)
    read_patches(tables)
    check_debug(tables)


def decode(source: Source, limits: Limits = LIBRARY_LIMITS, max_work: int = UNLIMITED_WORK) -> CommandBuffer:
    """Returns the command buffer that the bytes stand for; `encode` gives the same bytes again.

    Args: see `validate`.

    Raises:
        DecodeError: a rule is broken; it names rule, byte, section and index.
    """
    tables = _checked(source, limits, max_work)
    frame = tables.frame
    return CommandBuffer(
        kernels=tables.records,
        slots=tables.slots,
        commands=list(_commands(tables)),
        constants=[tables.data[s.value : s.value + s.length] for s in tables.slots if s.kind == SlotKind.CONSTANT],
        events=read_events(tables),
        patches=read_patches(tables),
        debug=read_debug(tables),
        flags=frame.flags,
        compat=frame.compat,
        extra=frame.extra,
        newer=frame.newer,
        raw=frame.data,
    )


def _checked(source: Source, limits: Limits, max_work: int) -> Tables:
    """Returns the tables of a buffer; events, patches and debug text are still to be read."""
    tables = check_tables(source, limits)
    if tables.frame.command_count < FEWEST:
        check_structure(tables)
        check_launches(tables, max_work)
    else:
        check_bulk(tables, max_work)
    return tables


def check_tables(source: Source, limits: Limits) -> Tables:
    """Returns the tables of a buffer, commands and launches not yet checked.

    Raises:
        DecodeError: header, sections, kernels or slots break a rule.
    """
    return Tables(open_frame(source, limits), limits)


def check_bulk(tables: Tables, max_work: int) -> None:
    """Checks commands and launches: in bulk, and one by one what that does not accept.

    Raises:
        DecodeError: a rule is broken.
    """
    check_command_count(tables)
    bulk = Bulk(tables)
    first = bulk.first_dispatches()
    if first is None:
        check_structure(tables)
    else:
        resolve_kernels(tables, first)
    check_launches(tables, max_work, doubtful_launches(bulk, max_work))


def _commands(tables: Tables) -> Iterator[Command]:
    frame, data = tables.frame, tables.data
    refs = tuple(map(Ref._make, REF.struct.iter_unpack(frame.section(SectionKind.REFS).data)))
    deps = tuple([dep for (dep,) in DEP.struct.iter_unpack(frame.section(SectionKind.DEPS).data)])
    unpack = LAUNCH.struct.unpack_from
    fields: tuple[int, ...]
    for fields in COMMAND.struct.iter_unpack(frame.section(SectionKind.COMMANDS).data):
        op, _, queue, dep_count, arg0, at, length, first_ref, ref_count, _, first_dep, _ = fields
        own = refs[first_ref : first_ref + ref_count]
        waits = deps[first_dep : first_dep + dep_count] if dep_count else ()
        start = at << 3
        if op == _DISPATCH:
            launch = unpack(data, start)[:7]
            yield Dispatch(arg0, launch, data[start + _LAUNCH_SIZE : start + length], own, waits, queue)
        elif op in _BUILD:
            yield _BUILD[op](own, data[start : start + length], arg0, waits, queue)


_Builder = Callable[[tuple[Ref, ...], bytes, int, tuple[int, ...], int], Command]


def _copy(refs: tuple[Ref, ...], data: bytes, arg0: int, *rest: Any) -> Command:
    return Copy(refs[0], refs[1], *rest)


def _fill(refs: tuple[Ref, ...], data: bytes, arg0: int, *rest: Any) -> Command:
    return Fill(refs[0], data[:arg0], *rest)


def _update(refs: tuple[Ref, ...], data: bytes, arg0: int, *rest: Any) -> Command:
    return Update(refs[0], data, *rest)


def _mark(refs: tuple[Ref, ...], data: bytes, arg0: int, *rest: Any) -> Command:
    return Mark(arg0, str(data, "utf-8"), *rest)


def _barrier(refs: tuple[Ref, ...], data: bytes, arg0: int, *rest: Any) -> Command:
    return Barrier(*rest)


def _nop(refs: tuple[Ref, ...], data: bytes, arg0: int, *rest: Any) -> Command:
    return Nop(*rest)


_BUILD: dict[int, _Builder] = {
    Opcode.COPY: _copy,
    Opcode.FILL: _fill,
    Opcode.UPDATE: _update,
    Opcode.MARK: _mark,
    Opcode.BARRIER: _barrier,
    Opcode.NOP: _nop,
}
