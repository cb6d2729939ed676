"""The memory of sessions: zero when it is new, and freed with what held it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import umd_core as umd
from tests.grpc.frames import FENCE, PROGRAM, SIZE, A, B, C, add_program, handle, submit
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client

Open = Callable[..., Any]


def test_new_memory_is_zero_whatever_other_sessions_left(open_session: Open) -> None:
    first = open_session()
    first.allocate(A, 4096)
    first.send(first.frame(write=pb.WriteRange(buffer=A, data=b"\xab" * 4096)))
    assert first.read(A, 0, 4096) == b"\xab" * 4096
    first.close()
    second = open_session()
    for number in range(1, 20):
        second.allocate(handle(number), 4096)
        assert second.read(handle(number), 0, 4096) == bytes(4096)


@pytest.fixture
def share(client: Client) -> int:
    """Two thirds of the device's memory: it is there once only."""
    return client.describe().devices[0].memory * 2 // 3


def fits(session: Any, number: int, size: int) -> bool:
    reply = session.do(allocate=pb.Allocate(handles=[handle(number)], sizes=[size]))
    return not reply.HasField("error")


def test_the_end_of_a_session_frees_everything(open_session: Open, share: int) -> None:
    for _ in range(3):
        opened = open_session()
        assert fits(opened, 1, share)
        assert not fits(opened, 2, share)
        opened.close()


def test_work_that_still_waits_ends_with_its_session(open_session: Open, share: int) -> None:
    for _ in range(2):
        opened = open_session()
        opened.send(opened.frame(load=pb.Load(handle=PROGRAM, program=add_program())))
        assert fits(opened, 1, share)
        opened.send(
            opened.frame(allocate=pb.Allocate(handles=[B, C], sizes=[SIZE, SIZE])),
            opened.frame(submit=submit(A, B, C, waits=[pb.FenceValue(fence=FENCE, value=1)])),
            opened.frame(free=pb.Free(buffers=[A])),
        )
        assert not fits(opened, 9, share)  # work that was submitted with it has not ended
        opened.close()


def with_arena(size: int) -> bytes:
    """Returns a program with that much transient memory."""
    graph = umd.Graph("arena")
    x = graph.input("x", umd.TensorDesc("f32", (size // 4,)))
    graph.output(graph.add("ReduceMax", [graph.add("Relu", [x])], {"keepdims": 0}))
    command_buffer = umd.translate(graph)
    assert command_buffer.arena_size >= size - 4
    return bytes(command_buffer)


def test_the_transient_memory_of_programs_is_freed(open_session: Open, share: int) -> None:
    opened = open_session()
    raw = with_arena(share)
    for number in range(1, 4):
        assert not opened.do(load=pb.Load(handle=handle(number), program=raw)).HasField("error")
        assert not fits(opened, 2 * number, share)
        assert not opened.do(free=pb.Free(programs=[handle(number)])).HasField("error")
        assert fits(opened, 2 * number + 1, share)
        assert not opened.do(free=pb.Free(buffers=[handle(2 * number + 1)])).HasField("error")
    assert not opened.do(load=pb.Load(handle=handle(9), program=raw)).HasField("error")
    opened.close()
    assert fits(open_session(), 1, share)
