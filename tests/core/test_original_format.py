"""The original command buffer: literal bytes, both ways, and what is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umd_core.disassemble import disassemble, to_json
from umd_core.encoding import OriginalBuffer, decode, decode_original, encode_original, is_original
from umd_core.errors import DecodeError, LimitError

ADD_1000 = (
    b"UMDCMD"
    b"\x16\x00\x00\x00"  # 22 bytes of name
    b"elementwise_add_kernel"
    b"\xe8\x03\x00\x00\x00\x00\x00\x00"  # 1000 elements
    b"\x04\x00\x00\x00\x00\x00\x00\x00"  # 4 groups
    b"\x00\x01\x00\x00\x00\x00\x00\x00"  # of 256
)


def test_literal_bytes() -> None:
    assert encode_original("elementwise_add_kernel", 1000) == ADD_1000
    assert decode_original(ADD_1000) == OriginalBuffer("elementwise_add_kernel", 1000, 4, 256)
    assert is_original(ADD_1000)


names = st.text(min_size=1, max_size=60).filter(lambda name: 1 <= len(name.encode()) <= 255)


@given(names, st.integers(0, 2**62 - 1))
def test_both_ways(name: str, count: int) -> None:
    raw = encode_original(name, count)
    assert decode_original(raw) == OriginalBuffer(name, count, (count + 255) // 256, 256)
    assert decode_original(memoryview(raw)) == decode_original(bytearray(raw))
    assert is_original(raw)


@given(st.binary(max_size=80))
def test_other_bytes_are_refused_or_canonical(tail: bytes) -> None:
    for raw in (tail, b"UMDCMD" + tail, ADD_1000[:32] + tail, ADD_1000[:6] + struct.pack("<I", len(tail)) + tail):
        original = decoded_or_refused(raw)
        assert original is None or encode_original(original.kernel_name, original.element_count) == raw


def decoded_or_refused(raw: bytes) -> OriginalBuffer | None:
    """Returns what the bytes say; None when they are refused by the typed error, at a byte of theirs."""
    refusal = None
    try:
        return decode_original(raw)
    except DecodeError as error:
        refusal = error
    assert refusal.section == "ORIGINAL"
    assert 0 <= refusal.offset <= len(raw)
    return None


def test_what_does_not_fit_is_refused() -> None:
    for name, count in (("", 1), ("x" * 256, 1), ("é" * 128, 1), ("x", -1), ("x", 2**62)):
        with pytest.raises(LimitError):
            encode_original(name, count)


def test_the_formats_are_told_apart() -> None:
    assert not is_original(b"UMDCMD\x00\x01")
    assert not is_original(b"UMDCMD\x16")
    assert not is_original(b"")
    assert is_original(b"UMDCMD\xff\x00")
    with pytest.raises(DecodeError, match="decode_original") as caught:
        decode(ADD_1000)
    assert caught.value.rule == "original-format"
    with pytest.raises(DecodeError, match="use decode"):
        decode_original(b"UMDCMD\x00\x01\x40\x00\x01\x00")


def test_the_disassembler_reads_it() -> None:
    assert disassemble(ADD_1000) == (
        "original command buffer, 56 bytes\nelementwise_add_kernel  1000 elements  grid 4  block 256\n"
    )
    assert to_json(ADD_1000) == {
        "format": "original",
        "size": 56,
        "kernel_name": "elementwise_add_kernel",
        "element_count": 1000,
        "grid": 4,
        "block": 256,
    }
    assert "\x1b" not in disassemble(encode_original("\x1b[31mred", 1))
