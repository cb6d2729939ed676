"""Refs, commands and dependencies, one by one: the definition of what their rules mean.

`bulk` accepts most large buffers much faster. What it does not accept is judged here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from umd_core.commands import Opcode
from umd_core.encoding.layout import (
    COMMAND,
    EXPERIMENTAL_OPCODES,
    FILL_SIZES,
    OPCODES,
    REF,
    VENDOR_OPCODES,
    SectionKind,
    padded,
)
from umd_core.encoding.tables import Tables, check_min_sizes, resolve_kernels
from umd_core.errors import DecodeError

_C, _R, _D = SectionKind.COMMANDS, SectionKind.REFS, SectionKind.DEPS
_DISPATCH, _END = int(Opcode.DISPATCH), int(Opcode.END)
Fields = tuple[int, ...]
"""A COMMANDS record in field order."""
OP, FLAGS, QUEUE, DEP_COUNT, ARG0, DATA_OFFSET, DATA_LENGTH, FIRST_REF, REF_COUNT, RESERVED, FIRST_DEP, ARG1 = range(12)
_EXPECTED: dict[int, tuple[int, ...]] = {op: o.refs for op, o in OPCODES.items() if o.refs is not None}


def check_structure(tables: Tables) -> None:
    """Checks refs, commands and dependencies, and finds the kernels' array lengths.

    Raises:
        DecodeError: one of them breaks a rule.
    """
    check_command_count(tables)
    accesses = _check_refs(tables)
    resolve_kernels(tables, _check_commands(tables, accesses))


def check_command_count(tables: Tables) -> None:
    """Checks how many commands there are.

    Raises:
        DecodeError: too many, or not what the header says.
    """
    frame, limit = tables.frame, tables.limits.commands
    count = len(frame.section(_C).data) // COMMAND.size
    if count > limit:
        raise frame.broken("limit-commands", _C, f"{count} commands, the limit is {limit}")
    if count != frame.command_count:
        raise frame.broken("command-count", _C, f"{count} records, the header says {frame.command_count}")


def _check_refs(tables: Tables) -> tuple[int, ...]:
    """Returns the access of each ref."""
    frame, slots = tables.frame, tables.slots
    count = len(slots)
    sizes, allowed = [slot.min_size for slot in slots], [slot.access for slot in slots]
    reach = [0] * count
    accesses = []
    for index, (slot, access, offset, length) in enumerate(REF.struct.iter_unpack(frame.section(_R).data)):
        if slot >= count:
            raise frame.broken("ref-slot", _R, f"slot {slot} of {count}", index, "slot")
        if not access or access & ~allowed[slot]:
            raise frame.broken("ref-access", _R, f"access {access}, slot {slot} has {allowed[slot]}", index, "access")
        end = offset + length
        if end > sizes[slot]:
            detail = f"{length} bytes at {offset} of slot {slot}, whose min_size is {sizes[slot]}"
            raise frame.broken("ref-range", _R, detail, index, "offset")
        if end > reach[slot]:
            reach[slot] = end
        accesses.append(access)
    check_min_sizes(frame, slots, reach)
    return tuple(accesses)


def _check_commands(tables: Tables, accesses: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns, for each kernel, its first dispatch and where in DATA that one's bytes begin."""
    frame, kernels = tables.frame, tables.kernels
    deps = frame.section(_D).data
    dep_values = struct.unpack(f"<{len(deps) // 4}I", deps)
    first: list[tuple[int, int]] = []
    known = ref_at = dep_at = 0
    data_at, data_end = tables.commands_at >> 3, len(tables.data) >> 3
    command: Fields
    for index, command in enumerate(COMMAND.struct.iter_unpack(frame.section(_C).data)):
        op, flags, _, dep_count, arg0, at, length, first_ref, ref_count, reserved, first_dep, arg1 = command
        if first_ref != ref_at or first_dep != dep_at or at != data_at:
            raise _cursor_error(tables, index, command, (ref_at, dep_at, data_at))
        if flags or reserved or arg1:
            field = "flags" if flags else "reserved" if reserved else "arg1"
            raise frame.broken("command-reserved", _C, f"{field} is not 0", index, field)
        if op == _DISPATCH:
            if arg0 >= known:
                _check_new_kernel(tables, index, arg0, known)
                first.append((index, at << 3))
                known += 1
            expected, wanted = kernels[arg0].accesses, kernels[arg0].data_length
            if length != wanted:
                raise _length_error(tables, index, length, wanted, wanted)
        else:
            expected = _EXPECTED.get(op, ())
            if op not in _CHECKS:
                raise _opcode_error(tables, index, op)
        ref_at += ref_count
        if ref_count != len(expected) or accesses[first_ref:ref_at] != expected:
            raise _refs_error(tables, index, command, accesses[first_ref:ref_at], expected)
        if dep_count:
            dep_at += dep_count
            _check_deps(tables, index, dep_count, dep_values[first_dep:dep_at], first_dep)
        data_at += (length + 7) >> 3
        if data_at > data_end:
            raise frame.broken("data-cursor", _C, f"{length} bytes at {8 * at} leave DATA", index, "data_length")
        if op != _DISPATCH:
            check_other(tables, index, command)
    _check_rest(tables, ref_at, dep_at, data_at)
    return first


