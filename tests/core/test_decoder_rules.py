"""Every decoder rule has a buffer that breaks it and nothing else, and the error says where."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.core.chain_samples import PROGRAMS, WELL_FORMED, chained
from tests.core.encoding_samples import Build, encoded, rebuilt, repaired, section_start, section_table
from umd_core import dtypes
from umd_core.commands import (
    READ,
    WRITE,
    CommandBuffer,
    Copy,
    DebugInfo,
    Dispatch,
    Fill,
    Flag,
    Mark,
    Nop,
    Patch,
    PatchKind,
    Ref,
    Update,
)
from umd_core.encoding import bulk_launches, decode, decode_original, encode, encode_original, validate
from umd_core.encoding import frame as frame_module
from umd_core.encoding.decode import UNLIMITED_WORK, check_bulk, check_tables
from umd_core.encoding.layout import (
    COMMAND,
    DEBUG,
    HEADER,
    LAUNCH,
    LIBRARY_LIMITS,
    PATCH,
    REF,
    SECTION,
    SECTIONS,
    Limits,
    RecordLayout,
    SectionKind,
)
from umd_core.encoding.rules import RULES
from umd_core.errors import DecodeError, Status
from umd_core.kernels import BY_NAME, KERNELS, chain

K = SectionKind
F32 = dtypes.float32


@dataclass(frozen=True)
class Case:
    """Bytes that break a rule, and where the error must point."""

    rule: str
    raw: bytes
    section: str
    index: int
    offset: int
    limits: Limits = LIBRARY_LIMITS
    max_work: int = UNLIMITED_WORK


def poked(raw: bytes, at: int, data: bytes) -> bytes:
    return raw[:at] + data + raw[at + len(data) :]


def field_bytes(record: RecordLayout, field: str, value: int) -> bytes:
    kind = next(f.type for f in record.fields if f.name == field)
    if kind.endswith("s"):
        return value.to_bytes(int(kind[:-1]), "little")
    return value.to_bytes(int(kind[1:]) // 8, "little", signed=kind.startswith("i"))


def header(rule: str, field: str, value: int, sample: str = "add", *, repair: bool = True) -> Case:
    at = HEADER.offsets[field]
    raw = poked(encoded(sample), at, field_bytes(HEADER, field, value))
    return Case(rule, repaired(raw) if repair else raw, "HEADER", 0, at)


def with_header_crc(raw: bytes) -> bytes:
    at = HEADER.offsets["header_crc"]
    return poked(raw, at, struct.pack("<I", zlib.crc32(raw[:at])))


def entry(rule: str, kind: SectionKind, field: str, value: int, sample: str = "add") -> Case:
    raw = encoded(sample)
    at = section_table(raw)[kind][0] + SECTION.offsets[field]
    index = list(section_table(raw)).index(kind)
    return Case(rule, repaired(poked(raw, at, field_bytes(SECTION, field, value))), "SECTIONS", index, at)


def record(rule: str, kind: SectionKind, index: int, field: str, value: int, raw: bytes) -> Case:
    layout = SECTIONS[kind].record
    assert layout is not None
    at = section_start(raw, kind) + index * layout.size + layout.offsets[field]
    return Case(rule, repaired(poked(raw, at, field_bytes(layout, field, value))), kind.name, index, at)


def elsewhere(case: Case, kind: SectionKind, index: int, field: str = "") -> Case:
    """Returns the case with the error expected in another record than the one that was changed."""
    layout = SECTIONS[kind].record
    size = layout.size if layout else 1
    within = layout.offsets[field] if layout and field else 0
    offset = section_start(case.raw, kind) + index * size + within
    return dataclasses.replace(case, section=kind.name, index=index, offset=offset)


def data(rule: str, raw: bytes, at: int, value: bytes, index: int, offset: int | None = None) -> Case:
    """Changes bytes of DATA at `at`; the error points to `offset` of DATA (`at` by default)."""
    start = section_start(raw, K.DATA)
    changed = repaired(poked(raw, start + at, value))
    return Case(rule, changed, "DATA", index, start + (at if offset is None else offset))


def of(rule: str, cb: CommandBuffer, kind: SectionKind, index: int, field: str = "", **rest: Any) -> Case:
    """A wrong command buffer, encoded; the error is at a record's field."""
    return dataclasses.replace(elsewhere(Case(rule, encode(cb), "", 0, 0), kind, index, field), **rest)


def launch(rule: str, cb: CommandBuffer, index: int, offset: int, **rest: Any) -> Case:
    """A wrong launch; `offset` is within the data of command `index`, all of whose kind have equal data."""
    raw = encode(cb)
    (at,) = struct.unpack_from("<I", raw, section_start(raw, K.COMMANDS) + COMMAND.size * index + 8)
    return Case(rule, raw, "DATA", index, section_start(raw, K.DATA) + 8 * at + offset, **rest)


