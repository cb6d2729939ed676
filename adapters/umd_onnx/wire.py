"""Taking large weights out of an encoded model before it is parsed, so that nothing copies their bytes.

Source: Protocol Buffers, Encoding, https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

import onnx

_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR = (
    part.DESCRIPTOR
    for part in (onnx.ModelProto, onnx.GraphProto, onnx.NodeProto, onnx.AttributeProto, onnx.TensorProto)
)
_WAYS = ((_MODEL, "graph"), (_GRAPH, "initializer"), (_GRAPH, "node"), (_NODE, "attribute"), (_ATTRIBUTE, "t"),
         (_ATTRIBUTE, "g"))  # fmt: skip
_INNER: dict[tuple[str, int], Any] = {
    (part.full_name, part.fields_by_name[name].number): part.fields_by_name[name].message_type for part, name in _WAYS
}
"""The messages that lead to weights: what lies in a field, by the message that it is a field of and its number."""
_RAW_DATA, _DOC_STRING = (_TENSOR.fields_by_name[name].number for name in ("raw_data", "doc_string"))
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS = 64
_DEPTH = 64
"""Messages within messages that are looked into; the parser itself gives up at 100."""

Piece = bytes | memoryview


class Field(NamedTuple):
    """A field of a message: its key begins at byte `start`, its payload is [at, end)."""

    number: int
    wire: int
    start: int
    at: int
    end: int


class Hollowed(NamedTuple):
    """An encoded model, and what was taken out of it.

    Attributes:
        raw: the model; a tensor without its data has a mark in its doc_string.
        taken: the raw data of these tensors, by mark.
    """

    raw: bytes
    taken: dict[str, memoryview]


def hollowed(raw: bytes, least: int) -> Hollowed:
    """Returns an encoded model without the raw data of large tensors, which are returned as views of it.

    Args:
        raw: the model. What is not encoded as it should be stays as it is, for the parser to complain of.
        least: bytes of raw data up to which a tensor stays whole.
    """
    work = _Work(memoryview(raw), least)
    try:
        pieces = work.message(0, len(raw), _MODEL, 0)
    except _MalformedError:
        pieces = None
    return Hollowed(raw, {}) if pieces is None else Hollowed(b"".join(pieces), work.taken)


class _MalformedError(Exception):
    """The bytes are no message."""


class _Work:
    """Takes the data out of one model."""

    def __init__(self, data: memoryview, least: int) -> None:
        self._data, self._least = data, least
        self._nonce = secrets.token_hex(4)
        self.taken: dict[str, memoryview] = {}

    def message(self, at: int, end: int, kind: Any, depth: int) -> list[Piece] | None:
        """Returns the pieces of a message without what is taken out; None when that is nothing."""
        if kind is _TENSOR:
            return self._tensor(at, end)
        pieces: list[Piece] = []
        copied = at
        for field in _fields(self._data, at, end):
            inner = _INNER.get((kind.full_name, field.number))
            if inner is None or field.wire != _BYTES or field.end - field.at <= self._least or depth == _DEPTH:
                continue
            found = self.message(field.at, field.end, inner, depth + 1)
            if found is not None:
                pieces += [self._data[copied : field.start], *_encoded(field.number, found)]
                copied = field.end
        return [*pieces, self._data[copied:end]] if pieces else None

    def _tensor(self, at: int, end: int) -> list[Piece] | None:
        found = [field for field in _fields(self._data, at, end) if field.number == _RAW_DATA]
        if len(found) != 1 or found[0].wire != _BYTES or found[0].end - found[0].at <= self._least:
            return None
        (raw,) = found
        mark = f"{self._nonce}:{len(self.taken)}"
        self.taken[mark] = self._data[raw.at : raw.end]
        return [self._data[at : raw.start], self._data[raw.end : end], *_encoded(_DOC_STRING, [mark.encode()])]


def _fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """Yields the fields of the message in [at, end).

    Raises:
        _MalformedError: it ends within a field, or has one of an unknown kind.
    """
    while at < end:
        start = at
        key, at = _varint(data, at, end)
        wire = key & 7
        if wire == _VARINT:
            payload, at = at, _varint(data, at, end)[1]
        elif wire == _BYTES:
            size, payload = _varint(data, at, end)
            at = payload + size
        elif wire in (_FIXED32, _FIXED64):
            payload, at = at, at + (4 if wire == _FIXED32 else 8)
        else:
            raise _MalformedError
        if at > end:
            raise _MalformedError
        yield Field(key >> 3, wire, start, payload, at)


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Returns a number, seven bits a byte and the lowest first, and where it ends."""
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        if at >= end:
            break
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise _MalformedError


def _encoded(number: int, pieces: list[Piece]) -> list[Piece]:
    """Returns the pieces of a field whose payload are these."""
    return [_number(number << 3 | _BYTES), _number(sum(map(len, pieces))), *pieces]


def _number(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