def _check_new_kernel(tables: Tables, index: int, kernel: int, known: int) -> None:
    if kernel >= len(tables.kernels):
        detail = f"kernel {kernel} of {len(tables.kernels)}"
        raise tables.frame.broken("kernel-index", _C, detail, index, "arg0")
    if kernel > known:
        detail = f"kernel {kernel} is dispatched before kernel {known}"
        raise tables.frame.broken("kernel-order", _C, detail, index, "arg0")


def _check_deps(tables: Tables, index: int, count: int, deps: tuple[int, ...], first: int) -> None:
    frame = tables.frame
    if count > tables.limits.deps:
        raise frame.broken("limit-deps", _C, f"{count} deps, the limit is {tables.limits.deps}", index, "dep_count")
    if len(deps) < count:
        raise frame.broken("dep-cursor", _C, f"{count} deps from {first} on leave DEPS", index, "first_dep")
    last = -1
    for at, dep in enumerate(deps, first):
        if not last < dep < index:
            detail = f"command {index} waits for {dep}" + (f" after {last}" if dep <= last else "")
            raise frame.broken("dep-order", _D, detail, at, "command")
        last = dep


def _check_rest(tables: Tables, ref_at: int, dep_at: int, data_at: int) -> None:
    """Checks that END came and that the commands used their tables up."""
    frame = tables.frame
    commands = frame.section(_C)
    count = frame.command_count
    if not count or commands.data[COMMAND.size * (count - 1)] != _END:
        raise frame.broken("command-end", _C, "the last command is not END", max(count - 1, 0), "op")
    refs, deps = len(frame.section(_R).data) // REF.size, len(frame.section(_D).data) // 4
    if ref_at != refs:
        raise frame.broken("refs-rest", _R, f"{refs - ref_at} refs belong to no command", ref_at)
    if dep_at != deps:
        raise frame.broken("deps-rest", _D, f"{deps - dep_at} deps belong to no command", dep_at)
    rest = len(tables.data) - 8 * data_at
    if rest:
        raise tables.data_error("data-rest", 8 * data_at, f"{rest} bytes belong to no command", count)


def check_other(tables: Tables, index: int, command: Fields) -> None:
    """Checks a command that is no dispatch, once its refs, deps and data are known to lie within their tables.

    Raises:
        DecodeError: it breaks a rule.
    """
    op, length = command[OP], command[DATA_LENGTH]
    layout = OPCODES[op]
    if command[ARG0] and not layout.arg0:
        raise tables.frame.broken("command-reserved", _C, "arg0 is not 0", index, "arg0")
    if not layout.least <= length <= layout.most:
        raise _length_error(tables, index, length, layout.least, layout.most)
    check = _CHECKS[op]
    if check is not None:
        check(tables, index, command)


def _refs_of(tables: Tables, command: Fields) -> list[tuple[int, int, int, int]]:
    refs = tables.frame.section(_R).data
    first, count = command[FIRST_REF], command[REF_COUNT]
    return list(REF.struct.iter_unpack(refs[REF.size * first : REF.size * (first + count)]))


def _check_end(tables: Tables, index: int, command: Fields) -> None:
    if index != tables.frame.command_count - 1:
        raise tables.frame.broken("command-end", _C, "END before the last command", index, "op")
    if command[QUEUE] or command[DEP_COUNT]:
        field = "queue" if command[QUEUE] else "dep_count"
        raise tables.frame.broken("command-reserved", _C, f"{field} of END is not 0", index, field)


def _check_copy(tables: Tables, index: int, command: Fields) -> None:
    (to, _, to_offset, to_length), (source, _, offset, length) = _refs_of(tables, command)
    first = command[FIRST_REF]
    if to_length != length:
        raise tables.frame.broken("copy-length", _C, f"{to_length} bytes from {length}", index)
    if tables.memory[to] == tables.memory[source] and abs(to_offset - offset) < length:
        detail = f"{length} bytes from {offset} to {to_offset} of one buffer"
        raise tables.frame.broken("copy-overlap", _C, detail, index, "first_ref", ref=first)