def limited(case: Case, **limits: int) -> Case:
    return dataclasses.replace(case, limits=Limits(**limits))


# buffers that are wrong in one thing


def two(change: Callable[[Dispatch], Dispatch] = lambda d: d, group: int = 0) -> CommandBuffer:
    """Two additions of 16 floats over arguments a, b, out; `change` is made to the second one."""
    build = Build()
    a, b, out = (build.slot(alignment=4, group=group) for _ in range(3))
    for _ in range(2):
        build.binary("add", 16, (a, 0), (b, 0), (out, 0))
    second = build.commands[1]
    assert isinstance(second, Dispatch)
    build.commands[1] = change(second)
    return build.done()


def parameters(**values: Any) -> Callable[[Dispatch], Dispatch]:
    """Returns a change of an addition's parameters (its launch block follows)."""
    rec = BY_NAME["elementwise_add_kernel"].record([F32], (1,))

    def change(dispatch: Dispatch) -> Dispatch:
        flat = rec.flatten(rec.unpack(dispatch.parameters) | values)
        return dispatch._replace(parameters=rec.struct.pack(*flat), launch=rec.geometry(flat))

    return change


def raw_parameter(at: int, value: bytes) -> Callable[[Dispatch], Dispatch]:
    return lambda d: d._replace(parameters=poked(d.parameters, at, value))


def replaced_ref(which: int, **fields: int) -> Callable[[Dispatch], Dispatch]:
    def change(dispatch: Dispatch) -> Dispatch:
        refs = list(dispatch.refs)
        refs[which] = refs[which]._replace(**fields)
        return dispatch._replace(refs=tuple(refs))

    return change


def wrong_launch(at: int) -> Callable[[Dispatch], Dispatch]:
    def change(dispatch: Dispatch) -> Dispatch:
        numbers = [*dispatch.launch]
        numbers[at] += 1
        return dispatch._replace(launch=tuple(numbers))  # type: ignore[arg-type]  # seven, as before

    return change


def one(command: Any, **rest: Any) -> CommandBuffer:
    """A single command over an argument of alignment 8."""
    build = Build()
    build.slot()
    build.add(command)
    return build.done(**rest)


ADD_A_OFFSET, ADD_A_STRIDE, ADD_B_OFFSET, ADD_OUT_OFFSET, ADD_OUT_STRIDE = 48, 56, 64, 80, 88
"""Offsets in an addition's data, launch block first."""


def frame_cases() -> Iterator[Case]:
    raw = encoded("add")
    yield Case("limit-total-size", raw, "HEADER", 0, 0, Limits(total_size=len(raw) - 1))
    yield Case("header-short", raw[:63], "HEADER", 0, 63)
    yield Case("header-short", b"", "HEADER", 0, 0)
    yield Case("magic", repaired(b"X" + raw[1:]), "HEADER", 0, 0)
    yield Case("original-format", encode_original("elementwise_add_kernel", 12), "HEADER", 0, 6)
    yield header("original-format", "version", 0x00FF)
    yield header("version", "version", 0x0200)
    yield header("header-size", "header_size", 72)
    yield header("header-size", "header_size", 56)
    yield header("header-size", "header_size", 300, "newer_minor")
    yield header("header-size", "header_size", 68, "newer_minor")
    at = HEADER.offsets["total_size"]
    yield Case("total-size", with_header_crc(poked(raw, at, struct.pack("<Q", len(raw) + 1))), "HEADER", 0, at)
    yield header("header-checksum", "header_crc", 1, repair=False)
    changed = poked(raw, HEADER.offsets["compat"], b"\1")
    yield Case("header-checksum", changed, "HEADER", 0, HEADER.offsets["header_crc"])
    yield Case("body-checksum", poked(raw, len(raw) - 1, b"\1"), "HEADER", 0, HEADER.offsets["body_crc"])
    for bit in (0, 2, 3, 63):
        yield header("incompatible-feature", "incompat", 1 << bit)
    yield header("header-flags", "flags", 8)
    yield header("header-reserved", "reserved", 1)
    yield dataclasses.replace(header("limit-sections", "section_count", 7), limits=Limits(sections=6))
    yield header("section-table", "section_count", 31, "empty")
    yield entry("section-order", K.SLOTS, "kind", 2)
    yield entry("section-order", K.STRINGS, "kind", 0)
    yield entry("section-reserved", K.DEBUG, "kind", 0xFFFF)
    yield entry("section-unknown", K.COMMANDS, "kind", 5000, "empty")
    yield entry("section-flags", K.COMMANDS, "flags", 1)
    yield entry("section-flags", K.DEBUG, "flags", 0)
    yield entry("section-flags", K.DEBUG, "flags", 3)
    yield entry("section-offset", K.REFS, "offset", 8)
    yield entry("section-offset", K.REFS, "offset", 2**64 - 8)
    yield entry("section-empty", K.REFS, "size", 0)
    yield entry("section-size", K.REFS, "size", 2**40)
    yield entry("section-size", K.REFS, "size", 2**64 - 1)
    strings = section_table(raw)[K.STRINGS]
    yield Case("section-padding", repaired(poked(raw, sum(strings[1:]), b"\1")), "SECTIONS", 0, sum(strings[1:]))
    yield entry("section-stride", K.COMMANDS, "stride", 40)
    yield entry("section-stride", K.COMMANDS, "stride", 31)
    yield entry("section-stride", K.COMMANDS, "stride", 264, "newer_minor")
    yield entry("section-stride", K.DATA, "stride", 16, "newer_minor")
    yield entry("section-records", K.REFS, "size", 71)
    yield Case("trailing-bytes", repaired(raw + bytes(8)), "SECTIONS", 0, len(raw))


