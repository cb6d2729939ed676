"""Submissions: priority, deadline, cancel, watchdog, profile, other orders; reads and writes behind work that waits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.grpc.conftest import FrameSession, ServerProcess
from umd_core.device import Binding, FenceValue
from umd_core.errors import CancelledError, PoisonedError, Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.messages import chunks, wire

MODULE = (str(Path(__file__).with_name("known_callers.py")),)
X = np.arange(6, dtype=np.float32)
SIZE = X.nbytes
ADD = bytes(umd.translate("Add", [X, X]))
A, B, C, D = (number | 1 << 32 for number in range(1, 5))
FENCE, OTHER = 9 | 1 << 32, 10 | 1 << 32
SQUARE = np.eye(700, dtype=np.float32)
WRITE: Any = pb.DIRECTION_WRITE
READ: Any = pb.DIRECTION_READ


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server where a submission may run for 1.5 s."""
    process = ServerProcess(json.dumps({"limits": {"submission_seconds": 1.5}}), module=MODULE)
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


@pytest.fixture
def session(open_session: Callable[..., FrameSession]) -> FrameSession:
    """A session with buffers A (0…5), B, C, D and the program A, which adds."""
    opened = open_session()
    opened.send(
        opened.frame(allocate=pb.Allocate(handles=[A, B, C, D], sizes=[SIZE] * 4)),
        opened.frame(load=pb.Load(handle=A, program=ADD)),
        opened.frame(write=pb.WriteRange(buffer=A, data=X.tobytes())),
    )
    return opened


@pytest.fixture
def device(server: ServerProcess) -> Iterator[RemoteDevice]:
    opened = RemoteDevice(server.address)
    yield opened
    opened.close()


def at(fence: int, value: int) -> pb.FenceValue:
    return pb.FenceValue(fence=fence, value=value)


def submit(a: int, b: int, out: int, *waits: pb.FenceValue, **fields: Any) -> pb.Submit:
    return pb.Submit(program=A, buffers=[a, b, out], sizes=[SIZE] * 3, waits=waits, **fields)


def facts(reply: pb.Reply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.error.facts)
    return found


def root(session: FrameSession, buffer: int) -> int:
    """Returns the status of what spoilt a buffer."""
    reply = session.do(read=pb.ReadRange(buffer=buffer, size=4))
    assert reply.error.status == Status.POISONED, reply
    return int(facts(reply)["root_status"])


# order


def test_independent_queues_end_out_of_order(session: FrameSession) -> None:
    first = session.send(session.frame(submit=submit(A, A, B, at(FENCE, 1), queue=1, reply=True)))
    second = session.send(session.frame(submit=submit(A, A, C, queue=2, reply=True)))
    assert session.answer(second).HasField("done")
    assert [(progress.queue, progress.seq) for progress in session.last.completed_through] == [(2, second)]
    assert first not in session.replies
    third = session.send(session.frame(submit=submit(A, A, D, queue=1, reply=True)))
    session.do(flush=pb.Flush())
    assert third not in session.replies
    session.send(session.frame(signal=at(FENCE, 1)))
    assert session.answer(third).HasField("done")
    assert session.replies[first].HasField("done")
    assert (1, third) in {(progress.queue, progress.seq) for progress in session.last.completed_through}


def test_the_highest_priority_starts_first(session: FrameSession) -> None:
    """Three submissions write the same buffer once one fence is there: the last to start wins."""
    session.send(
        session.frame(submit=submit(A, A, B)),
        session.frame(submit=submit(A, B, C)),
        *(
            session.frame(submit=submit(source, source, D, at(FENCE, 1), queue=queue, priority=priority))
            for queue, source, priority in ((1, A, 0), (2, B, 7), (3, C, -3))
        ),
        session.frame(signal=at(FENCE, 1)),
    )
    assert session.read(D, 0, SIZE) == (6 * X).tobytes()


def test_the_root_cause_stays_through_many_levels(session: FrameSession) -> None:
    """A chain on three queues, each waiting for the one before: what failed first is named at the end."""
    bad = session.frame(submit=submit(A, A, B, at(FENCE, 1), queue=1, signals=[at(OTHER, 1)], deadline_ms=1))
    second = session.frame(submit=submit(B, A, C, at(OTHER, 1), queue=2, signals=[at(OTHER, 2)]))
    third = session.frame(submit=submit(C, A, D, at(OTHER, 2), queue=3))
    session.send(bad, second, third)
    reply = session.answer(third.seq)
    assert session.answer(bad.seq).error.status == Status.CANCELLED
    for each in (session.answer(second.seq), reply):
        assert each.error.status == Status.POISONED
        assert facts(each)["root_status"] == Status.CANCELLED
        assert "deadline" in facts(each)["root"]
    assert root(session, D) == Status.CANCELLED


