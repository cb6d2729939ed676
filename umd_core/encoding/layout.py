"""The one layout table of format v1: records, sections, opcodes, limits.

The encoder, the decoder, the disassembler, the tables of docs/command-buffer.md and the tests all read it. Everything
is little-endian; nothing here is padded by the compiler.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from umd_core.commands import READ, WRITE, Opcode, PatchKind

MAGIC = b"UMDCMD"
VERSION = (1, 0)
"""Newest version that this library writes and knows wholly."""
ALIGNMENT = 8
NUMBER_LIMIT = 2**62
"""Sizes and offsets stay below this, so that sums of two of them fit in a signed 64-bit number."""
HEADER_SIZE_LIMIT = 256
STRIDE_LIMIT = 256
SLOT_ALIGNMENT_LIMIT = 4096

_CODES = {"u8": ("B", "u1"), "u16": ("H", "<u2"), "u32": ("I", "<u4"), "u64": ("Q", "<u8"), "i64": ("q", "<i8")}


class Column(NamedTuple):
    """Where a number of a record lies: offset and size in bytes, kind as NumPy's ("u", "i", "f")."""

    offset: int
    size: int
    kind: str


def columns_of(dtype: np.dtype[Any]) -> list[Column]:
    """Returns the columns of a structured type, in its order."""
    fields: Any = dtype.fields
    found = [fields[name][:2] for name in dtype.names or ()]
    return [Column(int(offset), own.itemsize, own.kind) for own, offset in found]


class FieldLayout(NamedTuple):
    """A field of a record: name, type ("u32", or bytes like "6s"), meaning (a sentence for the specification)."""

    name: str
    type: str
    meaning: str


class RecordLayout:
    """A fixed record of bytes.

    Attributes:
        struct: packs and unpacks it in field order.
        dtype: the same as a NumPy structured type.
        offsets: byte offset of each field.
    """

    __slots__ = ("dtype", "fields", "name", "offsets", "size", "struct")

    def __init__(self, name: str, *fields: tuple[str, str, str]) -> None:
        self.name: str = name
        self.fields: tuple[FieldLayout, ...] = tuple(FieldLayout(*field) for field in fields)
        codes, formats = [], []
        for field in self.fields:
            code, numpy_format = _CODES.get(field.type, (field.type, f"({field.type[:-1]},)u1"))
            codes.append(code)
            formats.append(numpy_format)
        self.struct: struct.Struct = struct.Struct("<" + "".join(codes))
        self.size: int = self.struct.size
        names = [field.name for field in self.fields]
        self.dtype: np.dtype[Any] = np.dtype({"names": names, "formats": formats})
        self.offsets: dict[str, int] = {
            name: column.offset for name, column in zip(names, columns_of(self.dtype), strict=True)
        }

    def __repr__(self) -> str:
        return f"RecordLayout({self.name!r}, {self.size} bytes)"


