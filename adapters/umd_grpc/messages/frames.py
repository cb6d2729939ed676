"""Session messages cut into frames, with every length checked before anything is built from it."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError as ProtobufDecodeError

from umd_core.errors import LimitError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.messages import wire

_FRAMES = 1
_SEQ, _LOAD = 1, 5
_HANDLE, _PROGRAM, _SHA256 = 1, 2, 3


def cut_frames(raw: bytes, limits: Limits) -> Iterator[bytes]:
    """Yields the frames of a SessionRequest, unparsed, each when it is asked for: a message may have thousands.

    Raises:
        DecodeError, LimitError: it is no such message, or has too many frames; what stands before that is yielded.
    """
    return wire.each_submessage(raw, _FRAMES, limits.frames, "frames in a message")


def read_frame(body: bytes, limits: Limits) -> pb.Frame:
    """Returns a frame.

    A parsed message may take many times the room of its bytes, so only small frames are parsed as they come. Of larger
    ones only programs are known, and those are taken apart by hand.

    Raises:
        DecodeError, LimitError: it is no frame, or too large.
    """
    if len(body) > limits.frame:
        return _large_load(body, limits)
    try:
        return pb.Frame.FromString(body)
    except ProtobufDecodeError as error:
        raise wire.malformed(f"not a Frame: {error}", 0) from error


def _large_load(body: bytes, limits: Limits) -> pb.Frame:
    frame = pb.Frame()
    for field in wire.fields(body):
        if (field.number, field.wire_type) == (_SEQ, wire.VARINT):
            frame.seq = wire.varint(body, field.payload)[0]
        elif (field.number, field.wire_type) == (_LOAD, wire.BYTES):
            _read_load(body[field.payload : field.end], frame.load)
        else:
            raise LimitError("bytes of a frame that loads no program", len(body), limits.frame)
    return frame


def _read_load(body: bytes, load: pb.Load) -> None:
    for field in wire.fields(body):
        if (field.number, field.wire_type) == (_HANDLE, wire.FIXED64):
            load.handle = int.from_bytes(body[field.payload : field.end], "little")
        elif (field.number, field.wire_type) == (_PROGRAM, wire.BYTES):
            load.program = body[field.payload : field.end]
        elif (field.number, field.wire_type) == (_SHA256, wire.BYTES) and field.end - field.payload <= 64:
            load.sha256 = body[field.payload : field.end]
        else:
            raise wire.malformed(f"field {field.number} in a large Load", field.start)
