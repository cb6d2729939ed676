"""The outermost layer, both directions: header, checksums, section table."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core.commands import Newer
from umd_core.encoding.layout import (
    HEADER,
    HEADER_FLAGS,
    HEADER_SIZE_LIMIT,
    INCOMPAT_FEATURES,
    MAGIC,
    OPTIONAL,
    SECTION,
    SECTIONS,
    STRIDE_LIMIT,
    VERSION,
    Limits,
    SectionKind,
    padded,
)
from umd_core.encoding.original import is_original
from umd_core.errors import DecodeError

BYTE_ORDER = sys.byteorder
_MAJOR = VERSION[0]
_READER = f"{VERSION[0]}.{VERSION[1]}"
_U32 = struct.Struct("<I")
_NOTHING = memoryview(b"")
_DEBUG = int(SectionKind.DEBUG)
_CRC_AT = HEADER.offsets["header_crc"]


class Section(NamedTuple):
    """A section of a buffer. `data` holds its records cut to the size that this library knows."""

    kind: int
    flags: int
    stride: int
    offset: int
    size: int
    data: memoryview


class Frame(NamedTuple):
    """A buffer whose header and section table keep the rules.

    Attributes:
        data: the private copy of the bytes.
        flags, compat, command_count, slot_count, event_count: as in the header.
        sections: the known ones by kind.
        extra: the unknown ones: (kind, flags, stride, bytes).
        newer: what a later minor version added.
    """

    data: bytes
    flags: int
    compat: int
    command_count: int
    slot_count: int
    event_count: int
    sections: dict[int, Section]
    extra: list[tuple[int, int, int, bytes]]
    newer: Newer | None

    def section(self, kind: SectionKind) -> Section:
        """Returns a known section; an absent one is empty, at the end of the buffer."""
        found = self.sections.get(kind)
        return found if found is not None else Section(kind, 0, SECTIONS[kind].stride, len(self.data), 0, _NOTHING)

    def broken(
        self, rule: str, kind: SectionKind, detail: str, index: int = 0, field: str = "", **facts: Any
    ) -> DecodeError:
        """Returns the error that record `index` of a section breaks a rule in `field`."""
        section = self.section(kind)
        record = SECTIONS[kind].record
        within = record.offsets[field] if record and field else 0
        offset = section.offset + index * section.stride + within
        return DecodeError(rule, detail, offset=offset, section=kind.name, index=index, **facts)


class _Header(NamedTuple):
    magic: bytes
    version: int
    header_size: int
    section_count: int
    flags: int
    total_size: int
    incompat: int
    compat: int
    command_count: int
    slot_count: int
    event_count: int
    reserved: int
    body_crc: int
    header_crc: int


def open_frame(source: bytes | bytearray | memoryview, limits: Limits) -> Frame:
    """Returns the frame of a buffer, on a private copy of its bytes.

    Raises:
        DecodeError: header or section table break a rule.
    """
    if BYTE_ORDER != "little":
        raise DecodeError("host-order", f"this host is {BYTE_ORDER}-endian, the format is little-endian")
    size = memoryview(source).nbytes
    if size > limits.total_size:
        raise DecodeError("limit-total-size", f"{size} bytes, the limit is {limits.total_size}")
    data = bytes(source)
    header = _read_header(data)
    newer_header = data[HEADER.size : header.header_size]
    if header.section_count > limits.sections:
        detail = f"{header.section_count} sections, the limit is {limits.sections}"
        raise _header_error("limit-sections", "section_count", detail)
    sections, extra, tails = _read_sections(data, header)
    minor = header.version & 0xFF
    newer = Newer(minor, newer_header, tuple(tails)) if minor else None
    return Frame(
        data, header.flags, header.compat, header.command_count, header.slot_count, header.event_count,
        sections, extra, newer,
    )  # fmt: skip


def _header_error(rule: str, field: str, detail: str, **facts: Any) -> DecodeError:
    return DecodeError(rule, detail, offset=HEADER.offsets[field], section="HEADER", **facts)


def _read_header(data: bytes) -> _Header:
    if is_original(data):
        raise _header_error("original-format", "version", "these bytes are of the original format: use decode_original")
    if len(data) < HEADER.size:
        raise DecodeError("header-short", f"{len(data)} bytes, a header has {HEADER.size}", offset=len(data))
    header = _Header(*HEADER.struct.unpack_from(data))
    major, minor = divmod(header.version, 256)
    if header.magic != MAGIC:
        raise _header_error("magic", "magic", f"begins with {header.magic!r}, not {MAGIC!r}")
    if major != _MAJOR:
        detail = f"written as {major}.{minor}, this reader knows {_READER}"
        raise _header_error("version", "version", detail, writer=f"{major}.{minor}", reader=_READER)
    most = HEADER_SIZE_LIMIT if minor else HEADER.size
    if not HEADER.size <= header.header_size <= min(most, len(data)) or header.header_size % 8:
        raise _header_error("header-size", "header_size", f"{header.header_size} in version {major}.{minor}")
    if header.total_size != len(data):
        raise _header_error("total-size", "total_size", f"says {header.total_size}, there are {len(data)} bytes")
    if header.header_crc != zlib.crc32(data[:_CRC_AT]):
        raise _header_error("header-checksum", "header_crc", "the header was changed or damaged")
    if header.body_crc != zlib.crc32(memoryview(data)[HEADER.size :]):
        raise _header_error("body-checksum", "body_crc", "the bytes after the header were changed or damaged")
    if header.incompat:
        names = [INCOMPAT_FEATURES.get(bit, f"bit {bit}") for bit in range(64) if header.incompat >> bit & 1]
        detail = f"needs {', '.join(names)}, which reader {_READER} lacks"
        versions = {"writer": f"{major}.{minor}", "reader": _READER}
        raise _header_error("incompatible-feature", "incompat", detail, features=names, **versions)
    if header.flags & ~HEADER_FLAGS:
        raise _header_error("header-flags", "flags", f"unknown bits {header.flags & ~HEADER_FLAGS:#x}")
    if header.reserved:
        raise _header_error("header-reserved", "reserved", f"{header.reserved:#x} where 0 belongs")
    return header


def _table_error(rule: str, header: _Header, index: int, field: str, detail: str) -> DecodeError:
    offset = header.header_size + index * SECTION.size + SECTION.offsets[field]
    return DecodeError(rule, detail, offset=offset, section="SECTIONS", index=index)


def _read_sections(
    data: bytes, header: _Header
) -> tuple[dict[int, Section], list[tuple[int, int, int, bytes]], list[tuple[int, int, bytes]]]:
    """Returns the known sections, the unknown ones, and the tails of longer records."""
    known: dict[int, Section] = {}
    extra: list[tuple[int, int, int, bytes]] = []
    tails: list[tuple[int, int, bytes]] = []
    size = len(data)
    if header.section_count * SECTION.size > size - header.header_size:
        raise _header_error("section-table", "section_count", f"{header.section_count} entries do not fit")
    view = memoryview(data)
    cursor = header.header_size + header.section_count * SECTION.size
    last = 0
    for index, entry in enumerate(SECTION.struct.iter_unpack(view[header.header_size : cursor])):
        kind, flags, stride, start, length = entry
        layout = SECTIONS.get(kind)
        end = start + length
        if (
            layout is None
            or kind <= last
            or flags != layout.flags
            or start != cursor
            or not 0 < length <= size - start
            or stride != layout.stride
            or (length % stride and kind != _DEBUG)
            or -end & 7
        ):  # not plain: broken, unknown, lengthened or padded
            _check_section(entry, last, cursor, size, header, index)
            _check_padding(data, end, index)
        last, cursor = kind, padded(end)
        records = view[start:end]
        if layout is None:
            extra.append((kind, flags, stride, bytes(records)))
            continue
        if stride != layout.stride:
            records, tail = _cut(records, stride, layout.stride)
            tails.append((kind, stride, tail))
        known[kind] = Section(kind, flags, stride, start, length, records)
    if cursor != size:
        raise DecodeError("trailing-bytes", f"{size - cursor} bytes follow", offset=cursor, section="SECTIONS")
    return known, extra, tails


def _check_padding(data: bytes, end: int, index: int) -> None:
    if any(data[end : padded(end)]):
        raise DecodeError("section-padding", "not zero", offset=end, section="SECTIONS", index=index)


def _check_section(entry: tuple[int, ...], last: int, cursor: int, size: int, header: _Header, index: int) -> None:
    kind, flags, stride, offset, length = entry

    def fail(rule: str, field: str, detail: str) -> DecodeError:
        return _table_error(rule, header, index, field, detail)

    if kind <= last:
        raise fail("section-order", "kind", f"kind {kind} after {last}")
    if kind == SectionKind.SIGNATURE:
        raise fail("section-reserved", "kind", "signatures are reserved for a later version")
    layout = SECTIONS.get(kind)
    if layout is None and not flags & OPTIONAL:
        raise fail("section-unknown", "kind", f"kind {kind} is unknown and not OPTIONAL")
    if flags != (OPTIONAL if layout is None else layout.flags):
        raise fail("section-flags", "flags", f"flags {flags:#x} of kind {kind}")
    if offset != cursor:
        raise fail("section-offset", "offset", f"begins at {offset}, the cursor is at {cursor}")
    if not length:
        raise fail("section-empty", "size", "an empty section is left out")
    if length > size - offset or padded(length) > size - offset:
        raise fail("section-size", "size", f"{length} bytes from {offset} on do not fit in {size}")
    if layout is None:
        return
    longest = STRIDE_LIMIT if layout.grows and header.version & 0xFF else layout.stride
    if not layout.stride <= stride <= longest:
        raise fail("section-stride", "stride", f"{stride}, the record has {layout.stride} bytes")
    if kind != SectionKind.DEBUG and length % stride:
        raise fail("section-records", "size", f"{length} bytes are no whole number of records of {stride}")


def _cut(records: memoryview, stride: int, known: int) -> tuple[memoryview, bytes]:
    """Returns the known part of each record, and the rests, each one after the other."""
    rows = np.frombuffer(records, np.uint8).reshape(-1, stride)
    return memoryview(rows[:, :known].tobytes()), rows[:, known:].tobytes()


def _grow(records: bytes, tail: bytes, stride: int, known: int) -> bytes:
    """Returns records with their rests: the inverse of `_cut`."""
    heads = np.frombuffer(records, np.uint8).reshape(-1, known)
    rests = np.frombuffer(tail, np.uint8).reshape(-1, stride - known)
    return np.concatenate([heads, rests], axis=1).tobytes()


def close_frame(
    header: tuple[int, int, int, int, int],
    sections: Iterable[tuple[int, bytes]],
    extra: Sequence[tuple[int, int, int, bytes]],
    newer: Newer | None,
) -> bytes:
    """Returns the whole buffer.

    Args:
        header: flags, compat, command_count, slot_count, event_count.
        sections: known sections as (kind, records); empty ones are left out.
        extra: unknown sections as (kind, flags, stride, bytes).
        newer: what a later minor version added.
    """
    flags, compat, command_count, slot_count, event_count = header
    tails = {kind: (stride, tail) for kind, stride, tail in newer.tails} if newer else {}
    entries = [*extra]
    for kind, records in sections:
        if records:
            layout = SECTIONS[kind]
            stride, tail = tails.get(kind, (layout.stride, b""))
            body = _grow(records, tail, stride, layout.stride) if tail else records
            entries.append((kind, layout.flags, stride, body))
    entries.sort(key=lambda entry: entry[0])
    header_tail = newer.header if newer else b""
    offset = HEADER.size + len(header_tail) + SECTION.size * len(entries)
    table, bodies = [header_tail], [b""]
    for kind, section_flags, stride, body in entries:
        table.append(SECTION.struct.pack(kind, section_flags, stride, offset, len(body)))
        bodies += (body, bytes(-len(body) % 8))
        offset += padded(len(body))
    rest = b"".join(table + bodies)
    version = _MAJOR << 8 | (newer.minor if newer else 0)
    start = HEADER.struct.pack(
        MAGIC, version, HEADER.size + len(header_tail), len(entries), flags, offset, 0, compat,
        command_count, slot_count, event_count, 0, zlib.crc32(rest), 0,
    )[:-4]  # fmt: skip
    return b"".join((start, _U32.pack(zlib.crc32(start)), rest))
