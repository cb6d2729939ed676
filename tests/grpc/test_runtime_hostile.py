"""Hostile bytes: a session ends with a reason, and the server goes on."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grpc.frames import FENCE, PROGRAM, A, B, C, add_program, status, submit
from umd_core.errors import Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import DEFAULT
from umd_grpc.messages import wire

WRITE: Any = pb.DIRECTION_WRITE
HOSTILE = [
    b"\xff",
    b"\x0a\x05abc",
    wire.head(1, 3) + b"\x08\xff\xff",
    wire.head(1, 4) + b"\x2a\x02\xff\xff",
    b"\x0a\x00" * (DEFAULT.frames + 1),
    wire.head(1, DEFAULT.frame + 8)
    + wire.head(6, DEFAULT.frame + 3)
    + b"\x3a\x00" * (DEFAULT.frame // 2 + 1)
    + b"\x48",
]


@pytest.mark.parametrize("raw", HOSTILE, ids=["key", "cut", "number", "nested", "frames", "amplified"])
def test_what_cannot_be_read_ends_the_session_with_a_reason(session: Any, raw: bytes) -> None:
    session.send_raw(raw)
    with pytest.raises(grpc.RpcError) as caught:
        while True:
            session.next()
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert status(session.replies[0]) in (Status.BAD_BYTES, Status.LIMIT)


COMMANDS = st.sampled_from(
    [
        pb.Frame(allocate=pb.Allocate(handles=[A], sizes=[64])),
        pb.Frame(load=pb.Load(handle=PROGRAM, program=add_program())),
        pb.Frame(submit=submit(A, B, C, waits=[pb.FenceValue(fence=FENCE, value=1)])),
        pb.Frame(write=pb.WriteRange(buffer=A, data=b"abcd")),
        pb.Frame(transfer=pb.Transfer(id=1, direction=WRITE, buffer=A, size=4)),
        pb.Frame(signal=pb.FenceValue(fence=FENCE, value=3)),
        pb.Frame(free=pb.Free(buffers=[A], programs=[PROGRAM], fences=[FENCE])),
        pb.Frame(wait=pb.Wait(fence=pb.FenceValue(fence=FENCE, value=1), timeout_ms=1)),
    ]
)
EDITS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


@settings(max_examples=60)
@given(st.lists(st.tuples(COMMANDS, EDITS), max_size=8))
def test_hostile_frames_never_end_the_server(server: Any, frames: list[tuple[Any, list[tuple[int, int]]]]) -> None:
    parts = [pb.SessionRequest(frames=[pb.Frame(seq=1, open=pb.Open(protocol=1))]).SerializeToString()]
    for number, (template, edits) in enumerate(frames, 2):
        frame = pb.Frame(seq=number)
        frame.MergeFrom(template)
        body = bytearray(frame.SerializeToString())
        for at, value in edits:
            body[at % len(body)] = value
        parts.append(wire.head(1, len(body)) + bytes(body))
    channel: Any = grpc.insecure_channel(server.address)
    with channel:
        call = channel.stream_stream("/umd.runtime.Runtime/Session")(iter([parts[0], b"".join(parts[1:])]), timeout=30)
        try:
            responses = [pb.SessionResponse.FromString(raw) for raw in call]
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.ABORTED  # it ended well, or with a reason
        else:
            assert responses
    server.check_sound()