HEADER = RecordLayout(
    "HEADER",
    ("magic", "6s", "`UMDCMD`"),
    ("version", "u16", "major << 8 | minor; 0x0100 is version 1.0"),
    ("header_size", "u16", "64; the section table follows at this offset"),
    ("section_count", "u16", "entries of the section table"),
    ("flags", "u32", "1 ONE_SHOT, 2 SIMULTANEOUS_OK, 4 DETERMINISTIC; the other bits are zero"),
    ("total_size", "u64", "length of the whole buffer"),
    ("incompat", "u64", "features without which the buffer must not be run; an unknown bit is refused"),
    ("compat", "u64", "features that may be ignored"),
    ("command_count", "u32", "records of COMMANDS"),
    ("slot_count", "u32", "records of SLOTS"),
    ("event_count", "u32", "records of EVENTS"),
    ("reserved", "u32", "zero"),
    ("body_crc", "u32", "CRC-32 of every byte from offset 64 on"),
    ("header_crc", "u32", "CRC-32 of bytes 0 to 59"),
)
SECTION = RecordLayout(
    "SECTION",
    ("kind", "u16", "which section"),
    ("flags", "u16", "1 OPTIONAL: a reader that does not know the kind keeps it and goes on"),
    ("stride", "u32", "size of one record"),
    ("offset", "u64", "first byte, from the start of the buffer"),
    ("size", "u64", "bytes, without the padding that follows; never 0"),
)
KERNEL = RecordLayout(
    "KERNELS",
    ("name_offset", "u32", "first byte of the name in STRINGS"),
    ("name_length", "u16", "bytes of the name"),
    ("abi", "u16", "version of the kernel row"),
    ("digest", "u64", "digest of the kernel row"),
    ("parameter_size", "u32", "bytes of the parameter block"),
    ("binding_count", "u16", "operands of the kernel"),
    ("reserved", "u16", "zero"),
    ("types", "8s", "type arguments in the row's order, as ONNX TensorProto numbers; the rest zero"),
)
SLOT = RecordLayout(
    "SLOTS",
    ("kind", "u8", "0 argument, 1 arena, 2 constant, 3 handle"),
    ("access", "u8", "1 read, 2 write, 3 both; 0 when nothing refers to it"),
    ("alias_group", "u16", "0, or a number that the slots of one buffer share"),
    ("alignment", "u32", "power of two that the bound offset is a multiple of"),
    ("min_size", "u64", "largest offset + length over the slot's refs"),
    ("value", "u64", "offset in DATA (constant), handle (handle), else 0"),
    ("length", "u64", "bytes (constant), peak bytes (arena), else 0"),
)
COMMAND = RecordLayout(
    "COMMANDS",
    ("op", "u8", "opcode"),
    ("flags", "u8", "zero"),
    ("queue", "u8", "placement hint"),
    ("dep_count", "u8", "dependencies of the command"),
    ("arg0", "u32", "see the opcode"),
    ("data_offset", "u32", "first byte in DATA, divided by 8"),
    ("data_length", "u32", "bytes in DATA, without padding"),
    ("first_ref", "u32", "index of its first ref"),
    ("ref_count", "u16", "refs of the command"),
    ("reserved", "u16", "zero"),
    ("first_dep", "u32", "index of its first dependency"),
    ("arg1", "u32", "zero"),
)
REF = RecordLayout(
    "REFS",
    ("slot", "u32", "index of the slot"),
    ("access", "u32", "1 read, 2 write, 3 both"),
    ("offset", "u64", "first byte, from the start of the binding"),
    ("length", "u64", "bytes"),
)
DEP = RecordLayout("DEPS", ("command", "u32", "index of an earlier command"))
EVENT = RecordLayout(
    "EVENTS",
    ("kind", "u32", "3 signal after a command"),
    ("signal", "u32", "position in the submission's list of signals"),
    ("command", "u32", "index of the command"),
    ("reserved", "u32", "zero"),
)
LAUNCH = RecordLayout(
    "LAUNCH",
    ("workgroup_count_x", "u32", "groups in x"),
    ("workgroup_count_y", "u32", "groups in y"),
    ("workgroup_count_z", "u32", "groups in z"),
    ("workgroup_size_x", "u32", "invocations of a group in x"),
    ("workgroup_size_y", "u32", "invocations of a group in y"),
    ("workgroup_size_z", "u32", "invocations of a group in z"),
    ("workgroup_memory", "u32", "bytes that a group shares"),
    ("reserved", "u32", "zero"),
)
PATCH = RecordLayout(
    "PATCHES",
    ("data_offset", "u32", "first byte in DATA"),
    ("kind", "u16", "1 U32, 2 U64, 3 BITS32, 4 BITS64"),
    ("symbol", "u16", "index into the submission's values"),
    ("addend", "i64", "added to the value (U32, U64); 0 (BITS32, BITS64)"),
)
DEBUG = RecordLayout(
    "DEBUG",
    ("op_length", "u16", "bytes of the op's name"),
    ("node_length", "u16", "bytes of the node's name"),
    ("source_length", "u16", "bytes of the source line"),
    ("reserved", "u16", "zero"),
)


class SectionKind(enum.IntEnum):
    """Number of each section."""

    STRINGS = 1
    KERNELS = 2
    SLOTS = 3
    COMMANDS = 4
    REFS = 5
    DEPS = 6
    EVENTS = 7
    DATA = 8
    PATCHES = 9
    DEBUG = 16
    SIGNATURE = 0xFFFF


OPTIONAL = 1


class SectionLayout(NamedTuple):
    """A section: its record (None: plain bytes), stride, flags, whether later versions may lengthen its records."""

    kind: SectionKind
    record: RecordLayout | None
    stride: int
    flags: int
    grows: bool
    meaning: str


