"""Messages cut apart and joined as bytes, against protobuf's own parser."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any

import pytest
from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import example, given
from hypothesis import strategies as st

from umd_core.errors import DecodeError, LimitError
from umd_grpc._pb.umd import runtime_pb2, translator_pb2
from umd_grpc.messages import chunks, wire
from umd_grpc.messages import region as region_messages

NAMES = st.text(max_size=40)
DESCS = st.builds(
    translator_pb2.TensorDesc,
    name=NAMES,
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    dtype=NAMES,
    strides=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
)
REQUESTS = st.builds(
    translator_pb2.TranslateRequest,
    op_type=NAMES,
    inputs=st.lists(DESCS, max_size=4),
    attributes=st.dictionaries(NAMES, NAMES, max_size=3),
    request_id=st.integers(-(2**63), 2**63 - 1),
    device_id=NAMES,
    format=st.integers(0, 2),
)


@given(st.integers(0, 2**64 - 1))
def test_a_number_comes_back(value: int) -> None:
    raw = wire.encode_varint(value)
    assert wire.varint(raw, 0) == (value, len(raw))
    assert runtime_pb2.Allocate.FromString(b"\x12" + bytes([len(raw)]) + raw).sizes == [value]


@given(st.lists(REQUESTS, max_size=6))
def test_a_batch_is_cut_into_its_requests(requests: list[translator_pb2.TranslateRequest]) -> None:
    raw = translator_pb2.SubmitRequest(request=requests).SerializeToString()
    cut = wire.submessages(raw, 1, 100, "requests")
    assert [translator_pb2.TranslateRequest.FromString(body) for body in cut] == requests
    joined = b"".join(wire.head(1, len(body)) + body for body in cut)
    assert joined == raw


@given(REQUESTS)
def test_the_id_is_cut_out_of_a_request(request: translator_pb2.TranslateRequest) -> None:
    raw = request.SerializeToString()
    cut = wire.cut_varint(raw, 4)
    assert cut is not None
    rest, encoded = cut
    without = translator_pb2.TranslateRequest.FromString(rest)
    assert without.request_id == 0
    without.request_id = request.request_id
    assert without == request
    if request.request_id:
        assert wire.varint(encoded, 0) == (request.request_id & 2**64 - 1, len(encoded))
    else:
        assert encoded == b""


@given(st.binary(max_size=60))
@example(b"\x20\x01\x20\x02")
@example(b"\x20" + b"\xff" * 11 + b"\x01")
@example(b"\x0a\xff\xff\xff\xff\x0f")
def test_an_id_is_only_cut_out_of_what_protobuf_reads_alike(raw: bytes) -> None:
    cut = wire.cut_varint(raw, 4)
    if cut is None:
        return
    rest, encoded = cut
    try:
        whole = translator_pb2.TranslateRequest.FromString(raw)
    except ProtobufDecodeError:
        return  # what cannot be parsed is refused when it is translated, and never kept
    again = translator_pb2.TranslateRequest.FromString(rest + (b"\x20" + encoded if encoded else b""))
    assert again.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


unknown_fields: Any = UnknownFieldSet  # its annotations leave the iteration out


@given(st.binary(max_size=80))
@example(b"\x0a\x02\x0a\x00")
@example(b"\x0a\x05abc")
@example(b"\x0b\x0c")
@example(b"\x00\x00")
@example(b"\x08" + b"\xff" * 9 + b"\x02")
def test_bytes_are_taken_apart_as_protobuf_does_or_refused(raw: bytes) -> None:
    try:
        known = [(f.field_number, f.wire_type) for f in unknown_fields(runtime_pb2.Flush.FromString(raw))]
    except ProtobufDecodeError:
        with pytest.raises(DecodeError):
            list(wire.fields(raw))
        return
    try:
        found = list(wire.fields(raw))
    except DecodeError:
        # a group, which no message of ours has, or the field number 0, which the specification forbids
        assert any(wire_type == 3 or number == 0 for number, wire_type in known)
        return
    assert [(field.number, field.wire_type) for field in found] == known
    bodies = [raw[field.payload : field.end] for field in found if (field.number, field.wire_type) == (1, wire.BYTES)]
    assert wire.submessages(raw, 1, 100, "requests") == bodies


def test_more_than_the_limit_is_refused_early() -> None:
    with pytest.raises(LimitError) as caught:
        wire.submessages(b"\x0a\x00" * 11, 1, 10, "requests in a message")
    assert caught.value.facts()["limit"] == 10


@given(st.binary(max_size=300), st.integers(0, 2**40), st.sampled_from([b"", b"s" * 16]), st.integers(1, 2**63))
def test_chunks_are_the_generated_messages(data: bytes, offset: int, session: bytes, transfer: int) -> None:
    raw = chunks.write_request(session, transfer, offset, memoryview(data))
    message = runtime_pb2.WriteRequest.FromString(raw)
    assert (message.data, message.offset) == (data, offset)
    assert message.crc32 == zlib.crc32(data)
    assert (message.session, message.transfer) == (session, transfer if session else 0)
    for form in (raw, message.SerializeToString()):
        head, chunk = chunks.parse_write_request(form)
        assert head == (message.session, message.transfer, False)
        assert (chunk.offset, bytes(chunk.data)) == (offset, data)
        chunk.check(offset, offset + len(data))
    answer = runtime_pb2.ReadResponse.FromString(chunks.read_response(offset, memoryview(data)))
    assert (answer.offset, answer.data) == (offset, data)
    read = chunks.parse_read_response(answer.SerializeToString())
    assert isinstance(read, chunks.Chunk)
    assert bytes(read.data) == data


@given(st.binary(min_size=1, max_size=50), st.integers(0, 49), st.integers(1, 255))
def test_a_damaged_chunk_is_refused(data: bytes, at: int, change: int) -> None:
    _, chunk = chunks.parse_write_request(chunks.write_request(b"s", 1, 0, memoryview(data)))
    damaged = bytearray(data)
    damaged[at % len(data)] ^= change
    with pytest.raises(DecodeError) as caught:
        chunk._replace(data=memoryview(damaged)).check(0, len(data))
    assert caught.value.rule == "chunk-checksum"
    for done, size in ((1, 100), (0, len(data) - 1)):
        with pytest.raises(DecodeError) as caught:
            chunk.check(done, size)
        assert caught.value.rule == "chunk-order"


@given(st.binary(max_size=60))
def test_any_bytes_are_a_chunk_or_refused(raw: bytes) -> None:
    for parse in (chunks.parse_write_request, chunks.parse_read_response):
        with contextlib.suppress(DecodeError):  # refused: right as well
            parse(raw)


@given(st.sampled_from(range(1, 3)), *[st.integers(0, 2**64 - 1)] * 4, st.integers(1, 2**30))
def test_a_move_stays_in_its_region_and_transfer(
    kind: int, transfer: int, offset: int, place: int, size: int, region: int
) -> None:
    move = region_messages.Move.decode(region_messages.Move(kind, transfer, offset, place, size).encode())
    assert move == (kind, transfer, offset, place, size)
    with contextlib.suppress(DecodeError):  # refused: right as well
        move.check(region, offset, offset + 100)
        assert 0 < size <= min(100, region)
        assert place + size <= region


@given(st.binary(max_size=60))
def test_any_packet_is_a_move_or_refused(packet: bytes) -> None:
    with contextlib.suppress(DecodeError):  # refused: right as well
        assert region_messages.Move.decode(packet).encode() == packet
    with contextlib.suppress(DecodeError):  # refused: right as well
        region_messages.decode_reply(packet)


@given(st.integers(0, 2**64 - 1), st.text(max_size=5000), st.text(max_size=3000))
def test_replies_with_errors_fit_in_a_packet(done: int, message: str, facts: str) -> None:
    error = runtime_pb2.Error(status=9, message=message, facts=facts)
    packet = region_messages.encode_reply(done, error)
    assert len(packet) <= region_messages.PACKET
    found = region_messages.decode_reply(packet)
    assert found[0] == done
    assert found[1] is not None
    assert found[1].status == 9
    assert message.startswith(found[1].message)