def kernel_cases() -> Iterator[Case]:
    raw, many = encoded("add"), encoded("strided")
    start = section_start(raw, K.KERNELS)
    yield limited(Case("limit-kernels", raw, "KERNELS", 0, start), kernels=0)
    yield limited(record("limit-name", K.KERNELS, 0, "name_length", 22, raw), name=21)
    yield record("name-cursor", K.KERNELS, 0, "name_offset", 1, raw)
    yield record("name-cursor", K.KERNELS, 3, "name_offset", 0, many)
    yield elsewhere(record("name-cursor", K.KERNELS, 0, "name_length", 0, raw), K.KERNELS, 0, "name_offset")
    yield elsewhere(record("name-cursor", K.KERNELS, 0, "name_length", 200, raw), K.KERNELS, 0, "name_offset")
    yield record("kernel-reserved", K.KERNELS, 0, "reserved", 1, raw)
    yield elsewhere(record("kernel-unknown", K.KERNELS, 0, "abi", 7777, raw), K.KERNELS, 0, "name_offset")
    name = section_start(raw, K.STRINGS)
    yield elsewhere(Case("kernel-unknown", repaired(poked(raw, name, b"\xff")), "", 0, 0), K.KERNELS, 0, "name_offset")
    yield record("kernel-digest", K.KERNELS, 0, "digest", 1, raw)
    for types in (0, 200, 9, 1 | 1 << 8, 1 | 1 << 56):
        yield record("kernel-types", K.KERNELS, 0, "types", types, raw)
    yield record("kernel-bindings", K.KERNELS, 0, "binding_count", 2, raw)
    yield limited(record("limit-refs", K.KERNELS, 0, "binding_count", 3, raw), refs=2)
    yield limited(record("limit-parameters", K.KERNELS, 0, "parameter_size", 64, raw), parameters=56)
    size = section_table(raw)[K.STRINGS][2]
    case = entry("strings-rest", K.STRINGS, "size", size + 1)
    yield dataclasses.replace(case, section="STRINGS", index=0, offset=section_start(raw, K.STRINGS) + size)
    unused = two()
    unused.kernels.append(BY_NAME["elementwise_mul_kernel"].record([F32], (1,)))
    yield of("kernel-unused", unused, K.KERNELS, 1)
    double = two(lambda d: d._replace(kernel=1))
    double.kernels *= 2
    yield of("kernel-duplicate", double, K.KERNELS, 1)
    yield data("kernel-sizes", raw, LAUNCH.size, struct.pack("<I", 3), 0)
    yield elsewhere(data("kernel-parameters", raw, LAUNCH.size, b"\4", 0), K.KERNELS, 0, "parameter_size")
    tiny = two()
    tiny.commands = [c._replace(parameters=b"") for c in tiny.commands if isinstance(c, Dispatch)]
    yield record("kernel-parameters", K.KERNELS, 0, "parameter_size", 0, encode(tiny))


