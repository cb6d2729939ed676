"""Transfers: bytes on a channel of their own, in the session's order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.grpc.conftest import ServerProcess
from umd_core.errors import Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.messages import chunks

Open = Callable[..., Any]
A, B, C, PROGRAM = (number | 1 << 32 for number in range(1, 5))
SIZE = 5 << 19  # two and a half chunks of 1 MiB
DATA = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8).tobytes()
CHUNK = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server where transfers soon fail that stand still."""
    process = ServerProcess("--limits-stall-seconds", "1.5")
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


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


BROKEN: dict[str, tuple[Callable[[Any], list[bytes]], int]] = {
    "checksum": (damaged, CHUNK),
    "cut-off": (lambda session: pieces(session, 1)[:-1], 2 * CHUNK),
    "order": (lambda session: [pieces(session, 1)[0], pieces(session, 1)[2]], CHUNK),
    "too-much": (lambda session: [*pieces(session, 1)[:2], *pieces(session, 1, DATA + DATA)[2:]], 2 * CHUNK),
    "no-message": (lambda session: [pieces(session, 1)[0], b"\xff\xff"], CHUNK),
    "huge-chunk": (
        lambda session: [pieces(session, 1)[0], chunks.write_request(b"", 0, CHUNK, memoryview(bytes(2 * CHUNK)))],
        CHUNK,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_write_goes_on_where_it_stopped(session: Any, channel: Any, name: str) -> None:
    frame = transfer(session, 1, pb.DIRECTION_WRITE)
    session.send(frame, session.frame(write=pb.WriteRange(buffer=A, offset=7, data=b"after")))
    broken, had = BROKEN[name]
    answer = write(channel, broken(session))
    assert answer.error.status in (Status.BAD_BYTES, Status.CANCELLED, Status.LIMIT)
    assert answer.size == had
    asked = write(channel, [ask(session, 1)])
    assert (asked.size, asked.HasField("error")) == (had, False)
    assert write(channel, pieces(session, 1)[had // CHUNK :]).size == SIZE
    assert session.read(A, 0, CHUNK) == DATA[:7] + b"after" + DATA[12:CHUNK]
    assert session.read(A, SIZE - 64, 64) == DATA[-64:]
    assert write(channel, [ask(session, 1)]).size == SIZE  # whoever lost the answer may ask again
    assert frame.seq not in session.replies


def ask(session: Any, number: int, **fields: Any) -> bytes:
    """Returns a message without data: it asks how far a transfer is."""
    return pb.WriteRequest(session=session.opened.session, transfer=number, **fields).SerializeToString()


def test_a_write_that_stands_still_is_poisoned(session: Any, channel: Any) -> None:
    frame = transfer(session, 1, pb.DIRECTION_WRITE)
    session.send(frame)
    assert write(channel, pieces(session, 1)[:1]).size == CHUNK
    assert session.answer(frame.seq).error.status == Status.CANCELLED
    assert session.ask(read=pb.ReadRange(buffer=A, size=4)).error.status == Status.POISONED
    assert write(channel, pieces(session, 1)[1:]).error.status == Status.CANCELLED
    session.send(transfer(session, 2, pb.DIRECTION_WRITE))
    assert write(channel, pieces(session, 2)).size == SIZE
    assert session.read(A, SIZE - 8, 8) == DATA[-8:]


def test_a_write_that_is_given_up_is_poisoned_at_once(session: Any, channel: Any) -> None:
    frame = transfer(session, 1, pb.DIRECTION_WRITE)
    session.send(frame)
    write(channel, [ask(session, 1, abandon=True)])
    assert session.answer(frame.seq).error.status == Status.CANCELLED
    assert session.ask(read=pb.ReadRange(buffer=A, size=4)).error.status == Status.POISONED


class Hanging:
    """A Write call that has sent one chunk and then says nothing, as over a connection that is gone."""

    def __init__(self, session: Any, channel: Any) -> None:
        self._gate = threading.Event()
        first = pieces(session, 1)[0]

        def endless() -> Iterator[bytes]:
            yield first
            self._gate.wait(20)

        self.call = channel.stream_unary("/umd.runtime.Runtime/Write").future(endless(), timeout=30)

    def close(self) -> None:
        self.call.cancel()
        self._gate.set()


def test_a_cancelled_write_is_continued(session: Any, channel: Any) -> None:
    session.send(transfer(session, 1, pb.DIRECTION_WRITE))
    call = Hanging(session, channel)
    call.close()
    rest = write(channel, [ask(session, 1)]).size // CHUNK
    assert write(channel, pieces(session, 1)[rest:]).size == SIZE
    assert session.read(A, 0, CHUNK) == DATA[:CHUNK]


def test_another_call_takes_over_from_one_that_hangs(
    session: Any, channel: Any, server: ServerProcess, connect: Callable[[str], Any]
) -> None:
    session.send(transfer(session, 1, pb.DIRECTION_WRITE))
    hanging = Hanging(session, channel)
    other = connect(server.address)
    while not (done := write(other, [ask(session, 1)]).size):  # it was asked before the first one's chunk had come
        hanging.close()
        hanging = Hanging(session, channel)
    assert done == CHUNK
    assert write(other, pieces(session, 1)[1:]).size == SIZE
    assert session.read(A, SIZE - 64, 64) == DATA[-64:]
    hanging.close()


def held_read(channel: Any, token: bytes, number: int, offset: int) -> Any:
    request = pb.ReadRequest(session=token, transfer=number, offset=offset, hold=True)
    return channel.unary_stream("/umd.runtime.Runtime/Read")(request.SerializeToString(), timeout=30)


def test_a_read_goes_on_from_any_offset_until_it_is_acknowledged(session: Any, channel: Any) -> None:
    token = session.opened.session
    session.send(session.frame(write=pb.WriteRange(buffer=A, data=DATA[:CHUNK])))
    frame = transfer(session, 1, pb.DIRECTION_READ)
    session.send(frame, session.frame(write=pb.WriteRange(buffer=A, data=b"after")))
    expected = DATA[:CHUNK] + bytes(SIZE - CHUNK)
    call = held_read(channel, token, 1, 0)
    chunks.parse_read_response(next(call))
    call.cancel()
    for offset in (CHUNK, 0, SIZE - 5):
        found = [chunks.parse_read_response(raw) for raw in held_read(channel, token, 1, offset)]
        assert b"".join(bytes(chunk.data) for chunk in found if isinstance(chunk, chunks.Chunk)) == expected[offset:]
    (refused,) = [chunks.parse_read_response(raw) for raw in held_read(channel, token, 1, SIZE + 1)]
    assert isinstance(refused, pb.Error)
    assert refused.status == Status.BAD_BYTES
    assert list(held_read(channel, token, 1, SIZE)) == []
    assert session.read(A, 0, 5) == b"after"  # it has waited for that
    (over,) = [chunks.parse_read_response(raw) for raw in held_read(channel, token, 1, 0)]
    assert isinstance(over, pb.Error)
    assert over.status == Status.STALE_HANDLE


def test_transfers_of_other_bytes_of_a_buffer_do_not_wait(session: Any, channel: Any) -> None:
    half = SIZE // 2
    session.send(
        transfer(session, 1, pb.DIRECTION_WRITE, size=half),
        transfer(session, 2, pb.DIRECTION_WRITE, offset=half, size=half),
    )
    for number, part in ((2, DATA[half:]), (1, DATA[:half])):
        assert write(channel, pieces(session, number, part)).size == half
    assert session.read(A, half - 8, 16) == DATA[half - 8 : half + 8]


def test_calls_that_name_no_transfer_of_the_session(session: Any, open_session: Open, channel: Any) -> None:
    frame = transfer(session, 1, pb.DIRECTION_WRITE)
    session.send(frame)
    other = open_session()
    stranger = chunks.write_request(b"x" * 16, 1, 0, memoryview(DATA[:64]))
    assert write(channel, [stranger]).error.status == Status.NOT_AUTHORISED
    assert read(channel, b"", 1)[1].status == Status.NOT_AUTHORISED
    assert read(channel, session.opened.session, 1)[1].status == Status.BAD_BYTES  # it goes the other way
    assert write(channel, pieces(session, 1)).size == SIZE
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
