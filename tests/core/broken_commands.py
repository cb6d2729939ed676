"""Negative cases of the rules for commands, and for what is said about them: events, patches, debug text."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

from tests.core.broken_buffers import Case, K, data, elsewhere, header, limited, of, one, poked, record
from tests.core.buffer_builder import Build
from tests.core.encoded_bytes import rebuilt, repaired, section_start, section_table
from tests.core.encoding_samples import encoded
from umd_core.commands import (
    READ,
    WRITE,
    CommandBuffer,
    Copy,
    DebugInfo,
    Fill,
    Mark,
    Nop,
    Patch,
    PatchKind,
    Ref,
    Update,
)
from umd_core.encoding import decode, encode
from umd_core.encoding.layout import COMMAND, DEBUG, PATCH


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
