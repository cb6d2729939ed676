"""The few facts of protobuf's wire format that let messages be cut apart and joined without parsing what they hold.

A message is a sequence of fields: a varint key (number << 3 | wire type) and a payload. A batch is cut into its
requests, a request's id is cut out of it, and an answer is put together, all on bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from umd_core.errors import DecodeError, LimitError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT, _MASK = 10, (1 << 64) - 1


class Field(NamedTuple):
    """A top-level field. Its key starts at `start`, its payload at `payload`, the next field at `end`."""

    number: int
    wire_type: int
    start: int
    payload: int
    end: int


def malformed(detail: str, offset: int) -> DecodeError:
    """Returns the error for bytes that are no protobuf message."""
    return DecodeError("protobuf", detail, offset=offset, section="MESSAGE")


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number at `at` and where it ends; bits beyond 64 are dropped, as protobuf does.

    Raises:
        DecodeError: it is cut off, or has more than 10 bytes.
    """
    value = shift = 0
    for end in range(at, min(at + _LONGEST_VARINT, len(data))):
        byte = data[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, end + 1
        shift += 7
    raise malformed("a number is cut off or too long", at)


def encode_varint(value: int) -> bytes:
    """Returns a non-negative number as a varint."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


@functools.lru_cache(maxsize=4096)
def head(number: int, size: int) -> bytes:
    """Returns the key and length that stand before a bytes or message field."""
    return encode_varint(number << 3 | BYTES) + encode_varint(size)


def fields(data: bytes) -> Iterator[Field]:
    """Yields the top-level fields of a message, in order.

    Raises:
        DecodeError: the bytes are no message.
    """
    at, size = 0, len(data)
    while at < size:
        key, payload = varint(data, at)
        number, wire_type = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise malformed(f"field number {number}", at)
        end = _end(data, wire_type, payload)
        yield Field(number, wire_type, at, payload + (0 if wire_type != BYTES else _length_size(data, payload)), end)
        at = end


def _length_size(data: bytes, at: int) -> int:
    return varint(data, at)[1] - at


def _end(data: bytes, wire_type: int, at: int) -> int:
    if wire_type == BYTES:
        length, at = varint(data, at)
        if length > len(data) - at:
            raise malformed(f"a field of {length} bytes, {len(data) - at} follow", at)
        return at + length
    if wire_type == VARINT:
        return varint(data, at)[1]
    if wire_type not in _FIXED or _FIXED[wire_type] > len(data) - at:
        raise malformed(f"wire type {wire_type} cannot be read here", at)
    return at + _FIXED[wire_type]


def values(data: bytes) -> dict[int, int | memoryview]:
    """Returns the top-level fields of a message by number: numbers, and bytes as views. The last of a number counts.

    Raises:
        DecodeError: the bytes are no message.
    """
    found: dict[int, int | memoryview] = {}
    view = memoryview(data)
    for field in fields(data):
        if field.wire_type == VARINT:
            found[field.number] = varint(data, field.payload)[0]
        elif field.wire_type == BYTES:
            found[field.number] = view[field.payload : field.end]
        else:
            found[field.number] = int.from_bytes(view[field.payload : field.end], "little")
    return found


def submessages(data: bytes, number: int, most: int, what: str) -> list[bytes]:
    """Returns the bodies of a repeated message field, as bytes, in order.

    Raises:
        DecodeError: the bytes are no message.
        LimitError: there are more than `most`.
    """
    return list(each_submessage(data, number, most, what))


def each_submessage(data: bytes, number: int, most: int, what: str) -> Iterator[bytes]:
    """Yields what `submessages` returns, each when it is asked for; what is wrong shows where it stands."""
    key, at, size, count = number << 3 | BYTES, 0, len(data), 0
    while at < size:
        if data[at] == key and key <= 0x7F:
            # the common case, spelt out: this loop runs once for every request that is served
            at += 1
            length = data[at] if at < size else 0x80
            if length > 0x7F:
                length, at = varint(data, at)
            else:
                at += 1
            end = at + length
            if end > size:
                raise malformed(f"a field of {length} bytes, {size - at} follow", at)
        else:
            at, end, found = _other(data, at, number)
            if not found:
                at = end
                continue
        count += 1
        if count > most:
            raise LimitError(what, count, most)
        yield data[at:end]
        at = end


def _other(data: bytes, at: int, number: int) -> tuple[int, int, bool]:
    """Returns where the payload of the field at `at` begins and ends, and whether it is one that is looked for."""
    key, payload = varint(data, at)
    end = _end(data, key & 7, payload)
    if key == number << 3 | BYTES:
        return varint(data, payload)[1], end, True
    if not 0 < key >> 3 < 1 << 29:
        raise malformed(f"field number {key >> 3}", at)
    return payload, end, False


def cut_varint(data: bytes, number: int) -> tuple[bytes, bytes] | None:
    """Returns a message without its one varint field `number` (below 16), and that field's encoded value.

    The value is b"" when the field is absent; None means that the message has to be parsed to tell.
    """
    key, at, size = number << 3 | VARINT, 0, len(data)
    rest, value = data, b""
    try:
        while at < size:
            tag = data[at]
            if tag > 0x7F:
                return None
            kind = tag & 7
            if kind == BYTES:
                length = data[at + 1]
                if length < 0x80:
                    at += 2 + length
                    continue
                length, at = varint(data, at + 1)
                at += length
            elif kind == VARINT:
                end = at + 1
                while data[end] > 0x7F:
                    end += 1
                end += 1
                if tag == key:
                    if value or end - at > 1 + _LONGEST_VARINT:
                        return None
                    rest, value = data[:at] + data[end:], data[at + 1 : end]
                at = end
            else:
                return None
    except (IndexError, DecodeError):
        return None
    return (rest, value) if at == size else None