def test_repeated_frames_mean_what_they_say(session: FrameSession) -> None:
    """A frame that comes again is not parsed again; handles that are freed, failures and numbers count all the same."""
    for turn in range(1, 6):
        session.send(session.frame(submit=submit(A, A, B)), session.frame(submit=submit(B, A, C, reply=True)))
        assert session.answer(session.seq).HasField("done")
        assert session.read(C, 0, SIZE) == (3 * turn * X).tobytes()
        session.send(session.frame(write=pb.WriteRange(buffer=A, data=((turn + 1) * X).tobytes())))
    again = session.frame(submit=submit(B, A, C, reply=True))
    assert session.answer(session.send(again)).HasField("done")
    del session.replies[again.seq]
    session.send(again)
    assert session.answer(again.seq).error.status == Status.BAD_BYTES  # its number does not rise
    assert session.do(submit=submit(A, A, B, values=[1])).error.status == Status.INPUT_COUNT
    for _ in range(3):
        assert session.do(submit=submit(B, A, C, reply=True)).error.status == Status.POISONED
    session.send(session.frame(submit=submit(A, A, B)), session.frame(free=pb.Free(buffers=[C])))
    assert session.do(submit=submit(B, A, C, reply=True)).error.status == Status.STALE_HANDLE


def test_short_and_long_messages_keep_their_order(session: FrameSession) -> None:
    """What is short is carried out where it arrives, what is long on the device's thread; each sees what was before."""
    graph = umd.Graph("count")
    x = graph.input("x", umd.TensorDesc.of(X))
    graph.output(graph.add("Add", [x, graph.constant(np.float32(1))]), alias=x)
    program, chance, count = 11 | 1 << 32, random.Random(0), 0
    session.send(session.frame(load=pb.Load(handle=program, program=bytes(umd.translate(graph)))))
    for _ in range(300):
        steps = chance.choice((1, 1, 1, 2, 300))
        work = [
            session.frame(submit=pb.Submit(program=program, buffers=[A, A], sizes=[SIZE] * 2)) for _ in range(steps)
        ]
        count += steps
        if chance.random() < 0.5:
            session.send(*work)
        else:
            last = session.send(*work, session.frame(read=pb.ReadRange(buffer=A, size=SIZE)))
            assert session.answer(last).data == (X + count).tobytes()


@pytest.mark.parametrize("seq_last", [False, True])
def test_frames_written_in_another_way(session: FrameSession, seq_last: bool) -> None:
    """Protobuf lets a number stand behind the command, and twice: the last one counts."""
    for _ in range(4):
        frame = session.frame(submit=submit(A, A, B, reply=True))
        body = pb.Frame(submit=frame.submit).SerializeToString()
        number = pb.Frame(seq=frame.seq).SerializeToString()
        first = b"" if seq_last else pb.Frame(seq=1).SerializeToString()
        session.send_raw(wire.head(1, len(first + body + number)) + first + body + number)
        assert session.answer(frame.seq).HasField("done")


# ends before the end


def test_a_deadline_cancels_what_waits(session: FrameSession) -> None:
    late = session.send(session.frame(submit=submit(A, A, B, at(FENCE, 1), deadline_ms=30, signals=[at(OTHER, 1)])))
    after = session.send(session.frame(submit=submit(A, A, C, reply=True)))
    assert session.ask(wait=pb.Wait(fence=at(OTHER, 1))).done.value == 1
    assert session.answer(late).error.status == Status.CANCELLED
    assert session.answer(after).HasField("done")
    assert root(session, B) == Status.CANCELLED
    session.send(session.frame(signal=at(FENCE, 1)))
    assert root(session, B) == Status.CANCELLED
    session.send(session.frame(submit=submit(A, A, B, deadline_ms=60_000)))
    assert session.read(B, 0, SIZE) == (X + X).tobytes()


