"""Sessions spoken frame by frame: order, handles, failures, limits, isolation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.grpc.frames import FENCE, PROGRAM, SIZE, A, B, C, D, X, add_program, handle, status, submit, values
from umd_core.errors import Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client
from umd_grpc.limits import DEFAULT

Open = Callable[..., Any]
WRITE: Any = pb.DIRECTION_WRITE
UNKNOWN: Any = 3


def test_describe(client: Client) -> None:
    found = client.describe()
    assert (found.format_oldest, found.format_newest) == (0x0100, 0x0100)
    (device,) = found.devices
    assert device.name == "sim:0"
    assert device.memory > 0
    assert found.limits.inline_size == DEFAULT.inline == 1 << 20
    here = umd.open_device("sim:0")
    names = {kernel.name: kernel.every for kernel in device.kernels}
    assert names == {name: types is None for name, types in here.caps().kernels.items()}
    here.close()


def test_any_amount_of_work_takes_one_message_each_way(open_session: Open) -> None:
    opened = open_session()
    frames = [
        opened.frame(allocate=pb.Allocate(handles=[A, B], sizes=[SIZE, SIZE])),
        opened.frame(load=pb.Load(handle=PROGRAM, program=add_program())),
        opened.frame(write=pb.WriteRange(buffer=A, data=X.tobytes())),
        opened.frame(submit=submit(A, A, B)),
    ]
    frames.append(opened.frame(read=pb.ReadRange(buffer=B, size=SIZE)))
    seq = opened.send(*frames)
    response = opened.next()
    assert [reply.seq for reply in response.replies] == [seq]
    assert values(response.replies[0].data) == [0, 2, 4, 6, 8, 10]
    assert response.processed_through == seq
    assert [(progress.queue, progress.seq) for progress in response.completed_through] == [(0, seq - 1)]
    assert response.credit > 0
    assert response.device_epoch > 0


def test_ranges_of_buffers(session: Any) -> None:
    """Without sizes a binding goes to the buffer's end, without offsets it begins at 0."""
    large = handle(40)
    session.allocate(large, 3 * SIZE)
    session.send(
        session.frame(write=pb.WriteRange(buffer=large, offset=SIZE, data=X.tobytes())),
        session.frame(submit=pb.Submit(program=PROGRAM, buffers=[A, A, B])),
        session.frame(submit=pb.Submit(program=PROGRAM, buffers=[large, A, C], offsets=[SIZE, 0, 0])),
    )
    assert values(session.read(B, 0, SIZE)) == list(X + X)
    assert values(session.read(C, 0, SIZE)) == list(X + X)


def test_sessions_cannot_touch_each_others_things(open_session: Open, session: Any) -> None:
    assert values(session.read(A, 0, SIZE)) == list(X)
    other = open_session()
    assert status(other.do(read=pb.ReadRange(buffer=A, size=SIZE))) == Status.STALE_HANDLE
    assert status(other.do(write=pb.WriteRange(buffer=A, data=b"1234"))) == Status.STALE_HANDLE
    assert status(other.do(free=pb.Free(buffers=[A]))) == Status.STALE_HANDLE
    assert status(other.do(submit=submit(A, B, C))) == Status.STALE_HANDLE
    other.allocate(A, SIZE)
    other.send(other.frame(write=pb.WriteRange(buffer=A, data=bytes(SIZE))))
    assert values(other.read(A, 0, SIZE)) == [0] * 6
    assert values(session.read(A, 0, SIZE)) == list(X)


def test_a_waiting_session_does_not_hold_up_another(open_session: Open, session: Any) -> None:
    """Queues have the same numbers in every session, and are others."""
    session.send(session.frame(submit=submit(A, A, B, waits=[pb.FenceValue(fence=FENCE, value=1)])))
    other = open_session()
    other.send(
        other.frame(allocate=pb.Allocate(handles=[A, B], sizes=[SIZE] * 2)),
        other.frame(load=pb.Load(handle=PROGRAM, program=add_program())),
    )
    assert other.do(submit=submit(A, A, B, reply=True)).WhichOneof("result") == "done"


