"""The encoded form by literal bytes: written out by hand from docs/command-buffer.md, not by the encoder."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import zlib

import numpy as np
import pytest

import umd_core as umd
from tests.core.buffer_builder import Build
from tests.core.encoding_samples import add, empty, encoded, every_command, newer_minor
from umd_core import dtypes
from umd_core.commands import (
    READ,
    WRITE,
    Command,
    CommandBuffer,
    DebugInfo,
    Dispatch,
    Event,
    Fill,
    Mark,
    Newer,
    Nop,
    Patch,
    Ref,
    Slot,
)
from umd_core.encoding import LIBRARY_LIMITS, SERVICE_LIMITS, Limits, decode, encode, layout
from umd_core.errors import DecodeError, LimitError, UnsupportedError
from umd_core.kernels import BY_NAME


def header(sections: int, total: int, commands: int, slots: int, events: int, body: bytes) -> bytes:
    start = b"UMDCMD" + struct.pack(
        "<HHHIQQQIIII", 0x0100, 64, sections, 0, total, 0, 0, commands, slots, events, 0
    ) + struct.pack("<I", zlib.crc32(body))  # fmt: skip
    return start + struct.pack("<I", zlib.crc32(start))


def test_the_empty_buffer_is_120_bytes() -> None:
    table = struct.pack("<HHIQQ", 4, 0, 32, 88, 32)
    end = b"\x7f" + bytes(31)
    body = table + end
    assert encode(CommandBuffer()) == header(1, 120, 1, 0, 0, body) + body


def test_one_addition_byte_by_byte() -> None:
    """elementwise_add_kernel over 300 floats, as the specification writes it."""
    name = b"elementwise_add_kernel"
    row_text = (
        b"elementwise_add_kernel 1\ntype T\nbinding a r\nbinding b r\nbinding out w\nfield rank u32\n"
        b"field extents u64[rank]\nfield a_offset i64\nfield a_strides i64[rank]\nfield b_offset i64\n"
        b"field b_strides i64[rank]\nfield out_offset i64\nfield out_strides i64[rank]\n"
    )
    digest = hashlib.sha256(row_text).digest()[:8]
    kernels = struct.pack("<IHH", 0, 22, 1) + digest + struct.pack("<IHH", 64, 3, 0) + bytes([1, 0, 0, 0, 0, 0, 0, 0])
    slots = b"".join(struct.pack("<BBHIQQQ", 0, access, 0, 4, 1200, 0, 0) for access in (1, 1, 2))
    refs = b"".join(struct.pack("<IIQQ", slot, access, 0, 1200) for slot, access in enumerate((1, 1, 2)))
    commands = struct.pack("<BBBBIIIIHHII", 1, 0, 0, 0, 0, 0, 96, 0, 3, 0, 0, 0)
    commands += struct.pack("<BBBBIIIIHHII", 0x7F, 0, 0, 0, 0, 12, 0, 3, 0, 0, 0, 0)
    data = struct.pack("<8I", 2, 1, 1, 256, 1, 1, 0, 0) + struct.pack("<IIQqqqqqq", 1, 0, 300, 0, 1, 0, 1, 0, 1)
    text = b"Addnode_7model.py:12"
    debug = struct.pack("<4H", 3, 6, 11, 0) + text
    sections = ((1, 0, 1, name), (2, 0, 32, kernels), (3, 0, 32, slots), (4, 0, 32, commands), (5, 0, 24, refs),
                (8, 0, 8, data), (16, 1, 8, debug))  # fmt: skip
    offset, table, bodies = 64 + 24 * len(sections), b"", b""
    for kind, flags, stride, content in sections:
        table += struct.pack("<HHIQQ", kind, flags, stride, offset + len(bodies), len(content))
        bodies += content + bytes(-len(content) % 8)
    body = table + bodies
    assert encode(add()) == header(7, 64 + len(body), 2, 3, 0, body) + body


@pytest.mark.parametrize(
    ("record", "size"),
    [
        (layout.HEADER, 64), (layout.SECTION, 24), (layout.KERNEL, 32), (layout.SLOT, 32), (layout.COMMAND, 32),
        (layout.REF, 24), (layout.DEP, 4), (layout.EVENT, 16), (layout.LAUNCH, 32), (layout.PATCH, 16),
        (layout.DEBUG, 8),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_records_have_the_sizes_of_the_format(record: layout.RecordLayout, size: int) -> None:
    assert record.size == record.struct.size == record.dtype.itemsize == size
    numbers = [bytes(int(f.type[:-1])) if f.type.endswith("s") else 0 for f in record.fields]
    assert len(record.struct.pack(*numbers)) == size
    for field, after in zip(record.fields, [*record.fields[1:], None], strict=True):
        end = record.offsets[after.name] if after else size
        width = int(field.type[:-1]) if field.type.endswith("s") else int(field.type[1:]) // 8
        assert record.offsets[field.name] + width == end
        assert record.offsets[field.name] % min(width, 8 if field.type != "6s" else 1) == 0


def test_limits_are_those_of_the_format() -> None:
    assert LIBRARY_LIMITS.total_size == 256 << 20
    assert SERVICE_LIMITS.total_size == 64 << 20
    assert dataclasses.replace(SERVICE_LIMITS, total_size=LIBRARY_LIMITS.total_size) == LIBRARY_LIMITS
    assert Limits(256 << 20, 32, 65536, 65536, 1 << 20, 64, 32, 255, 65536, 4096) == LIBRARY_LIMITS


def test_bytes_of_a_command_buffer_are_its_encoded_form() -> None:
    x = np.zeros((2, 3), np.float32)
    cb = umd.translate("Add", [x, x])
    raw = bytes(cb)
    assert raw == encode(cb)
    assert decode(raw).raw == raw
    assert bytes(decode(raw)) == raw


def test_decoded_records_are_those_of_the_kernel_table() -> None:
    cb = decode(encoded("add"))
    assert cb.kernels == [BY_NAME["elementwise_add_kernel"].record([dtypes.float32], (1,))]


# versions


def test_a_buffer_needs_no_more_than_it_holds() -> None:
    assert encode(every_command(), (1, 0)) == encode(every_command())
    cb = every_command()
    cb.newer = Newer(9)
    assert encode(cb)[6:8] == b"\x09\x01"
    assert encode(cb, (1, 0)) == encode(every_command())
    assert encode(cb, (1, 4))[6:8] == b"\x04\x01"


def test_an_older_target_names_what_it_lacks() -> None:
    with pytest.raises(UnsupportedError, match=r"version 1\.0 lacks a longer header, longer records of KERNELS"):
        encode(newer_minor(), (1, 0))
    assert encode(newer_minor(), (1, 3)) == encode(newer_minor())


@pytest.mark.parametrize("target", [(0, 9), (1, 1), (2, 0)])
def test_versions_that_are_not_written(target: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedError, match="is not one that this library writes"):
        encode(empty(), target)


def test_what_a_newer_version_adds_is_kept_and_read_past() -> None:
    cb = decode(encoded("newer_minor"))
    assert cb.newer == newer_minor().newer
    assert cb.extra == newer_minor().extra
    assert cb.commands == decode(encoded("every_command")).commands


def test_an_extra_section_cannot_pretend_to_be_a_known_one() -> None:
    for kind in (0, 4, 16, 0xFFFF):
        with pytest.raises(UnsupportedError, match=f"kind {kind}"):
            encode(CommandBuffer(extra=[(kind, 1, 1, b"x")]))


# numbers that do not fit


def unfit(**changes: object) -> CommandBuffer:
    build = Build()
    slot = build.slot()
    build.binary("add", 4, (slot, 0), (slot, 0), (slot, 64))
    cb = build.done()
    for name, value in changes.items():
        setattr(cb, name, value)
    return cb


def dispatch(**changes: object) -> list[Command]:
    (command,) = unfit().commands
    assert isinstance(command, Dispatch)
    return [Nop(), command._replace(**changes)]  # type: ignore[arg-type]  # fields of any command


@pytest.mark.parametrize(
    ("cb", "what", "value", "limit"),
    [
        (unfit(slots=[Slot(0, 1, 65536, 8, 0, 0, 0)]), "alias_group of slot 0", 65536, 65535),
        (unfit(slots=[Slot(0, 1, 0, 8, -1, 0, 0)]), "min_size of slot 0", -1, 0),
        (unfit(commands=dispatch(queue=256)), "queue of command 1", 256, 255),
        (unfit(commands=dispatch(kernel=-1)), "arg0 of command 1", -1, 0),
        (unfit(commands=dispatch(deps=(0,) * 256)), "dep_count of command 1", 256, 255),
        (unfit(commands=dispatch(launch=(2**32, 1, 1, 1, 1, 1, 0))), "workgroup_count_x of the launch of command 1",
         2**32, 2**32 - 1),
        (unfit(commands=dispatch(refs=(Ref(0, READ, -8, 8),) * 3)), "offset of a ref of command 1", -8, 0),
        (unfit(commands=dispatch(deps=(2**32,))), "dependencies", 2**32, 2**32 - 1),
        (unfit(commands=[Mark(2**32, "")]), "arg0 of command 0", 2**32, 2**32 - 1),
        (unfit(events=[Event(3, 2**32, 0)]), "signal of an event", 2**32, 2**32 - 1),
        (unfit(patches=[Patch(0, 32, 4, 65536)]), "symbol of a patch of command 0", 65536, 65535),
        (unfit(patches=[Patch(0, 32, 4, 0, 2**63)]), "addend of a patch of command 0", 2**63, 2**63 - 1),
        (unfit(debug=[DebugInfo("", "é" * 32768)]), "node_length of the debug text of command 0", 65536, 65535),
    ],
)  # fmt: skip
def test_a_number_that_does_not_fit_is_named(cb: CommandBuffer, what: str, value: int, limit: int) -> None:
    with pytest.raises(LimitError) as caught:
        encode(cb)
    assert (caught.value.facts()["what"], caught.value.facts()["value"]) == (what, value)
    assert caught.value.facts()["limit"] == limit


def test_tables_that_do_not_match_are_named() -> None:
    with pytest.raises(LimitError, match="number of debug entries is 2, the limit is 1"):
        encode(unfit(debug=[DebugInfo()] * 2))
    for command in (-1, 1):
        with pytest.raises(LimitError, match=f"command of a patch is {command}, the limit is 0"):
            encode(unfit(patches=[Patch(command, 32, 4, 0)]))


def test_a_pattern_too_long_is_encoded_and_refused() -> None:
    build = Build()
    build.add(Fill(Ref(build.slot(), WRITE, 0, 9), b"nine byte"))
    with pytest.raises(DecodeError, match="data-length"):
        decode(encode(build.done()))


def test_text_that_is_no_unicode_is_replaced() -> None:
    cb = CommandBuffer(commands=[Mark(0, "a\udc80b")], debug=[DebugInfo("\ud800", "", "")])
    decoded = decode(encode(cb))
    assert decoded.commands == [Mark(0, "a?b")]
    assert decoded.debug == [DebugInfo("?", "", "")]


def test_limits_may_be_lowered() -> None:
    raw = encoded("every_command")
    assert decode(raw, Limits(total_size=len(raw), commands=13, deps=4, update=13, name=22)).commands
    with pytest.raises(DecodeError, match="limit-commands"):
        decode(raw, Limits(commands=12))


def test_launches_of_zero_size_are_accepted_as_no_ops() -> None:
    build = Build()
    a, b = build.slot(), build.slot()
    build.binary("add", 0, (a, 0), (a, 0), (b, 0))
    cb = decode(encode(build.done()))
    (command,) = cb.commands
    assert isinstance(command, Dispatch)
    assert command.launch == (0, 1, 1, 256, 1, 1, 0)
    assert [ref.length for ref in command.refs] == [0, 0, 0]


def test_access_of_a_slot_is_that_of_its_refs_and_more() -> None:
    cb = add()
    cb.slots[0] = cb.slots[0]._replace(access=READ | WRITE)
    assert decode(encode(cb)).slots[0].access == READ | WRITE