@pytest.mark.parametrize("named", ["seq", "queue", "all"])
def test_cancel(session: FrameSession, named: str) -> None:
    first = session.send(session.frame(submit=submit(A, A, B, at(FENCE, 1), queue=1)))
    second = session.send(session.frame(submit=submit(A, A, C, at(FENCE, 1), queue=2, reply=True)))
    cancel = {"seq": pb.Cancel(seqs=[first]), "queue": pb.Cancel(queues=[1]), "all": pb.Cancel()}[named]
    assert not session.do(cancel=cancel).HasField("error")
    assert session.replies[first].error.status == Status.CANCELLED
    assert (second in session.replies) == (named == "all")
    assert root(session, B) == Status.CANCELLED
    session.send(session.frame(signal=at(FENCE, 1)))
    reply = session.answer(second)
    assert reply.HasField("done") == (named != "all")
    session.send(session.frame(submit=submit(A, A, B, queue=1)))  # what comes later is not meant
    assert session.read(B, 0, SIZE) == (X + X).tobytes()


def test_cancel_overtakes_what_waits_to_be_carried_out(session: FrameSession, server: ServerProcess) -> None:
    """A frame that waits for bytes holds up those behind it; a Cancel among them is heard at once."""
    transfer = session.frame(transfer=pb.Transfer(id=1, direction=WRITE, buffer=A, size=SIZE))
    blocked = session.frame(submit=submit(A, A, B)).seq
    frames = [
        pb.Frame(seq=blocked, submit=submit(A, A, B)),
        session.frame(cancel=pb.Cancel(seqs=[blocked])),
        session.frame(flush=pb.Flush()),
    ]
    flush = session.send(transfer, *frames)
    raw = chunks.write_request(session.opened.session, 1, 0, memoryview(X.tobytes()))
    session.channel.stream_unary("/umd.runtime.Runtime/Write")(iter([raw]), timeout=20)
    session.answer(flush)
    assert session.replies[blocked].error.status == Status.CANCELLED
    assert root(session, B) == Status.CANCELLED


def powers(device: RemoteDevice, count: int) -> tuple[Any, list[Any]]:
    """Returns a program of that many matrix products, and the buffers that it reads and writes."""
    graph = umd.Graph("powers")
    x = value = graph.input("x", umd.TensorDesc.of(SQUARE))
    for _ in range(count):
        value = graph.add("MatMul", [value, x])
    graph.output(value)
    buffers = [device.allocate(SQUARE.nbytes) for _ in range(2)]
    device.write(buffers[0], 0, SQUARE)
    return device.load(umd.translate(graph)), [Binding(buffer, 0, SQUARE.nbytes) for buffer in buffers]


ENDS: dict[str, Callable[[RemoteDevice, Any], object]] = {
    "cancel": lambda device, ticket: ticket.cancel(),
    "watchdog": lambda device, ticket: None,
}


@pytest.mark.parametrize("name", [*ENDS, "deadline"])
def test_running_work_stops_at_its_next_command(device: RemoteDevice, name: str) -> None:
    program, bindings = powers(device, 3_000)
    device.synchronize()
    ticket = device.submit(program, bindings, deadline=0.2 if name == "deadline" else 0.0)
    device.flush()
    ENDS.get(name, ENDS["watchdog"])(device, ticket)
    with pytest.raises(CancelledError, match={"watchdog": "1.5 s", "cancel": "client", "deadline": "deadline"}[name]):
        ticket.wait(20)
    with pytest.raises(PoisonedError) as caught:
        device.read(bindings[1].buffer, 0, 4)
    assert caught.value.facts()["root_status"] == Status.CANCELLED
    short, bindings = powers(device, 3)
    device.submit(short, bindings, deadline=60).wait()
    np.testing.assert_array_equal(np.frombuffer(device.read(*bindings[1]), np.float32).reshape(700, 700), SQUARE)


def test_the_end_of_a_session_stops_its_work(server: ServerProcess, device: RemoteDevice) -> None:
    other = RemoteDevice(server.address)
    program, bindings = powers(other, 3_000)
    other.submit(program, bindings)
    other.flush()
    other._session.link.abandon()
    device.synchronize()
    other.close()


# profile


def test_a_profile_names_every_command(device: RemoteDevice) -> None:
    program, bindings = powers(device, 3)
    ticket = device.submit(program, bindings, profile=True)
    ticket.wait()
    assert [(time.command, time.kernel) for time in ticket.times] == [(n, "gemm_kernel") for n in range(3)]
    assert all(time.nanoseconds > 0 for time in ticket.times)
    plain = device.submit(program, bindings)
    plain.wait()
    assert plain.times == []