def slot_cases() -> Iterator[Case]:
    raw = encoded("every_slot")

    def slot(rule: str, index: int, field: str, value: int) -> Case:
        return record(rule, K.SLOTS, index, field, value, raw)

    yield limited(Case("limit-slots", raw, "SLOTS", 0, section_start(raw, K.SLOTS)), slots=8)
    yield elsewhere(header("slot-count", "slot_count", 4), K.SLOTS, 0)
    yield slot("slot-kind", 8, "kind", 4)
    yield slot("slot-order", 4, "kind", 0)
    yield slot("slot-arena", 4, "kind", 1)
    yield slot("slot-access", 0, "access", 4)
    yield slot("slot-access", 4, "access", 3)
    for alignment in (0, 3, 8192, 2**31):
        yield slot("slot-alignment", 0, "alignment", alignment)
    yield slot("slot-alias", 3, "alias_group", 1)
    yield slot("slot-alias", 5, "alias_group", 1)
    yield slot("slot-size", 3, "length", 2**62)
    yield slot("slot-size", 0, "min_size", 2**62)
    yield slot("slot-size", 0, "min_size", 2**64 - 1)
    yield slot("slot-size", 3, "min_size", 1025)
    yield slot("slot-size", 4, "min_size", 5)
    for index, field in ((0, "value"), (0, "length"), (3, "value"), (7, "length")):
        yield slot("slot-value", index, field, 1)
    yield slot("slot-handle", 7, "value", 0)
    yield slot("slot-handle", 8, "value", 5 | 2 << 32)
    yield slot("slot-min-size", 0, "min_size", 16)
    yield slot("slot-min-size", 1, "min_size", 1)
    yield slot("constant-cursor", 4, "value", 8)
    yield slot("constant-cursor", 5, "value", 0)
    yield elsewhere(slot("constant-cursor", 6, "length", 2**40), K.SLOTS, 6, "value")
    yield data("data-padding", raw, 4, b"\1", 4)


def ref_cases() -> Iterator[Case]:
    raw = encoded("add")
    refs = raw[section_start(raw, K.REFS) :][: 3 * REF.size]
    yield record("ref-slot", K.REFS, 1, "slot", 3, raw)
    yield record("ref-access", K.REFS, 0, "access", 2, raw)
    yield record("ref-access", K.REFS, 0, "access", 0, raw)
    yield record("ref-access", K.REFS, 0, "access", 5, raw)
    both = two(replaced_ref(2, access=READ | WRITE))
    yield of("ref-access", both, K.REFS, 5, "access")
    swapped = one(Copy(Ref(0, READ, 0, 8), Ref(0, WRITE, 8, 8)))
    yield of("ref-access", swapped, K.REFS, 0, "access")
    for offset in (1, 2**62, 2**64 - 8):
        yield record("ref-range", K.REFS, 2, "offset", offset, raw)
    for length in (1201, 2**64 - 1):
        yield elsewhere(record("ref-range", K.REFS, 2, "length", length, raw), K.REFS, 2, "offset")
    yield elsewhere(record("ref-alignment", K.SLOTS, 1, "alignment", 2, raw), K.REFS, 1, "offset")
    yield of("ref-alignment", two(replaced_ref(1, offset=2)), K.REFS, 4, "offset")
    yield of("ref-alignment", one(Fill(Ref(0, WRITE, 4, 8), b"8 bytes.")), K.REFS, 0, "offset")
    yield elsewhere(
        Case("refs-rest", rebuilt(raw, {K.REFS: refs + REF.struct.pack(0, READ, 0, 8)}), "", 0, 0), K.REFS, 3
    )


