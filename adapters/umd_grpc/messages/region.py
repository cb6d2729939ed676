"""What a client and a server on the same host say to each other over the socket beside a region of shared memory.

The client's first packet is the session's token. The server answers with one byte and the region's file descriptor, or
closes the socket. Then each request is one packet, and is answered by one, in order.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError

from umd_core.errors import DecodeError
from umd_grpc._pb.umd import runtime_pb2 as pb

HELLO = b"\x01"
WRITE, READ = 1, 2
_REQUEST, _REPLY = struct.Struct("<QQQQQ"), struct.Struct("<Q")
PACKET = 4096
"""The longest packet: a reply with an error."""


class Move(NamedTuple):
    """Asks for bytes [offset, offset + size) of a transfer to be moved between the device and the region.

    Attributes:
        kind: WRITE or READ.
        place: where in the region.
    """

    kind: int
    transfer: int
    offset: int
    place: int
    size: int

    def encode(self) -> bytes:
        """Returns the packet."""
        return _REQUEST.pack(*self)

    @classmethod
    def decode(cls, packet: bytes) -> Move:
        """Returns what a packet asks for.

        Raises:
            DecodeError: it is no request.
        """
        if len(packet) != _REQUEST.size:
            detail = f"a request has {_REQUEST.size} bytes, not {len(packet)}"
            raise DecodeError("region-request", detail, offset=0, section="REGION")
        found = cls._make(_REQUEST.unpack(packet))
        if found.kind not in (WRITE, READ):
            raise DecodeError("region-request", f"kind {found.kind} is unknown", offset=0, section="REGION")
        return found

    def check(self, region: int, done: int, size: int) -> None:
        """Checks that the bytes lie in the region, and follow the first `done` of the transfer's `size`.

        Raises:
            DecodeError: they do not.
        """
        if not 0 < self.size <= region or self.place > region - self.size:
            detail = f"[{self.place}, +{self.size}) is outside the region of {region} bytes"
            raise DecodeError("region-range", detail, offset=self.place, section="REGION")
        if self.offset != done or self.size > size - done:
            detail = f"bytes [{self.offset}, +{self.size}) of {size} after {done}"
            raise DecodeError("region-order", detail, offset=self.offset, section="REGION")


def encode_reply(done: int, error: pb.Error | None = None) -> bytes:
    """Returns the packet that answers a request: how far the transfer is, and what went wrong."""
    if error is None:
        return _REPLY.pack(done)
    raw = error.SerializeToString()
    if len(raw) > PACKET - _REPLY.size:
        raw = pb.Error(status=error.status, message=error.message[:1000]).SerializeToString()
    return _REPLY.pack(done) + raw


def decode_reply(packet: bytes) -> tuple[int, pb.Error | None]:
    """Returns (how far the transfer is, what went wrong).

    Raises:
        DecodeError: it is no reply.
    """
    try:
        (done,) = _REPLY.unpack_from(packet)
        return done, pb.Error.FromString(packet[_REPLY.size :]) if len(packet) > _REPLY.size else None
    except (struct.error, ProtobufDecodeError) as error:
        raise DecodeError("region-reply", str(error), offset=0, section="REGION") from error