def test_handles_are_made_once(open_session: Open) -> None:
    opened = open_session()
    make = {"sizes": [8]}
    assert not opened.do(allocate=pb.Allocate(handles=[A], **make)).HasField("error")
    for bad in (A, 0, 1 << 32, 7):
        assert status(opened.do(allocate=pb.Allocate(handles=[bad], **make))) == Status.BAD_BYTES
    assert not opened.do(free=pb.Free(buffers=[A])).HasField("error")
    assert status(opened.do(free=pb.Free(buffers=[A]))) == Status.STALE_HANDLE
    assert status(opened.do(allocate=pb.Allocate(handles=[A], **make))) == Status.BAD_BYTES
    opened.allocate(handle(1, 2), 8)
    assert status(opened.do(read=pb.ReadRange(buffer=A, size=8))) == Status.STALE_HANDLE
    assert opened.read(handle(1, 2), 0, 8) == bytes(8)


BAD_FRAMES: dict[str, tuple[dict[str, Any], Status]] = {
    "read-outside": ({"read": pb.ReadRange(buffer=A, offset=1, size=SIZE)}, Status.SHAPE),
    "read-wrapping": ({"read": pb.ReadRange(buffer=A, offset=2**64 - 1, size=2)}, Status.SHAPE),
    "read-large": ({"read": pb.ReadRange(buffer=A, size=(1 << 20) + 1)}, Status.LIMIT),
    "write-outside": ({"write": pb.WriteRange(buffer=A, offset=SIZE, data=b"x")}, Status.SHAPE),
    "write-large": ({"write": pb.WriteRange(buffer=A, data=bytes((1 << 20) + 1))}, Status.LIMIT),
    "allocate-unequal": ({"allocate": pb.Allocate(handles=[handle(20)])}, Status.BAD_BYTES),
    "allocate-huge": ({"allocate": pb.Allocate(handles=[handle(20)], sizes=[2**63])}, Status.OUT_OF_MEMORY),
    "load-short": ({"load": pb.Load(handle=handle(20), program=b"UMDCMD")}, Status.BAD_BYTES),
    "load-unknown-hash": ({"load": pb.Load(handle=handle(20))}, Status.STALE_HANDLE),
    "load-again": ({"load": pb.Load(handle=PROGRAM, program=add_program())}, Status.BAD_BYTES),
    "submit-no-program": ({"submit": submit(B, B, C, program=handle(2))}, Status.STALE_HANDLE),
    "submit-few": ({"submit": pb.Submit(program=PROGRAM, buffers=[A, B])}, Status.INPUT_COUNT),
    "submit-small": ({"submit": pb.Submit(program=PROGRAM, buffers=[A, B, C], sizes=[4, 4, 4])}, Status.SHAPE),
    "submit-unequal": ({"submit": pb.Submit(program=PROGRAM, buffers=[A, B, C], offsets=[0, 0])}, Status.BAD_BYTES),
    "submit-outside": ({"submit": pb.Submit(program=PROGRAM, buffers=[A, B, C], offsets=[2**63, 0, 0])}, Status.SHAPE),
    "submit-overlap": ({"submit": submit(A, B, B)}, Status.SHAPE),
    "submit-values": ({"submit": submit(A, B, C, values=[1])}, Status.INPUT_COUNT),
    "submit-null-fence": ({"submit": submit(A, B, C, waits=[pb.FenceValue(value=1)])}, Status.STALE_HANDLE),
    "submit-signal-0": ({"submit": submit(A, B, C, signals=[pb.FenceValue(fence=FENCE)])}, Status.LIMIT),
    "wait-null-fence": ({"wait": pb.Wait(fence=pb.FenceValue(value=1))}, Status.STALE_HANDLE),
    "transfer-outside": ({"transfer": pb.Transfer(id=1, direction=WRITE, buffer=A, size=SIZE + 1)}, Status.SHAPE),
    "transfer-huge": ({"transfer": pb.Transfer(id=1, direction=WRITE, buffer=A, size=1 << 40)}, Status.LIMIT),
    "transfer-empty": ({"transfer": pb.Transfer(id=1, direction=WRITE, buffer=A)}, Status.LIMIT),
    "transfer-direction": ({"transfer": pb.Transfer(id=1, direction=UNKNOWN, buffer=A, size=4)}, Status.BAD_BYTES),
    "transfer-stale": (
        {"transfer": pb.Transfer(id=1, direction=WRITE, buffer=handle(99), size=4)},
        Status.STALE_HANDLE,
    ),
    "free-stale": ({"free": pb.Free(programs=[handle(99)])}, Status.STALE_HANDLE),
    "open-again": ({"open": pb.Open(protocol=1)}, Status.BAD_BYTES),
    "nothing": ({}, Status.BAD_BYTES),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_is_answered_and_the_session_goes_on(session: Any, name: str) -> None:
    command, wanted = BAD_FRAMES[name]
    assert status(session.do(**command)) == wanted
    assert values(session.read(A, 0, SIZE)) == list(X)
    assert session.do(submit=submit(A, A, D, reply=True)).WhichOneof("result") == "done"
    assert values(session.read(D, 0, SIZE)) == list(X + X)


def test_seq_rises(session: Any) -> None:
    del session.replies[1]
    session.send(pb.Frame(seq=1, read=pb.ReadRange(buffer=A, size=4)))
    assert status(session.answer(1)) == Status.BAD_BYTES
    assert values(session.read(A, 0, SIZE)) == list(X)


def test_what_was_not_computed_is_not_read(session: Any) -> None:
    """A refused submission poisons its output, and what depends on that; the rest goes on; a rewrite heals."""
    session.send(session.frame(write=pb.WriteRange(buffer=D, data=X.tobytes())))
    assert status(session.do(submit=submit(A, B, C, values=[1]))) == Status.INPUT_COUNT
    reply = session.do(read=pb.ReadRange(buffer=C, size=SIZE))
    assert status(reply) == Status.POISONED
    facts = json.loads(reply.error.facts)
    assert facts["root_status"] == Status.INPUT_COUNT
    assert values(session.read(A, 0, SIZE)) == list(X)
    assert status(session.do(submit=submit(A, C, D))) == Status.POISONED
    assert json.loads(session.do(read=pb.ReadRange(buffer=D, size=4)).error.facts)["root"] == facts["root"]
    assert not session.do(submit=submit(A, A, C)).HasField("error")
    assert values(session.read(C, 0, SIZE)) == list(X + X)
    session.send(session.frame(write=pb.WriteRange(buffer=D, data=X.tobytes())))
    assert values(session.read(D, 0, SIZE)) == list(X)


def test_a_handle_whose_making_failed_keeps_the_reason(session: Any) -> None:
    program, buffer = handle(30), handle(31)
    assert status(session.do(load=pb.Load(handle=program, program=b"nothing"))) == Status.BAD_BYTES
    reply = session.do(submit=submit(A, B, C, program=program))
    assert status(reply) == Status.POISONED
    assert json.loads(reply.error.facts)["root_status"] == Status.BAD_BYTES
    assert status(session.do(read=pb.ReadRange(buffer=C, size=4))) == Status.POISONED
    assert status(session.do(allocate=pb.Allocate(handles=[buffer], sizes=[1 << 62]))) == Status.OUT_OF_MEMORY
    reply = session.do(write=pb.WriteRange(buffer=buffer, data=b"x"))
    assert json.loads(reply.error.facts)["root_status"] == Status.OUT_OF_MEMORY
    assert not session.do(free=pb.Free(buffers=[buffer], programs=[program])).HasField("error")


def test_fences(session: Any) -> None:
    wait = session.send(session.frame(wait=pb.Wait(fence=pb.FenceValue(fence=FENCE, value=2))))
    first = session.send(
        session.frame(submit=submit(A, A, B, waits=[pb.FenceValue(fence=FENCE, value=1)], reply=True, queue=3))
    )
    assert session.do(flush=pb.Flush()).HasField("done")
    assert wait not in session.replies
    assert first not in session.replies
    read = session.send(session.frame(read=pb.ReadRange(buffer=B, size=SIZE)))
    assert session.do(flush=pb.Flush()).HasField("done")
    assert read not in session.replies
    signal = session.send(session.frame(submit=submit(A, A, C, signals=[pb.FenceValue(fence=FENCE, value=1)], queue=4)))
    assert session.answer(first).WhichOneof("result") == "done"
    assert values(session.answer(read).data) == list(X + X)
    assert wait not in session.replies
    assert signal not in session.replies
    session.send(session.frame(signal=pb.FenceValue(fence=FENCE, value=5)))
    assert session.answer(wait).done.value == 5
    assert session.ask(wait=pb.Wait(fence=pb.FenceValue(fence=FENCE))).done.value == 5
    assert status(session.do(signal=pb.FenceValue(fence=FENCE, value=4))) == Status.LIMIT


def test_signals_fire_even_when_the_work_is_refused(session: Any) -> None:
    bad = submit(A, B, C, values=[1], signals=[pb.FenceValue(fence=FENCE, value=1)])
    assert status(session.do(submit=bad)) == Status.INPUT_COUNT
    assert session.ask(wait=pb.Wait(fence=pb.FenceValue(fence=FENCE, value=1))).done.value == 1


def test_a_wait_ends_in_time(session: Any) -> None:
    reply = session.ask(wait=pb.Wait(fence=pb.FenceValue(fence=FENCE, value=1), timeout_ms=50))
    assert status(reply) == Status.CANCELLED


def test_waits_are_limited(session: Any) -> None:
    wait = pb.Wait(fence=pb.FenceValue(fence=FENCE, value=1))
    frames = [session.frame(wait=wait) for _ in range(DEFAULT.waits + 1)]
    assert status(session.answer(session.send(*frames))) == Status.LIMIT
    session.send(session.frame(signal=pb.FenceValue(fence=FENCE, value=1)))
    assert session.answer(frames[-2].seq).HasField("done")


def test_programs_by_hash(open_session: Open, client: Client) -> None:
    graph = umd.Graph("by hash")
    graph.input("x", umd.TensorDesc("f32", (6,)))
    graph.input("y", umd.TensorDesc("f32", (6,)))
    graph.output(graph.add("Add", ["x", graph.add("Add", ["x", "y"])]))
    raw = bytes(client.translate_graph(graph))
    opened = open_session()
    digest = hashlib.sha256(raw).digest()
    assert not opened.do(load=pb.Load(handle=PROGRAM, sha256=digest)).HasField("error")
    assert status(opened.do(load=pb.Load(handle=handle(2), sha256=bytes(32)))) == Status.STALE_HANDLE
    opened.send(opened.frame(allocate=pb.Allocate(handles=[A, B, C], sizes=[SIZE] * 3)))
    opened.send(opened.frame(write=pb.WriteRange(buffer=A, data=X.tobytes())))
    opened.send(opened.frame(submit=submit(A, A, C)))
    assert values(opened.read(C, 0, SIZE)) == list(3 * X)


def test_large_reads_are_answered_in_several_messages(open_session: Open) -> None:
    opened = open_session()
    size = 1 << 20
    opened.allocate(A, size)
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
    opened.send(opened.frame(write=pb.WriteRange(buffer=A, data=data)))
    frames = [opened.frame(read=pb.ReadRange(buffer=A, size=size)) for _ in range(40)]
    opened.send(*frames)  # more than the server lets lie unread
    largest = 0
    while frames[-1].seq not in opened.replies:
        largest = max(largest, opened.next().ByteSize())
    assert largest < 3 << 20
    assert {opened.replies[frame.seq].data for frame in frames} == {data}


@pytest.mark.parametrize(
    ("first", "wanted"),
    [
        (pb.Frame(seq=1, flush=pb.Flush()), Status.BAD_BYTES),
        (pb.Frame(seq=1, open=pb.Open(protocol=1, device="sim:7")), Status.UNSUPPORTED),
        (None, Status.BAD_BYTES),
    ],
    ids=["no-open", "no-device", "no-frame"],
)
def test_a_session_that_does_not_begin_well(open_session: Open, first: Any, wanted: Status) -> None:
    opened = open_session(open_it=False)
    opened.send_raw(pb.SessionRequest(frames=[first] if first else []).SerializeToString())
    assert status(opened.next().replies[0]) == wanted
    with pytest.raises(StopIteration):
        next(opened.call)


def test_another_protocol_version_is_named(open_session: Open) -> None:
    opened = open_session(open_it=False)
    assert status(opened.ask(open=pb.Open(protocol=2))) == Status.LIMIT
    assert opened.ask(open=pb.Open(protocol=1)).WhichOneof("result") == "opened"


def test_a_large_program_is_read_though_its_frame_is_not_parsed(open_session: Open) -> None:
    opened = open_session()
    large = add_program() + bytes(DEFAULT.frame)
    assert status(opened.do(load=pb.Load(handle=PROGRAM, program=large))) == Status.BAD_BYTES
    graph = umd.Graph("large")
    x = graph.input("x", umd.TensorDesc("f32", (1 << 20,)))
    c = graph.constant(np.ones(1 << 20, np.float32))
    graph.output(graph.add("Add", [x, c]))
    raw = bytes(umd.translate(graph))
    assert len(raw) > DEFAULT.frame
    assert not opened.do(load=pb.Load(handle=handle(2), program=raw)).HasField("error")
    opened.send(opened.frame(allocate=pb.Allocate(handles=[A, B], sizes=[4 << 20] * 2)))
    opened.send(opened.frame(submit=pb.Submit(program=handle(2), buffers=[A, B])))
    assert values(opened.read(B, (4 << 20) - 8, 8)) == [1, 1]