def command_cases() -> Iterator[Case]:
    raw, slots = encoded("every_command"), encoded("every_slot")
    count = len(decode(raw).commands) + 1

    def command(rule: str, index: int, field: str, value: int, of: bytes = raw) -> Case:
        return record(rule, K.COMMANDS, index, field, value, of)

    start = section_start(raw, K.COMMANDS)
    yield limited(Case("limit-commands", raw, "COMMANDS", 0, start), commands=count - 1)
    yield elsewhere(header("command-count", "command_count", 5), K.COMMANDS, 0)
    yield command("ref-cursor", 2, "first_ref", 0)
    yield command("ref-cursor", 0, "first_ref", 1)
    yield command("dep-cursor", count - 1, "first_dep", 0)
    yield command("data-cursor", 3, "data_offset", 0)
    yield command("data-cursor", count - 1, "data_offset", 2**32 - 1)
    for field in ("flags", "reserved", "arg1"):
        yield command("command-reserved", 7, field, 1)
    for index in (5, 6, 8, 10):
        yield command("command-reserved", index, "arg0", 1)
    yield command("command-reserved", count - 1, "queue", 1)
    for op in (0x80, 0xEF):
        yield command("opcode-vendor", 6, "op", op)
    for op in (0xF0, 0xFE):
        yield command("opcode-experimental", 6, "op", op)
    for op in (6, 7, 9, 0x7E, 0xFF):
        yield command("opcode-unknown", 6, "op", op)
    yield command("command-end", count - 1, "op", 0)
    yield command("command-end", 11, "op", 0x7F)
    yield command("kernel-index", 7, "arg0", 1)
    yield command("kernel-order", 0, "arg0", 1, slots)
    yield command("ref-count", 10, "ref_count", 1)
    yield command("ref-count", 11, "ref_count", 1)
    yield command("data-length", 7, "data_length", 88)
    yield command("data-length", 7, "data_length", 95)  # which moves no cursor
    yield command("data-length", 1, "data_length", 7)
    yield elsewhere(limited(Case("limit-deps", raw, "", 0, 0), deps=3), K.COMMANDS, 8, "dep_count")
    yield elsewhere(limited(Case("limit-update", raw, "", 0, 0), update=12), K.COMMANDS, 5, "data_length")
    yield limited(of("limit-name", one(Mark(0, "six by")), K.COMMANDS, 0, "data_length"), name=5)
    yield of("copy-length", one(Copy(Ref(0, WRITE, 0, 8), Ref(0, READ, 8, 16))), K.COMMANDS, 0)
    yield of("copy-overlap", one(Copy(Ref(0, WRITE, 0, 9), Ref(0, READ, 8, 9))), K.COMMANDS, 0, "first_ref")
    build = Build()
    a, b = build.slot(group=4), build.slot(group=4)
    build.add(Copy(Ref(a, WRITE, 0, 8), Ref(b, READ, 0, 8)))
    yield of("copy-overlap", build.done(), K.COMMANDS, 0, "first_ref")
    for pattern, length in ((b"abc", 9), (b"ab", 9), (b"", 0)):
        yield of("fill-size", one(Fill(Ref(0, WRITE, 0, length), pattern)), K.COMMANDS, 0, "arg0")
    yield of("update-length", one(Update(Ref(0, WRITE, 0, 5), b"four")), K.COMMANDS, 0, "data_length")
    mark = encode(one(Mark(0, "abcde")))
    yield data("text-encoding", mark, 2, b"\xff", 0)
    yield data("data-padding", mark, 5, b"\1", 0)
    yield data("data-padding", encode(one(Fill(Ref(0, WRITE, 0, 4), b"ab"))), 7, b"\1", 0, 2)
    yield data("data-padding", encode(one(Update(Ref(0, WRITE, 0, 4), b"four"))), 4, b"\1", 0)
    for deps, wrong in (((0,), 0), ((1,), 0), ((2**32 - 1,), 0)):
        yield of("dep-order", CommandBuffer(commands=[Nop(deps)]), K.DEPS, wrong, "command")
    yield of("dep-order", CommandBuffer(commands=[Nop(), Nop(), Nop((1, 0))]), K.DEPS, 1, "command")
    yield of("dep-order", CommandBuffer(commands=[Nop(), Nop((0, 0))]), K.DEPS, 1, "command")
    chained = encode(CommandBuffer(commands=[Nop(), Nop((0,))]))
    yield elsewhere(Case("deps-rest", rebuilt(chained, {K.DEPS: bytes(8)}), "", 0, 0), K.DEPS, 1)
    at = section_start(chained, K.COMMANDS) + COMMAND.size + COMMAND.offsets["dep_count"]
    more = repaired(poked(chained, at, b"\3"))
    yield elsewhere(Case("dep-cursor", more, "", 0, 0), K.COMMANDS, 1, "first_dep")
    contents = raw[section_start(raw, K.DATA) :][: section_table(raw)[K.DATA][2]]
    rest = rebuilt(raw, {K.DATA: contents + bytes(8)})
    yield Case("data-rest", rest, "DATA", count, section_start(rest, K.DATA) + len(contents))
    less = rebuilt(raw, {K.DATA: contents[:-8]})
    yield elsewhere(Case("data-cursor", less, "", 0, 0), K.COMMANDS, 9, "data_length")