def _check_fill(tables: Tables, index: int, command: Fields) -> None:
    size, at = command[ARG0], command[DATA_OFFSET] << 3
    ((slot, _, offset, length),) = _refs_of(tables, command)
    if size not in FILL_SIZES or length % size:
        raise tables.frame.broken("fill-size", _C, f"pattern of {size} bytes over {length}", index, "arg0")
    if (offset | tables.alignments[slot]) & (size - 1):
        detail = f"offset {offset} in slot {slot} of alignment {tables.alignments[slot]}, pattern of {size} bytes"
        raise tables.frame.broken("ref-alignment", _R, detail, command[FIRST_REF], "offset")
    _check_padding(tables, index, at + size, at + 8)


def _check_update(tables: Tables, index: int, command: Fields) -> None:
    length, at, limit = command[DATA_LENGTH], command[DATA_OFFSET] << 3, tables.limits.update
    if length > limit:
        raise tables.frame.broken("limit-update", _C, f"{length} bytes, the limit is {limit}", index, "data_length")
    ((_, _, _, ref_length),) = _refs_of(tables, command)
    if ref_length != length:
        raise tables.frame.broken("update-length", _C, f"{length} bytes into {ref_length}", index, "data_length")
    _check_padding(tables, index, at + length, at + padded(length))


def _check_mark(tables: Tables, index: int, command: Fields) -> None:
    length, at, limit = command[DATA_LENGTH], command[DATA_OFFSET] << 3, tables.limits.name
    if length > limit:
        raise tables.frame.broken("limit-name", _C, f"{length} bytes, the limit is {limit}", index, "data_length")
    try:
        str(tables.data[at : at + length], "utf-8")
    except UnicodeDecodeError as error:
        raise tables.data_error("text-encoding", at + error.start, "the label is not UTF-8", index) from None
    _check_padding(tables, index, at + length, at + padded(length))


_CHECKS: dict[int, Callable[[Tables, int, Fields], None] | None] = {
    Opcode.NOP: None,
    Opcode.COPY: _check_copy,
    Opcode.FILL: _check_fill,
    Opcode.UPDATE: _check_update,
    Opcode.BARRIER: None,
    Opcode.MARK: _check_mark,
    Opcode.END: _check_end,
}


def _check_padding(tables: Tables, index: int, start: int, end: int) -> None:
    if any(tables.data[start:end]):
        raise tables.data_error("data-padding", start, "padding is not zero", index)


def _cursor_error(tables: Tables, index: int, command: Fields, cursors: tuple[int, int, int]) -> DecodeError:
    checks = (("ref-cursor", FIRST_REF, "first_ref"), ("dep-cursor", FIRST_DEP, "first_dep"))
    for (rule, position, field), cursor in zip(checks, cursors, strict=False):
        if command[position] != cursor:
            return tables.frame.broken(rule, _C, f"{command[position]}, the cursor is at {cursor}", index, field)
    detail = f"{8 * command[DATA_OFFSET]}, the cursor is at {8 * cursors[2]}"
    return tables.frame.broken("data-cursor", _C, detail, index, "data_offset")


def _opcode_error(tables: Tables, index: int, op: int) -> DecodeError:
    if op in VENDOR_OPCODES:
        return tables.frame.broken("opcode-vendor", _C, f"vendor opcode {op:#x} without its feature", index, "op")
    if op in EXPERIMENTAL_OPCODES:
        return tables.frame.broken("opcode-experimental", _C, f"{op:#x} is never stored or sent", index, "op")
    return tables.frame.broken("opcode-unknown", _C, f"opcode {op:#x}", index, "op")


def _length_error(tables: Tables, index: int, length: int, least: int, most: int) -> DecodeError:
    wanted = f"{least}" if least == most else f"at least {least}"
    return tables.frame.broken("data-length", _C, f"{length} bytes, {wanted} are wanted", index, "data_length")


def _refs_error(
    tables: Tables, index: int, command: Fields, found: tuple[int, ...], expected: tuple[int, ...]
) -> DecodeError:
    frame, count, first = tables.frame, command[REF_COUNT], command[FIRST_REF]
    if count != len(expected):
        return frame.broken("ref-count", _C, f"{count} refs, {len(expected)} are wanted", index, "ref_count")
    if len(found) < count:
        return frame.broken("ref-cursor", _C, f"{count} refs from {first} on leave REFS", index, "first_ref")
    at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    return frame.broken("ref-access", _R, f"access {found[at]}, {expected[at]} is wanted", first + at, "access")
