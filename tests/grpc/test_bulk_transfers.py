"""Transfers: bytes on a channel of their own, in the session's order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from umd_core.errors import Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.messages import chunks

Open = Callable[..., Any]
A, B, C, PROGRAM = (number | 1 << 32 for number in range(1, 5))
SIZE = 5 << 19  # two and a half chunks of 1 MiB
DATA = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8).tobytes()
CHUNK = 1 << 20


@pytest.fixture
def channel(server: Any, connect: Callable[[str], Any]) -> Any:
    return connect(server.address)


@pytest.fixture
def session(open_session: Open) -> Any:
    """An open session with buffers A, B, C of SIZE bytes."""
    opened = open_session()
    opened.send(opened.frame(allocate=pb.Allocate(handles=[A, B, C], sizes=[SIZE] * 3)))
    return opened


def pieces(session: Any, transfer: int, data: bytes = DATA) -> list[bytes]:
    view = memoryview(data)
    return [
        chunks.write_request(session.opened.session, transfer, at, view[at : at + CHUNK])
        for at in range(0, len(data), CHUNK)
    ]


def write(channel: Any, messages: Any) -> Any:
    raw = channel.stream_unary("/umd.runtime.Runtime/Write")(iter(messages), timeout=30)
    return pb.WriteResponse.FromString(raw)


def read(channel: Any, token: bytes, transfer: int) -> tuple[bytes, Any]:
    """Returns (bytes, error) of a Read call."""
    request = pb.ReadRequest(session=token, transfer=transfer).SerializeToString()
    data = b""
    for raw in channel.unary_stream("/umd.runtime.Runtime/Read")(request, timeout=30):
        chunk = chunks.parse_read_response(raw)
        if not isinstance(chunk, chunks.Chunk):
            return data, chunk
        chunk.check(len(data), SIZE)
        data += chunk.data
    return data, None


def transfer(session: Any, number: int, direction: pb.Direction, buffer: int = A, **fields: Any) -> Any:
    fields.setdefault("size", SIZE)
    return session.frame(transfer=pb.Transfer(id=number, direction=direction, buffer=buffer, **fields))


@pytest.mark.parametrize("frame_first", [True, False], ids=["frame-first", "call-first"])
def test_bytes_go_there_and_back(session: Any, channel: Any, frame_first: bool) -> None:
    if frame_first:
        session.do(flush=pb.Flush())
        session.send(transfer(session, 1, pb.DIRECTION_WRITE), session.frame(flush=pb.Flush()))
        session.answer(session.seq)
        answer = write(channel, pieces(session, 1))
    else:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(write(channel, pieces(session, 1))))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()  # the order has not reached it
        session.send(transfer(session, 1, pb.DIRECTION_WRITE))
        thread.join(30)
        (answer,) = answers
    assert (answer.size, answer.HasField("error")) == (SIZE, False)
    session.send(transfer(session, 2, pb.DIRECTION_READ))
    assert read(channel, session.opened.session, 2) == (DATA, None)


def test_later_commands_on_the_buffer_wait_for_the_last_chunk(session: Any, channel: Any) -> None:
    x = umd.TensorDesc("u8", (SIZE,))
    session.send(
        session.frame(load=pb.Load(handle=PROGRAM, program=bytes(umd.translate("Add", [x, x])))),
        transfer(session, 1, pb.DIRECTION_WRITE),
        session.frame(submit=pb.Submit(program=PROGRAM, buffers=[A, B, C])),
    )
    read_seq = session.send(session.frame(read=pb.ReadRange(buffer=C, offset=SIZE - 64, size=64)))
    elsewhere = session.send(session.frame(flush=pb.Flush()))
    messages = pieces(session, 1)
    first, *rest = messages
    gate = threading.Event()

    def slowly() -> Iterator[bytes]:
        yield first
        gate.wait(20)
        yield from rest

    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(write(channel, slowly())))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    assert read_seq not in session.replies
    gate.set()
    assert session.answer(read_seq).data == DATA[-64:]
    assert session.answer(elsewhere).HasField("done")
    thread.join(20)
    assert answers[0].size == SIZE


def test_commands_on_other_buffers_before_it_are_not_touched(session: Any, channel: Any) -> None:
    session.send(session.frame(write=pb.WriteRange(buffer=B, data=b"here")), transfer(session, 1, pb.DIRECTION_WRITE))
    assert session.read(B, 0, 4) == b"here"
    assert write(channel, pieces(session, 1)).size == SIZE


def test_reading_sees_the_bytes_of_its_place_in_the_order(session: Any, channel: Any) -> None:
    session.send(transfer(session, 1, pb.DIRECTION_WRITE))
    assert write(channel, pieces(session, 1)).size == SIZE
    session.send(
        transfer(session, 2, pb.DIRECTION_READ),
        session.frame(write=pb.WriteRange(buffer=A, data=bytes(CHUNK))),
    )
    assert read(channel, session.opened.session, 2) == (DATA, None)
    assert session.read(A, 0, 64) == bytes(64)


def damaged(session: Any) -> list[bytes]:
    first, second, third = pieces(session, 1)
    return [first, second[:-1] + bytes([second[-1] ^ 1]), third]


BROKEN: dict[str, Callable[[Any], list[bytes]]] = {
    "checksum": damaged,
    "cut-off": lambda session: pieces(session, 1)[:-1],
    "order": lambda session: [pieces(session, 1)[0], pieces(session, 1)[2]],
    "too-much": lambda session: [*pieces(session, 1)[:2], *pieces(session, 1, DATA + DATA)[2:]],
    "no-message": lambda session: [pieces(session, 1)[0], b"\xff\xff"],
    "huge-chunk": lambda session: [chunks.write_request(session.opened.session, 1, 0, memoryview(bytes(2 * CHUNK)))],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_write_poisons_its_range(session: Any, channel: Any, name: str) -> None:
    frame = transfer(session, 1, pb.DIRECTION_WRITE, size=SIZE)
    session.send(frame)
    answer = write(channel, BROKEN[name](session))
    assert answer.error.status in (Status.BAD_BYTES, Status.CANCELLED, Status.LIMIT)
    if name == "huge-chunk":  # refused before it was known whose it was
        return
    assert session.answer(frame.seq).error.status == answer.error.status
    assert session.ask(read=pb.ReadRange(buffer=A, size=4)).error.status == Status.POISONED
    session.send(transfer(session, 2, pb.DIRECTION_WRITE))
    assert write(channel, pieces(session, 2)).size == SIZE
    assert session.read(A, SIZE - 8, 8) == DATA[-8:]


def test_a_cancelled_write_frees_the_buffer(session: Any, channel: Any) -> None:
    frame = transfer(session, 1, pb.DIRECTION_WRITE)
    session.send(frame, session.frame(flush=pb.Flush()))
    session.answer(session.seq)
    gate = threading.Event()

    def endless() -> Iterator[bytes]:
        yield pieces(session, 1)[0]
        gate.wait(20)

    call = channel.stream_unary("/umd.runtime.Runtime/Write").future(endless(), timeout=30)
    threading.Event().wait(0.2)
    call.cancel()
    gate.set()
    assert session.answer(frame.seq).error.status in (Status.CANCELLED, Status.STALE_HANDLE)
    assert session.ask(read=pb.ReadRange(buffer=A, size=4)).error.status == Status.POISONED


def test_calls_that_name_no_transfer_of_the_session(session: Any, open_session: Open, channel: Any) -> None:
    frame = transfer(session, 1, pb.DIRECTION_WRITE)
    session.send(frame)
    other = open_session()
    stranger = chunks.write_request(b"x" * 16, 1, 0, memoryview(DATA[:64]))
    assert write(channel, [stranger]).error.status == Status.NOT_AUTHORISED
    assert read(channel, b"", 1)[1].status == Status.NOT_AUTHORISED
    assert read(channel, session.opened.session, 1)[1].status == Status.BAD_BYTES  # it goes the other way
    assert session.answer(frame.seq).error.status == Status.BAD_BYTES
    assert write(channel, []).size == 0
    other.close()
    gone = chunks.write_request(other.opened.session, 1, 0, memoryview(DATA[:64]))
    assert write(channel, [gone]).error.status == Status.NOT_AUTHORISED


def test_a_refused_transfer_tells_the_call_too(session: Any, channel: Any) -> None:
    session.send(transfer(session, 1, pb.DIRECTION_WRITE, buffer=99 | 1 << 32))
    assert write(channel, pieces(session, 1)).error.status == Status.STALE_HANDLE
    session.send(transfer(session, 2, pb.DIRECTION_READ, offset=1))
    assert read(channel, session.opened.session, 2)[1].status == Status.SHAPE


def test_the_end_of_a_session_ends_its_transfers(session: Any, channel: Any) -> None:
    session.send(transfer(session, 1, pb.DIRECTION_WRITE), session.frame(flush=pb.Flush()))
    session.answer(session.seq)
    token = session.opened.session
    threading.Timer(0.2, session.abandon).start()

    def never_done() -> Iterator[bytes]:
        yield pieces(session, 1)[0]
        threading.Event().wait(1.5)
        yield pieces(session, 1)[1]

    assert write(channel, never_done()).error.status in (Status.STALE_HANDLE, Status.NOT_AUTHORISED)
    assert read(channel, token, 2)[1].status == Status.NOT_AUTHORISED
