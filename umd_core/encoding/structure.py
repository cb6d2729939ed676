"""Refs, commands and dependencies, one by one: the definition of what their rules mean.

`bulk` accepts most large buffers much faster. What it does not accept is judged here.
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Callable, Sequence

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
_EXPECTED = {op: bytes(o.refs) for op, o in OPCODES.items() if o.refs is not None}
_COMMAND_WORDS, _REF_WORDS = struct.Struct("<4Q"), struct.Struct("<3Q")
"""The records in words of 8 bytes: fewer numbers to make."""
_Step = tuple[int, int, int, int, int, bytes]
"""Data length and ref count as they stand in their words, units of data, numbers of refs and deps, accesses."""
_UNSEEN: _Step = (-(2**64), 0, 0, 0, 0, b"")
_ALIKE = (Opcode.DISPATCH, Opcode.NOP, Opcode.BARRIER)
"""Commands whose first word says all that is asked of them."""
_NO_DEP = 2**32


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


def _check_refs(tables: Tables) -> bytes:
    """Returns the access of each ref."""
    data, slots = tables.frame.section(_R).data, tables.slots
    reach: dict[int, int] = collections.defaultdict(int)  # by slot and access, the first word of a ref
    for head, offset, length in _REF_WORDS.iter_unpack(data):
        end = offset + length
        if end > reach[head]:
            reach[head] = end
    needed = [0] * len(slots)
    for head, end in reach.items():
        slot, access = head & 0xFFFFFFFF, head >> 32
        if slot >= len(slots) or not access or access & ~slots[slot].access or end > slots[slot].min_size:
            raise _ref_error(tables)
        if end > needed[slot]:
            needed[slot] = end
    check_min_sizes(tables.frame, slots, needed)
    return data.tobytes()[REF.offsets["access"] :: REF.size]  # the low byte: the others are 0


def _ref_error(tables: Tables) -> DecodeError:
    """Returns the error of the first ref that breaks a rule; one does."""
    frame, slots = tables.frame, tables.slots
    index = slot = offset = length = size = 0
    for index, (slot, access, offset, length) in enumerate(REF.struct.iter_unpack(frame.section(_R).data)):
        if slot >= len(slots):
            return frame.broken("ref-slot", _R, f"slot {slot} of {len(slots)}", index, "slot")
        allowed, size = slots[slot].access, slots[slot].min_size
        if not access or access & ~allowed:
            return frame.broken("ref-access", _R, f"access {access}, slot {slot} has {allowed}", index, "access")
        if offset + length > size:
            break
    detail = f"{length} bytes at {offset} of slot {slot}, whose min_size is {size}"
    return frame.broken("ref-range", _R, detail, index, "offset")


def _check_commands(tables: Tables, accesses: bytes) -> list[tuple[int, int]]:
    """Returns, for each kernel, its first dispatch and where in DATA that one's bytes begin.

    The first word of a dispatch holds opcode, flags, number of deps and kernel. So once one has kept all rules, another
    with the same word keeps them if its other words are as the cursors ask, and its deps and accesses are in order.
    """
    commands = _Commands(tables, accesses)
    deps, data_end = commands.deps, commands.data_end
    ref_at = dep_at = 0
    data_at = tables.commands_at >> 3
    short = len(tables.frame.data) < 2**32  # then no cursor overflows into the next field of its word
    seen: dict[int, _Step] = {}
    for index, (head, data, refs, rest) in enumerate(_COMMAND_WORDS.iter_unpack(tables.frame.section(_C).data)):
        first_data, first_refs, units, ref_count, dep_count, expected = seen.get(head, _UNSEEN)
        if (
            data != first_data + data_at
            or refs != first_refs + ref_at
            or rest != dep_at
            or data_at + units > data_end
            or accesses[ref_at : ref_at + ref_count] != expected
            or (dep_count and (deps[dep_at] >= index or (dep_count > 1 and not _rise(deps, dep_at, dep_count, index))))
        ):
            step = commands.check(index, ref_at, dep_at, data_at)
            _, _, units, ref_count, dep_count, _ = step
            if head & 0xFF in _ALIKE and short:
                seen[head] = step
        ref_at += ref_count
        dep_at += dep_count
        data_at += units
    _check_rest(tables, ref_at, dep_at, data_at)
    return commands.first


def _rise(deps: Sequence[int], first: int, count: int, index: int) -> bool:
    """Returns whether the deps of command `index` keep their order. Beyond the last dep follows `_NO_DEP`."""
    last = -1
    for dep in deps[first : first + count]:
        if not last < dep < index:
            return False
        last = dep
    return True


class _Commands:
    """All rules of one command.

    Attributes:
        deps: the DEPS section, then `_NO_DEP`.
        data_end: where DATA ends, in units of 8 bytes.
        first: for each kernel, its first dispatch and where in DATA that one's bytes begin.
    """

    def __init__(self, tables: Tables, accesses: bytes) -> None:
        self._tables, self._accesses = tables, accesses
        deps = tables.frame.section(_D).data
        self.deps = (*struct.unpack(f"<{len(deps) // 4}I", deps), _NO_DEP)
        self.data_end = len(tables.data) >> 3
        self.first: list[tuple[int, int]] = []

    def check(self, index: int, ref_at: int, dep_at: int, data_at: int) -> _Step:
        """Returns how far a command that keeps all rules moves the cursors, and what others like it must show.

        Raises:
            DecodeError: it breaks a rule.
        """
        tables, frame = self._tables, self._tables.frame
        command: Fields = COMMAND.struct.unpack_from(frame.section(_C).data, COMMAND.size * index)
        op, flags, _, dep_count, _, at, length, first_ref, ref_count, reserved, first_dep, arg1 = command
        if first_ref != ref_at or first_dep != dep_at or at != data_at:
            raise _cursor_error(tables, index, command, (ref_at, dep_at, data_at))
        if flags or reserved or arg1:
            field = "flags" if flags else "reserved" if reserved else "arg1"
            raise frame.broken("command-reserved", _C, f"{field} is not 0", index, field)
        expected = self._expected(index, command)
        accesses = self._accesses[first_ref : first_ref + ref_count]
        if ref_count != len(expected) or accesses != expected:
            raise _refs_error(tables, index, command, accesses, expected)
        if dep_count:
            end = min(first_dep + dep_count, len(self.deps) - 1)
            _check_deps(tables, index, dep_count, self.deps[first_dep:end], first_dep)
        units = (length + 7) >> 3
        if data_at + units > self.data_end:
            raise frame.broken("data-cursor", _C, f"{length} bytes at {8 * at} leave DATA", index, "data_length")
        if op != _DISPATCH:
            check_other(tables, index, command)
        return length << 32, ref_count << 32, units, ref_count, dep_count, expected

    def _expected(self, index: int, command: Fields) -> bytes:
        """Returns the accesses that the command's refs must have, once its opcode and kernel are right."""
        op, arg0, length, tables = command[OP], command[ARG0], command[DATA_LENGTH], self._tables
        if op != _DISPATCH:
            if op not in _CHECKS:
                raise _opcode_error(tables, index, op)
            return _EXPECTED[op]
        if arg0 >= len(self.first):
            _check_new_kernel(tables, index, arg0, len(self.first))
            self.first.append((index, command[DATA_OFFSET] << 3))
        kernel = tables.kernels[arg0]
        if length != kernel.data_length:
            raise _length_error(tables, index, length, kernel.data_length, kernel.data_length)
        return kernel.accesses


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


def _refs_error(tables: Tables, index: int, command: Fields, found: bytes, expected: bytes) -> DecodeError:
    frame, count, first = tables.frame, command[REF_COUNT], command[FIRST_REF]
    if count != len(expected):
        return frame.broken("ref-count", _C, f"{count} refs, {len(expected)} are wanted", index, "ref_count")
    if len(found) < count:
        return frame.broken("ref-cursor", _C, f"{count} refs from {first} on leave REFS", index, "first_ref")
    at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    return frame.broken("ref-access", _R, f"access {found[at]}, {expected[at]} is wanted", first + at, "access")
