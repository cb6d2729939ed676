"""Chunks of transfers, as bytes: built and read with one copy less than generated messages take."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError
from isal.isal_zlib import crc32  # the CRC of zlib, tens of times as fast: it must not slow a stream down

from umd_core.errors import DecodeError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.messages import wire

_WRITE_SESSION, _WRITE_TRANSFER, _WRITE_OFFSET, _WRITE_CRC32, _WRITE_DATA, _WRITE_ABANDON = 1, 2, 3, 4, 5, 6
_READ_OFFSET, _READ_CRC32, _READ_DATA, _READ_ERROR = 1, 2, 3, 4


class Chunk(NamedTuple):
    """Some bytes of a transfer, from byte `offset` of it on."""

    offset: int
    crc32: int
    data: memoryview

    def check(self, done: int, size: int) -> None:
        """Checks that the chunk is whole and follows the first `done` of `size` bytes.

        Raises:
            DecodeError: it does not, or was damaged.
        """
        self.check_order(done, size)
        self.check_whole()

    def check_order(self, done: int, size: int) -> None:
        """Checks that the chunk follows the first `done` of `size` bytes.

        Raises:
            DecodeError: it does not.
        """
        if self.offset != done or len(self.data) > size - done:
            detail = f"chunk [{self.offset}, +{len(self.data)}) of {size} bytes after {done}"
            raise DecodeError("chunk-order", detail, offset=self.offset, section="TRANSFER")

    def check_whole(self) -> None:
        """Checks the bytes.

        Raises:
            DecodeError: they were damaged.
        """
        if crc32(self.data) != self.crc32:
            raise DecodeError("chunk-checksum", "bytes were changed or damaged", offset=self.offset, section="TRANSFER")


def write_request(session: bytes, transfer: int, offset: int, data: memoryview) -> bytes:
    """Returns a serialised WriteRequest. The first one of a call names the session; b"" leaves both names out."""
    head = pb.WriteRequest(offset=offset, crc32=crc32(data))
    if session:
        head.session, head.transfer = session, transfer
    return _joined(head.SerializeToString(), _WRITE_DATA, data)


def read_response(offset: int, data: memoryview) -> bytes:
    """Returns a serialised ReadResponse."""
    return _joined(pb.ReadResponse(offset=offset, crc32=crc32(data)).SerializeToString(), _READ_DATA, data)


def _joined(head: bytes, number: int, data: memoryview) -> bytes:
    return b"".join((head, wire.head(number, len(data)), data))


class WriteHead(NamedTuple):
    """What the first message of a Write says beside its chunk; all empty in those that follow."""

    session: bytes
    transfer: int
    abandon: bool


def parse_write_request(raw: bytes) -> tuple[WriteHead, Chunk]:
    """Returns (what it names, its chunk).

    Raises:
        DecodeError: the bytes are no WriteRequest.
    """
    values = wire.values(raw)
    chunk = Chunk(_int(values, _WRITE_OFFSET), _int(values, _WRITE_CRC32), _view(values, _WRITE_DATA))
    named = bytes(_view(values, _WRITE_SESSION)), _int(values, _WRITE_TRANSFER), bool(_int(values, _WRITE_ABANDON))
    return WriteHead(*named), chunk


def parse_read_response(raw: bytes) -> Chunk | pb.Error:
    """Returns the chunk, or the error that ends the transfer.

    Raises:
        DecodeError: the bytes are no ReadResponse.
    """
    values = wire.values(raw)
    if _READ_ERROR in values:
        try:
            return pb.Error.FromString(bytes(_view(values, _READ_ERROR)))
        except ProtobufDecodeError as error:
            raise wire.malformed(f"not an Error: {error}", 0) from error
    return Chunk(_int(values, _READ_OFFSET), _int(values, _READ_CRC32), _view(values, _READ_DATA))


def _int(values: dict[int, int | memoryview], number: int) -> int:
    value = values.get(number, 0)
    if not isinstance(value, int):
        raise wire.malformed(f"field {number} is not a number", 0)
    return value


def _view(values: dict[int, int | memoryview], number: int) -> memoryview:
    value = values.get(number, memoryview(b""))
    if not isinstance(value, memoryview):
        raise wire.malformed(f"field {number} is not bytes", 0)
    return value