def annex_cases() -> Iterator[Case]:
    raw, patched = encoded("events"), encoded("adamw_patched")
    yield elsewhere(header("event-count", "event_count", 2, "events"), K.EVENTS, 0)
    yield record("event-kind", K.EVENTS, 1, "kind", 2, raw)
    yield record("event-reserved", K.EVENTS, 1, "reserved", 1, raw)
    yield record("event-order", K.EVENTS, 1, "signal", 0, raw)
    for command in (2, 3, 2**32 - 1):
        yield record("event-command", K.EVENTS, 2, "command", command, raw)
    yield record("patch-kind", K.PATCHES, 0, "kind", 0, patched)
    yield record("patch-kind", K.PATCHES, 0, "kind", PatchKind.BITS32, patched)
    yield record("patch-kind", K.PATCHES, 0, "kind", PatchKind.U64, patched)
    yield record("patch-addend", K.PATCHES, 0, "addend", -1, patched)
    (first,) = struct.unpack_from("<I", patched, section_start(patched, K.PATCHES))
    yield record("patch-order", K.PATCHES, 1, "data_offset", first, patched)
    yield record("patch-order", K.PATCHES, 1, "data_offset", first + 4, patched)
    start = section_start(patched, K.PATCHES)
    only = rebuilt(patched, {K.PATCHES: patched[start : start + PATCH.size]})
    for offset in (0, 4, 40, 32 + 136 + 32, first + 1, first - 4, 2**31, 2**32 - 1):
        yield record("patch-place", K.PATCHES, 0, "data_offset", offset, only)
    build = Build()
    build.slot()
    build.constant(bytes(16))
    build.add(Fill(Ref(0, WRITE, 0, 8), b"8 bytes."))
    for place in (-8, 0):  # in a constant, and in a fill's pattern
        cb = build.done(patches=[Patch(0, place, PatchKind.BITS64, 0)])
        yield of("patch-place", cb, K.PATCHES, 0, "data_offset")
    debug = encode(CommandBuffer(commands=[Nop(), Nop()], debug=[DebugInfo("a", "b", "c"), DebugInfo("", "é", "")]))
    text = section_start(debug, K.DEBUG)
    body = debug[text:][: section_table(debug)[K.DEBUG][2]]
    yield elsewhere(Case("debug-size", rebuilt(debug, {K.DEBUG: body[:15]}), "", 0, 0), K.DEBUG, 0)
    yield elsewhere(Case("debug-size", rebuilt(debug, {K.DEBUG: body + b"x"}), "", 0, 0), K.DEBUG, 2)
    yield elsewhere(record("debug-size", K.DEBUG, 1, "source_length", 1, debug), K.DEBUG, 1)
    yield record("debug-reserved", K.DEBUG, 1, "reserved", 1, debug)
    split = record("text-encoding", K.DEBUG, 1, "node_length", 1, debug)
    at = DEBUG.size + DEBUG.offsets["source_length"]
    split = dataclasses.replace(split, raw=repaired(poked(split.raw, text + at, b"\1")))
    yield dataclasses.replace(split, offset=text + 2 * DEBUG.size + 3)


def launch_cases() -> Iterator[Case]:
    yield data("launch-reserved", encoded("add"), 28, b"\1", 0)
    yield data("parameter-padding", encoded("add"), 36, b"\1", 0)
    yield data("parameter-padding", encoded("add"), 39, b"\x80", 0, 36)
    wide = encode(two())
    yield data("parameter-sizes", wide, 96 + 32, b"\4", 1)
    for change, offset in (
        (parameters(a_offset=2**62 - 1), ADD_A_OFFSET),
        (parameters(a_offset=-(2**62)), ADD_A_OFFSET),
        (parameters(a_strides=(2**62,)), ADD_A_OFFSET),
        (parameters(a_strides=(-(2**63),)), ADD_A_OFFSET),
        (parameters(extents=(2**62,), a_strides=(0,), b_strides=(0,)), ADD_A_OFFSET),
        (parameters(extents=(2**64 - 1,), a_strides=(0,)), ADD_A_OFFSET),
        (parameters(extents=(0,), b_strides=(2**61,)), ADD_B_OFFSET),
    ):
        yield launch("parameter-range", two(change), 1, offset)
    for name in ("window_strides", "dilations"):
        yield launch("parameter-window", pooled(**{name: (2, 0)}), 0, LAUNCH.size + pool_field(name) + 8)
    for tokens, at in PROGRAMS:
        yield launch("parameter-program", chained(tokens), 0, LAUNCH.size + program_field() + 4 * at)
    yield launch("parameter-range", pooled(pads=(2**62 - 1, 0)), 0, LAUNCH.size + pool_field("window_strides"))
    yield launch("parameter-range", pooled(window_strides=(2**62, 1)), 0, LAUNCH.size + pool_field("window_strides"))
    yield launch("launch-work", two(), 0, LAUNCH.size, max_work=15)
    for change, offset in (
        (parameters(extents=(17,)), ADD_A_OFFSET),
        (parameters(a_offset=1), ADD_A_OFFSET),
        (parameters(a_offset=-1), ADD_A_OFFSET),
        (parameters(b_strides=(-1,)), ADD_B_OFFSET),
        (parameters(b_offset=14, b_strides=(-1,)), ADD_B_OFFSET),
        (parameters(b_offset=16, b_strides=(-1,)), ADD_B_OFFSET),
        (parameters(out_strides=(2,)), ADD_OUT_OFFSET),
    ):
        yield launch("touched-range", two(change), 1, offset)
    yield launch("touched-range", two(replaced_ref(0, length=60)), 1, ADD_A_OFFSET)
    yield launch("touched-range", two(replaced_ref(0, length=0)), 1, ADD_A_OFFSET)
    yield launch("launch-injective", two(parameters(out_strides=(0,))), 1, ADD_OUT_STRIDE)
    for at in range(7):
        yield launch("launch-geometry", two(wrong_launch(at)), 1, 4 * at)
    yield launch("launch-alias", two(replaced_ref(2, slot=0, offset=4)), 1, ADD_OUT_OFFSET)
    yield launch("launch-alias", shifted_alias(), 0, ADD_OUT_OFFSET)
    backwards = two(lambda d: replaced_ref(2, slot=0)(parameters(a_offset=15, a_strides=(-1,))(d)))
    yield launch("launch-alias", backwards, 1, ADD_OUT_OFFSET)
    yield launch("launch-alias", reduction_in_place(), 0, 32 + field_at("reduce_sum_kernel", (1, 1), "out_offset"))
    yield launch("launch-alias", update_by_itself(), 0, 32 + field_at("sgd_kernel", (1,), "g_offset"))


