"""Encoded buffers taken apart and put together again, with lengths and checksums made right."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

from umd_core.encoding.layout import HEADER, SECTION, SectionKind


def repaired(raw: bytes | bytearray) -> bytes:
    """Returns the bytes with the length and both checksums made right."""
    data = bytearray(raw)
    if len(data) >= HEADER.size:
        struct.pack_into("<Q", data, HEADER.offsets["total_size"], len(data))
        struct.pack_into("<I", data, HEADER.offsets["body_crc"], zlib.crc32(data[HEADER.size :]))
        struct.pack_into("<I", data, HEADER.offsets["header_crc"], zlib.crc32(data[: HEADER.offsets["header_crc"]]))
    return bytes(data)


def section_table(raw: bytes) -> dict[int, tuple[int, int, int]]:
    """Returns (entry offset, data offset, size) of each section, by kind."""
    (header_size,) = struct.unpack_from("<H", raw, HEADER.offsets["header_size"])
    (count,) = struct.unpack_from("<H", raw, HEADER.offsets["section_count"])
    table = {}
    for index in range(count):
        at = header_size + index * SECTION.size
        kind, _, _, offset, size = SECTION.struct.unpack_from(raw, at)
        table[kind] = (at, offset, size)
    return table


def section_start(raw: bytes, kind: SectionKind) -> int:
    """Returns the first byte of a section."""
    return section_table(raw)[kind][1]


def rebuilt(raw: bytes, replace: Mapping[int, bytes], counts: Mapping[str, int] | None = None) -> bytes:
    """Returns the buffer with the contents of some sections replaced and header fields set; sections laid out anew."""
    header = dict(zip([f.name for f in HEADER.fields], HEADER.struct.unpack_from(raw), strict=True))
    entries = []
    for index in range(header["section_count"]):
        at = header["header_size"] + index * SECTION.size
        kind, flags, stride, offset, size = SECTION.struct.unpack_from(raw, at)
        entries.append((kind, flags, stride, replace.get(kind, raw[offset : offset + size])))
    header |= dict(counts or {})
    cursor = header["header_size"] + SECTION.size * len(entries)
    table, bodies = b"", b""
    for kind, flags, stride, body in entries:
        table += SECTION.struct.pack(kind, flags, stride, cursor + len(bodies), len(body))
        bodies += body + bytes(-len(body) % 8)
    head = HEADER.struct.pack(*header.values()) + raw[HEADER.size : header["header_size"]]
    return repaired(head + table + bodies)