def test_a_profile_tells_of_what_ran_before_a_failure(session: FrameSession) -> None:
    bad = session.ask(submit=submit(A, A, B, values=[3], profile=True))
    assert (bad.error.status, len(bad.profile)) == (Status.INPUT_COUNT, 0)
    good = session.ask(submit=submit(A, A, B, profile=True))
    assert good.HasField("done")
    assert [time.kernel for time in good.profile] == ["elementwise_add_kernel"]


# reads and writes behind work that waits


def test_bytes_keep_their_place_in_the_order(session: FrameSession) -> None:
    """Reads, writes, frees and submissions on a buffer that waiting work uses happen in the order of the frames."""
    session.send(session.frame(submit=submit(A, A, B, at(FENCE, 1), queue=1)))
    reads = [session.send(session.frame(read=pb.ReadRange(buffer=B, size=SIZE)))]
    session.send(session.frame(write=pb.WriteRange(buffer=B, data=(7 * X).tobytes())))
    reads.append(session.send(session.frame(read=pb.ReadRange(buffer=B, size=SIZE))))
    session.send(session.frame(submit=submit(B, A, C, queue=2)))
    reads.append(session.send(session.frame(read=pb.ReadRange(buffer=C, size=SIZE))))
    session.send(session.frame(submit=submit(A, A, B, queue=3)))
    reads.append(session.send(session.frame(read=pb.ReadRange(buffer=B, size=SIZE))))
    session.send(session.frame(free=pb.Free(buffers=[B])))
    session.do(flush=pb.Flush())
    assert not set(reads) & set(session.replies)
    assert session.read(A, 0, SIZE) == X.tobytes()  # what waits only reads it
    session.send(session.frame(signal=at(FENCE, 1)))
    got = [session.answer(seq).data for seq in reads]
    assert got == [(times * X).tobytes() for times in (2, 7, 8, 2)]
    assert session.do(read=pb.ReadRange(buffer=B, size=4)).error.status == Status.STALE_HANDLE


def test_a_read_behind_cancelled_work_tells_why(session: FrameSession) -> None:
    session.send(session.frame(submit=submit(A, A, B, at(FENCE, 1), deadline_ms=20)))
    reply = session.ask(read=pb.ReadRange(buffer=B, size=4))
    assert facts(reply)["root_status"] == Status.CANCELLED


def test_transfers_behind_work_that_waits(session: FrameSession) -> None:
    session.send(
        session.frame(submit=submit(A, A, B, at(FENCE, 1), queue=1)),
        session.frame(transfer=pb.Transfer(id=1, direction=READ, buffer=B, size=SIZE)),
        session.frame(submit=submit(A, B, C, queue=2)),
        session.frame(signal=at(FENCE, 1)),
    )
    request = pb.ReadRequest(session=session.opened.session, transfer=1).SerializeToString()
    (raw,) = session.channel.unary_stream("/umd.runtime.Runtime/Read")(request, timeout=20)
    chunk: Any = chunks.parse_read_response(raw)
    assert bytes(chunk.data) == (X + X).tobytes()
    assert session.read(C, 0, SIZE) == (3 * X).tobytes()


def test_what_is_parked_is_limited(session: FrameSession) -> None:
    session.send(session.frame(submit=submit(A, A, B, at(FENCE, 1))))
    frames = [session.frame(read=pb.ReadRange(buffer=B, size=4)) for _ in range(1_100)]
    assert session.answer(session.send(*frames)).error.status == Status.LIMIT
    assert session.do(write=pb.WriteRange(buffer=B, data=bytes(4))).error.status == Status.LIMIT
    session.send(session.frame(signal=at(FENCE, 1)))
    assert session.answer(frames[0].seq).data == (X + X).tobytes()[:4]
    assert root(session, B) == Status.LIMIT  # what came after the refused write is not taken for written


def test_the_client_reads_behind_work_that_waits(device: RemoteDevice) -> None:
    program, fence = device.load(ADD), device.fence()
    a, b = device.tensor(X), device.tensor(np.zeros_like(X))
    device.submit(program, [a.binding, a.binding, b.binding], waits=[FenceValue(fence, 1)])
    fence.signal(1)
    np.testing.assert_array_equal(b.numpy(), X + X)