POOL = BY_NAME["max_pool_kernel"].record([F32], (2,))


def pooled(**changed: Any) -> CommandBuffer:
    build = Build()
    x, y = build.slot(), build.slot()
    shape = {"batch": 1, "output": (2, 2), "input": (4, 4), "kernel": (2, 2), "x_strides": (0, 4, 1)}
    windows = {"y_strides": (0, 2, 1), "window_strides": (2, 2), "dilations": (1, 1), "pads": (0, 0)}
    build.dispatch("max_pool_kernel", [F32], [2], shape | windows | changed, {"x": (x, 0), "y": (y, 0)})
    return build.done()


def program_field() -> int:
    record = chain.ROW.record([F32], [1])
    fields = record.columns.fields
    assert fields is not None
    return int(fields[f"c{record.index_of['program'][0]}"][1])


def pool_field(name: str) -> int:
    fields = POOL.columns.fields
    assert fields is not None
    return int(fields[f"c{POOL.index_of[name][0]}"][1])


def shifted_alias() -> CommandBuffer:
    """a and out are one buffer by their alias group; out is read two elements later."""
    build = Build()
    a, b, out = build.slot(alignment=4, group=5), build.slot(alignment=4), build.slot(alignment=4, group=5)
    build.binary("add", 16, (a, 0), (b, 0), (out, 8))
    return build.done()


def reduction_in_place() -> CommandBuffer:
    """A reduction in place, which its kernel does not allow."""
    build = Build()
    x = build.slot()
    shape = {"outer": (4,), "inner": (1,), "x_strides": (1, 1), "out_strides": (1,)}
    build.dispatch("reduce_sum_kernel", [F32], [1, 1], shape, {"x": (x, 0), "out": (x, 0)})
    return build.done()


def update_by_itself() -> CommandBuffer:
    """p and g are the same elements, but the kernel does not say that they may be."""
    build = Build()
    p, lr = build.slot(), build.slot()
    shape = {"extents": (4,), "p_strides": (1,), "g_strides": (1,)}
    build.dispatch("sgd_kernel", [F32], [1], shape, {"p": (p, 0), "g": (p, 0), "lr": (lr, 0)})
    return build.done()


def field_at(kernel: str, sizes: tuple[int, ...], name: str) -> int:
    rec = BY_NAME[kernel].record([F32], sizes)
    fields = rec.columns.fields
    assert fields is not None
    return int(fields[f"c{rec.index_of[name][0]}"][1])


def original_cases() -> Iterator[Case]:
    raw = encode_original("elementwise_add_kernel", 1000)
    end = 10 + 22

    def case(rule: str, changed: bytes, offset: int) -> Case:
        return Case(rule, changed, "ORIGINAL", 0, offset)

    yield case("original-magic", b"x" + raw[1:], 0)
    yield case("original-magic", poked(raw, 6, bytes(4)), 6)
    yield case("original-magic", poked(raw, 6, struct.pack("<I", 256)), 6)
    yield case("original-magic", poked(raw, 6, struct.pack("<I", 2**32 - 1)), 6)
    yield case("original-size", raw[:9], 9)
    yield case("original-size", raw[:-1], end)
    yield case("original-size", raw + b"\0", end)
    yield case("original-size", raw + bytes(300), len(raw) + 300)
    yield case("original-size", poked(raw, 6, struct.pack("<I", 23)), 33)
    yield case("original-name", poked(raw, 12, b"\xff"), 12)
    yield case("original-geometry", poked(raw, end, struct.pack("<Q", 2**62)), end)
    yield case("original-geometry", poked(raw, end, struct.pack("<Q", 1025)), end + 8)
    yield case("original-geometry", poked(raw, end + 8, struct.pack("<Q", 5)), end + 8)
    yield case("original-geometry", poked(raw, end + 16, struct.pack("<Q", 128)), end + 8)


