"""The original command buffer: one launch of one kernel, by name. Read and written."""

from __future__ import annotations

import struct
from typing import NamedTuple

from umd_core.encoding.layout import MAGIC, NUMBER_LIMIT
from umd_core.errors import DecodeError, LimitError

BLOCK = 256
NAME_LIMIT = 255
VERSION_1_0 = 0x0100
_LENGTH_AT = len(MAGIC)
_NAME_AT = _LENGTH_AT + 4
_LENGTH, _COUNTS, _VERSION = struct.Struct("<I"), struct.Struct("<QQQ"), struct.Struct("<H")


class OriginalBuffer(NamedTuple):
    """What the original format says: kernel, output elements, groups (`grid`) of `block` invocations."""

    kernel_name: str
    element_count: int
    grid: int
    block: int


def encode_original(kernel_name: str, element_count: int) -> bytes:
    """Returns the bytes of the original format for one launch.

    Raises:
        LimitError: the name has no byte or more than 255, or the count is negative or not below 2^62.
    """
    name = kernel_name.encode()
    if not 1 <= len(name) <= NAME_LIMIT:
        raise LimitError("bytes of the kernel's name", len(name), NAME_LIMIT)
    if not 0 <= element_count < NUMBER_LIMIT:
        raise LimitError("element count", element_count, NUMBER_LIMIT - 1)
    counts = _COUNTS.pack(element_count, -(-element_count // BLOCK), BLOCK)
    return b"".join((MAGIC, _LENGTH.pack(len(name)), name, counts))


def is_original(data: bytes | bytearray | memoryview) -> bool:
    """Returns whether bytes are meant to be of the original format: v1 has a version of at least 0x0100 there."""
    head = bytes(memoryview(data)[: _LENGTH_AT + 2])
    if len(head) < _LENGTH_AT + 2 or not head.startswith(MAGIC):
        return False
    (version,) = _VERSION.unpack_from(head, _LENGTH_AT)
    return bool(version < VERSION_1_0)


def decode_original(source: bytes | bytearray | memoryview) -> OriginalBuffer:
    """Returns what bytes of the original format say.

    Raises:
        DecodeError: they are not what `encode_original` writes.
    """
    view = memoryview(source)
    if view.nbytes > _NAME_AT + NAME_LIMIT + _COUNTS.size:
        raise _broken("original-size", view.nbytes, f"{view.nbytes} bytes are too many")
    data = bytes(source)
    if data[:_LENGTH_AT] != MAGIC:
        raise _broken("original-magic", 0, f"begins with {data[:_LENGTH_AT]!r}, not {MAGIC!r}")
    if len(data) < _NAME_AT:
        raise _broken("original-size", len(data), f"{len(data)} bytes are too few")
    length: int = _LENGTH.unpack_from(data, _LENGTH_AT)[0]
    if not 1 <= length <= NAME_LIMIT:
        detail = f"a name of {length} bytes (version 1 has its version here: use decode)"
        raise _broken("original-magic", _LENGTH_AT, detail)
    end = _NAME_AT + length
    if len(data) != end + _COUNTS.size:
        raise _broken("original-size", min(len(data), end), f"{len(data)} bytes, {end + _COUNTS.size} are wanted")
    try:
        name = data[_NAME_AT:end].decode()
    except UnicodeDecodeError as error:
        raise _broken("original-name", _NAME_AT + error.start, "the name is not UTF-8") from None
    count, grid, block = _COUNTS.unpack_from(data, end)
    if count >= NUMBER_LIMIT:
        raise _broken("original-geometry", end, f"{count} elements are not below 2^62")
    if grid != -(-count // BLOCK) or block != BLOCK:
        detail = f"grid {grid} of {block}, wanted {-(-count // BLOCK)} of {BLOCK}"
        raise _broken("original-geometry", end + 8, detail)
    return OriginalBuffer(name, count, grid, block)


def _broken(rule: str, offset: int, detail: str) -> DecodeError:
    return DecodeError(rule, detail, offset=offset, section="ORIGINAL")
