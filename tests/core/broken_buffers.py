"""Buffers that are wrong in one thing, and where a decoder's error must point."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.core.buffer_builder import Build
from tests.core.encoded_bytes import repaired, section_start, section_table
from tests.core.encoding_samples import encoded
from umd_core import dtypes
from umd_core.commands import CommandBuffer, Dispatch
from umd_core.encoding import encode
from umd_core.encoding.decode import UNLIMITED_WORK
from umd_core.encoding.layout import (
    COMMAND,
    HEADER,
    LIBRARY_LIMITS,
    SECTION,
    SECTIONS,
    Limits,
    RecordLayout,
    SectionKind,
)
from umd_core.kernels import BY_NAME

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


# command buffers that are wrong in one thing, or in none


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