CASES = [
    *frame_cases(), *kernel_cases(), *slot_cases(), *ref_cases(), *command_cases(), *annex_cases(), *launch_cases(),
    *original_cases(),
]  # fmt: skip
ELSEWHERE = {"host-order", "kernel-deterministic"}
"""Rules with a test of their own below."""


def refusal(case: Case) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        _ = decode_original(case.raw) if case.section == "ORIGINAL" else decode(case.raw, case.limits, case.max_work)
    return caught.value


@pytest.fixture(autouse=True, scope="module")
def every_launch_in_bulk() -> Iterator[None]:
    """Lets `bulk_launches` check even a single launch, which it would leave to `launches`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_launches, "FEWEST_LAUNCHES", 1)
        yield


def test_every_rule_has_a_negative_case() -> None:
    assert {case.rule for case in CASES} | ELSEWHERE == set(RULES)


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.rule}" for i, case in enumerate(CASES)])
def test_the_error_names_the_rule_and_the_place(case: Case) -> None:
    error = refusal(case)
    assert (error.rule, error.section, error.index, error.offset) == (
        case.rule, case.section, case.index, case.offset,
    ), str(error)  # fmt: skip
    assert error.status == Status.BAD_BYTES
    assert RULES[error.rule]
    assert str(error).startswith(f"rule {case.rule}: ")


V1_CASES = [case for case in CASES if case.section != "ORIGINAL"]


@pytest.mark.parametrize("case", V1_CASES, ids=[f"{i}-{case.rule}" for i, case in enumerate(V1_CASES)])
def test_validate_and_the_bulk_path_agree(case: Case) -> None:
    with pytest.raises(DecodeError) as validated:
        validate(case.raw, case.limits, case.max_work)
    assert (validated.value.rule, validated.value.offset) == (case.rule, case.offset)
    if case.section in ("EVENTS", "PATCHES", "DEBUG"):
        return  # these are read after the commands, one by one in any case
    with pytest.raises(DecodeError) as in_bulk:
        check_bulk(check_tables(case.raw, case.limits), case.max_work)
    assert (in_bulk.value.rule, in_bulk.value.offset) == (case.rule, case.offset)


def test_the_unbroken_buffers_are_accepted() -> None:
    for cb in (two(), one(Nop()), two(parameters(b_offset=15, b_strides=(-1,)))):
        assert encode(decode(encode(cb))) == encode(cb)


def test_big_endian_hosts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "BYTE_ORDER", "big")
    with pytest.raises(DecodeError) as caught:
        decode(encoded("add"))
    assert caught.value.rule == "host-order"


def test_a_deterministic_buffer_refuses_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(BY_NAME["elementwise_neg_kernel"], name="test_random_order_kernel", deterministic=False)
    monkeypatch.setitem(KERNELS, (row.name, row.abi), row)
    build = Build()
    x, y = build.slot(), build.slot()
    rec = row.record([F32], (1,))
    build.kernels[rec] = 0
    values = {"extents": (4,), "x_offset": 0, "x_strides": (1,), "out_offset": 0, "out_strides": (1,)}
    refs = (Ref(x, READ, 0, 16), Ref(y, WRITE, 0, 16))
    build.add(Dispatch(0, (1, 1, 1, 256, 1, 1, 0), rec.pack(**values), refs))
    assert decode(encode(build.done())).kernels == [rec]
    raw = encode(build.done(flags=int(Flag.DETERMINISTIC)))
    with pytest.raises(DecodeError) as caught:
        decode(raw)
    error = caught.value
    assert (error.rule, error.section, error.index) == ("kernel-deterministic", "KERNELS", 0)
    assert error.offset == section_start(raw, K.KERNELS)


def test_version_errors_name_both_versions() -> None:
    raw = header("version", "version", 0x0203).raw
    with pytest.raises(DecodeError) as caught:
        decode(raw)
    assert caught.value.facts()["writer"] == "2.3"
    assert caught.value.facts()["reader"] == "1.0"


def test_an_unknown_feature_is_named() -> None:
    with pytest.raises(DecodeError, match="in-buffer wait, bit 40") as caught:
        decode(header("incompatible-feature", "incompat", 1 << 40 | 4).raw)
    assert caught.value.facts()["features"] == ["in-buffer wait", "bit 40"]


def test_a_well_formed_program_is_accepted() -> None:
    assert decode(encode(chained(WELL_FORMED))).commands == chained(WELL_FORMED).commands
