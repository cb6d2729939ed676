"""Negative cases of the rules for the frame, kernels, slots and refs, and for the original format."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

from tests.core.broken_buffers import (
    F32,
    Case,
    K,
    data,
    elsewhere,
    entry,
    header,
    limited,
    of,
    one,
    poked,
    record,
    replaced_ref,
    two,
    with_header_crc,
)
from tests.core.encoded_bytes import rebuilt, repaired, section_start, section_table
from tests.core.encoding_samples import encoded
from umd_core.commands import READ, WRITE, Copy, Dispatch, Fill, Ref
from umd_core.encoding import encode, encode_original
from umd_core.encoding.layout import HEADER, LAUNCH, REF, Limits
from umd_core.kernels import BY_NAME


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