SECTIONS: dict[int, SectionLayout] = {
    s.kind: s
    for s in (
        SectionLayout(SectionKind.STRINGS, None, 1, 0, False, "names of the kernels, UTF-8, one after the other"),
        SectionLayout(SectionKind.KERNELS, KERNEL, KERNEL.size, 0, True, "kernels in order of first use"),
        SectionLayout(SectionKind.SLOTS, SLOT, SLOT.size, 0, True, "arguments, arena, constants, handles"),
        SectionLayout(SectionKind.COMMANDS, COMMAND, COMMAND.size, 0, True, "commands in program order"),
        SectionLayout(SectionKind.REFS, REF, REF.size, 0, True, "byte ranges, in command order"),
        SectionLayout(SectionKind.DEPS, DEP, DEP.size, 0, True, "dependencies, in command order"),
        SectionLayout(SectionKind.EVENTS, EVENT, EVENT.size, 0, True, "signals inside the buffer, by signal"),
        SectionLayout(
            SectionKind.DATA, None, ALIGNMENT, 0, False, "constants in slot order, then each command's bytes"
        ),
        SectionLayout(SectionKind.PATCHES, PATCH, PATCH.size, 0, True, "places for values, by offset"),
        SectionLayout(
            SectionKind.DEBUG, DEBUG, DEBUG.size, OPTIONAL, False, "one record a command but END, then their text"
        ),
    )
}


class OpcodeLayout(NamedTuple):
    """An opcode: access of each ref (None: as the kernel's operands), least and most data bytes, meanings.

    `arg0` empty means that the field is zero.
    """

    opcode: Opcode
    refs: tuple[int, ...] | None
    arg0: str
    least: int
    most: int
    data: str
    meaning: str


_ANY = 2**32 - 1
OPCODES: dict[int, OpcodeLayout] = {
    o.opcode: o
    for o in (
        OpcodeLayout(Opcode.NOP, (), "", 0, 0, "", "nothing"),
        OpcodeLayout(
            Opcode.DISPATCH, None, "index of the kernel", 32, _ANY, "launch block, parameter block", "run a kernel"
        ),
        OpcodeLayout(Opcode.COPY, (WRITE, READ), "", 0, 0, "", "copy the second ref's bytes to the first's"),
        OpcodeLayout(
            Opcode.FILL, (WRITE,), "pattern size: 1, 2, 4, 8", 8, 8, "pattern, then zeros", "repeat the pattern"
        ),
        OpcodeLayout(Opcode.UPDATE, (WRITE,), "", 0, _ANY, "the bytes", "write the bytes"),
        OpcodeLayout(Opcode.BARRIER, (), "", 0, 0, "", "all before it happens before all after it"),
        OpcodeLayout(Opcode.MARK, (), "any number", 0, _ANY, "label, UTF-8", "a labelled place; no effect"),
        OpcodeLayout(Opcode.END, (), "", 0, 0, "", "the end; queue and dep_count are 0"),
    )
}
FILL_SIZES = (1, 2, 4, 8)
VENDOR_OPCODES = range(0x80, 0xF0)
EXPERIMENTAL_OPCODES = range(0xF0, 0xFF)

PATCH_SIZES: dict[int, int] = {PatchKind.U32: 4, PatchKind.U64: 8, PatchKind.BITS32: 4, PatchKind.BITS64: 8}
ADDING_PATCHES = (PatchKind.U32, PatchKind.U64)
SIGNAL_EVENT = 3
HEADER_FLAGS = 7

INCOMPAT_FEATURES = {0: "multi-device slots", 1: "indirect geometry", 2: "in-buffer wait", 3: "vendor opcodes"}
"""Reserved bits of `incompat`; none is defined in 1.0, so each is refused by its name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader accepts at most. Each may be lowered.

    Attributes:
        total_size: bytes of a buffer.
        sections, kernels, slots, commands: records of each.
        refs: operands of one kernel.
        deps: dependencies of one command.
        name: bytes of a kernel's name, and of a mark's label.
        update: bytes of one UPDATE.
        parameters: bytes of one parameter block.
    """

    total_size: int = 256 << 20
    sections: int = 32
    kernels: int = 65536
    slots: int = 65536
    commands: int = 1 << 20
    refs: int = 64
    deps: int = 32
    name: int = 255
    update: int = 64 << 10
    parameters: int = 4096


LIBRARY_LIMITS = Limits()
SERVICE_LIMITS = Limits(total_size=64 << 20)


def padded(size: int) -> int:
    """Returns `size` rounded up to a multiple of 8."""
    return size + (-size & (ALIGNMENT - 1))
