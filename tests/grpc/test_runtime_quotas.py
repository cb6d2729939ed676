"""What one identity may use, and what it never sees of another: quotas, devices, programs, memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.grpc.conftest import FrameSession, ServerProcess
from umd_core.commands import READ, WRITE, CommandBuffer, Copy, Fill, Ref, Slot, SlotKind
from umd_core.encoding import encode
from umd_core.errors import Status
from umd_grpc._pb.umd import graph_pb2, translator_pb2
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.messages import chunks
from umd_grpc.messages.graph_messages import write_graph

MODULE = (str(Path(__file__).with_name("known_callers.py")),)
MIB, KIB = 1 << 20, 1 << 10
CALLERS: dict[str, Any] = {
    "memory": {"quota": {"memory": MIB}},
    "sessions": {"quota": {"sessions": 2}},
    "bytes": {"quota": {"in_flight": 64 * KIB}},
    "ops": {"quota": {"ops_per_second": 5}},
    "nobody": {"devices": []},
    "anna": {},
    "bob": {},
}
X = np.arange(6, dtype=np.float32)
SIZE = X.nbytes
ADD = bytes(umd.translate("Add", [X, X]))
A, B, C, D = (number | 1 << 32 for number in range(1, 5))
TO_DEVICE: Any = pb.DIRECTION_WRITE


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server with callers of all kinds."""
    process = ServerProcess(json.dumps({"callers": CALLERS}), module=MODULE)
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


def who(name: str) -> Any:
    return (("who", name),)


@pytest.fixture
def as_(open_session: Callable[..., FrameSession]) -> Callable[..., FrameSession]:
    """Opens sessions of a caller."""
    return lambda name, **fields: open_session(metadata=who(name), **fields)


def check_quota(error: Any, what: str, limit: int) -> None:
    """Checks an error that says what is used up, how much there is, and when to try again."""
    assert error.status == Status.QUOTA, error
    facts = json.loads(error.facts)
    assert (facts["what"], facts["limit"]) == (what, limit)
    assert 0 < facts["retry_after_seconds"] <= 10


def allocate(session: FrameSession, handle: int, size: int) -> Any:
    return session.do(allocate=pb.Allocate(handles=[handle], sizes=[size])).error


def arena_program(size: int) -> bytes:
    """Returns a program with that much transient memory."""
    graph = umd.Graph("arena")
    x = graph.input("x", umd.TensorDesc("f32", (size // 4,)))
    graph.output(graph.add("ReduceMax", [graph.add("Relu", [x])], {"keepdims": 0}))
    return bytes(umd.translate(graph))


# memory


def test_memory_is_limited_over_all_sessions(as_: Any, server: ServerProcess) -> None:
    first, second = as_("memory"), as_("memory")
    assert not allocate(first, A, 600 * KIB).status
    check_quota(allocate(second, A, 600 * KIB), "memory in bytes", MIB)
    assert not allocate(second, B, 400 * KIB).status
    assert not allocate(as_("bob"), A, 600 * KIB).status
    reply = second.do(write=pb.WriteRange(buffer=A, data=b"1234"))
    assert json.loads(reply.error.facts)["root_status"] == Status.QUOTA
    first.do(free=pb.Free(buffers=[A]))
    assert not allocate(second, C, 600 * KIB).status
    second.close()
    assert not allocate(first, B, MIB).status
    first.abandon()
    probe = as_("memory")
    numbers = iter(range(1, 1000))
    server.wait_for(lambda: not allocate(probe, next(numbers) | 1 << 32, MIB).status)
    probe.close()


def test_the_memory_of_programs_counts_once(as_: Any) -> None:
    session, raw = as_("memory"), arena_program(600 * KIB)
    for number in (1, 2):  # the same program again takes no more
        assert not session.do(load=pb.Load(handle=number | 1 << 32, program=raw)).HasField("error")
    check_quota(allocate(session, A, 600 * KIB), "memory in bytes", MIB)
    other = arena_program(500 * KIB)
    check_quota(session.do(load=pb.Load(handle=9 | 1 << 32, program=other)).error, "memory in bytes", MIB)
    session.do(free=pb.Free(programs=[A]))
    check_quota(allocate(session, B, 600 * KIB), "memory in bytes", MIB)
    session.do(free=pb.Free(programs=[B]))
    assert not allocate(session, C, MIB).status
    session.close()


def test_memory_that_waiting_work_holds_still_counts(as_: Any) -> None:
    session = as_("memory")
    session.send(session.frame(load=pb.Load(handle=A, program=ADD)))
    for handle in (A, B, C):
        assert not allocate(session, handle, 300 * KIB).status
    wait = [pb.FenceValue(fence=D, value=1)]
    session.send(
        session.frame(submit=pb.Submit(program=A, buffers=[A, B, C], sizes=[SIZE] * 3, waits=wait)),
        session.frame(free=pb.Free(buffers=[A, B, C])),
    )
    check_quota(allocate(session, D, 300 * KIB), "memory in bytes", MIB)
    session.send(session.frame(signal=wait[0]))
    assert not allocate(session, 5 | 1 << 32, MIB).status
    session.close()


def raw_program(commands: list[Any], size: int) -> bytes:
    """Returns a program over one argument, slot 0, and an arena, slot 1, of that many bytes each."""
    slots = [
        Slot(SlotKind.ARGUMENT, WRITE, 0, 4, size, 0, 0),
        Slot(SlotKind.ARENA, READ | WRITE, 0, 256, size, 0, size),
    ]
    return encode(CommandBuffer(slots=slots, commands=commands))


@pytest.mark.parametrize("first", ["anna", "bob"])
def test_a_hostile_program_finds_nothing_in_its_arena(as_: Any, first: str) -> None:
    """It reads transient memory that it never wrote, after somebody filled as much with a secret."""
    size = 256 * KIB
    out = Copy(Ref(0, WRITE, 0, size), Ref(1, READ, 0, size))
    fill = raw_program([Fill(Ref(1, WRITE, 0, size), b"\xab" * 4), out._replace(deps=(0,))], size)
    look = raw_program([out], size)
    owner = as_(first)
    for number in range(1, 9):
        handle = number | 1 << 32
        assert not allocate(owner, handle, size).status
        owner.send(owner.frame(load=pb.Load(handle=handle, program=fill)))
        owner.send(owner.frame(write=pb.WriteRange(buffer=handle, data=b"\xab" * size)))
        assert owner.do(submit=pb.Submit(program=handle, buffers=[handle], reply=True)).HasField("done")
    owner.close()
    thief = as_("bob")
    for number in range(1, 9):
        handle = number | 1 << 32
        assert not allocate(thief, handle, size).status
        assert not thief.do(load=pb.Load(handle=handle, program=look)).HasField("error")
        assert thief.do(submit=pb.Submit(program=handle, buffers=[handle], reply=True)).HasField("done")
        assert thief.read(handle, 0, size) == bytes(size)
    thief.close()


# sessions, bytes, operations


def test_sessions_are_limited(as_: Any, server: ServerProcess) -> None:
    opened = [as_("sessions") for _ in range(2)]
    refused = as_("sessions", open_it=False)
    refused.send(refused.frame(open=pb.Open(protocol=1)))
    check_quota(refused.next().replies[0].error, "sessions", 2)
    opened[0].close()
    as_("sessions").close()
    opened[1].abandon()

    def both() -> bool:
        found = []
        for _ in range(2):
            session = as_("sessions", open_it=False)
            session.send(session.frame(open=pb.Open(protocol=1)))
            found.append((session.next().replies[0].error.status == 0, session))
        for good, session in found:
            if good:
                session.close()
        return all(good for good, _ in found)

    server.wait_for(both)


def test_whoever_has_much_under_way_is_not_read_from(as_: Any) -> None:
    """Bytes that wait in one session hold up the others of the same identity, and nobody else's."""
    first, second, other = as_("bytes"), as_("bytes"), as_("bob")
    for session in (first, second, other):
        assert not allocate(session, A, 48 * KIB).status
    large = bytes(48 * KIB)
    first.send(first.frame(transfer=pb.Transfer(id=1, direction=TO_DEVICE, buffer=A, size=4)))
    first.do(flush=pb.Flush())
    first.send(first.frame(write=pb.WriteRange(buffer=A, data=large)))  # waits for the transfer
    write = [second.frame(write=pb.WriteRange(buffer=A, data=large)), second.frame(flush=pb.Flush())]
    second.send(*write)
    for _ in range(3):
        assert other.do(write=pb.WriteRange(buffer=A, data=large)).WhichOneof("result") is None
    assert write[1].seq not in second.replies
    raw = chunks.write_request(first.opened.session, 1, 0, memoryview(b"1234"))
    first.channel.stream_unary("/umd.runtime.Runtime/Write")(iter([raw]), timeout=20, metadata=who("bytes"))
    assert second.answer(write[1].seq).HasField("done")
    for _ in range(20):
        second.send(second.frame(write=pb.WriteRange(buffer=A, data=large)))
    second.do(flush=pb.Flush())
    second.send(second.frame(write=pb.WriteRange(buffer=A, data=large)))
    second.abandon()
    assert first.do(write=pb.WriteRange(buffer=A, data=large)).WhichOneof("result") is None
    first.close()


def test_a_chunk_comes_through_when_others_wait_for_it(as_: Any) -> None:
    """What waits for a transfer fills the room, and the chunk is larger than what is left."""
    session, size = as_("bytes"), 60 * KIB
    assert not allocate(session, A, size).status
    session.send(session.frame(transfer=pb.Transfer(id=1, direction=TO_DEVICE, buffer=A, size=size)))
    session.do(flush=pb.Flush())
    session.send(session.frame(write=pb.WriteRange(buffer=A, offset=8, data=bytes(size - 8))))
    read = session.frame(read=pb.ReadRange(buffer=A, size=4))
    raw = chunks.write_request(session.opened.session, 1, 0, memoryview(b"abcd" * (size // 4)))
    session.channel.stream_unary("/umd.runtime.Runtime/Write")(iter([raw]), timeout=20, metadata=who("bytes"))
    assert session.answer(session.send(read)).data == b"abcd"
    assert session.read(A, 4, 8) == b"abcd" + bytes(4)
    session.close()


def test_operations_are_limited(as_: Any, connect: Callable[[str], Any], server: ServerProcess) -> None:
    channel = connect(server.address)
    request = translator_pb2.TranslateRequest(op_type="Add", request_id=7)
    for name in "ab":
        request.inputs.add(name=name, shape=(2,), dtype="f32")
    translate = channel.unary_unary(
        "/umd.Translator/Translate",
        translator_pb2.TranslateRequest.SerializeToString,
        translator_pb2.TranslateResponse.FromString,
    )
    batch = channel.stream_stream(
        "/umd.Translator/SubmitBatch",
        translator_pb2.SubmitRequest.SerializeToString,
        translator_pb2.SubmitResponse.FromString,
    )
    graph = channel.unary_stream(
        "/umd.graph.Graphs/TranslateGraph",
        graph_pb2.TranslateGraphRequest.SerializeToString,
        graph_pb2.TranslateGraphResponse.FromString,
    )
    (many,) = batch(iter([translator_pb2.SubmitRequest(request=[request] * 50)]), timeout=20, metadata=who("ops"))
    assert len(many.response) == 50  # more than a second's worth at once never fits
    assert {(each.status, each.request_id) for each in many.response} == {(Status.QUOTA, 7)}
    assert json.loads(many.response[0].facts)["retry_after_seconds"] > 1
    found = [translate(request, timeout=20, metadata=who("ops")) for _ in range(40)]
    assert {each.status for each in found} == {0, Status.QUOTA}
    assert {each.request_id for each in found} == {7}
    message = graph_pb2.TranslateGraphRequest(graph=write_graph(_small()))
    headers = [next(graph(message, timeout=20, metadata=who("ops"))).header for _ in range(10)]
    assert Status.QUOTA in {header.status for header in headers}
    session = as_("ops")
    session.send(
        session.frame(allocate=pb.Allocate(handles=[A, B, C], sizes=[SIZE] * 3)),
        session.frame(load=pb.Load(handle=A, program=ADD)),
    )
    submit = pb.Submit(program=A, buffers=[A, B, C], reply=True)
    server.wait_for(lambda: session.ask(submit=submit).HasField("done"))
    refused = [reply for reply in (session.ask(submit=submit) for _ in range(20)) if reply.HasField("error")]
    check_quota(refused[0].error, "ops per second", 5)
    assert translate(request, timeout=20, metadata=who("bob")).status == 0


def _small() -> umd.Graph:
    graph = umd.Graph("small")
    graph.output(graph.add("Relu", [graph.input("x", umd.TensorDesc("f32", (2,)))]))
    return graph


# what others have


def test_programs_are_known_to_their_owner_only(as_: Any) -> None:
    anna, again, bob = as_("anna"), as_("anna"), as_("bob")
    raw = arena_program(4096)
    digest = hashlib.sha256(raw).digest()
    assert not anna.do(load=pb.Load(handle=A, program=raw)).HasField("error")
    assert not again.do(load=pb.Load(handle=A, sha256=digest)).HasField("error")
    assert bob.do(load=pb.Load(handle=A, sha256=digest)).error.status == Status.STALE_HANDLE
    bob.do(load=pb.Load(handle=B, program=raw))
    assert not bob.do(load=pb.Load(handle=C, sha256=digest)).HasField("error")


def test_translated_graphs_are_known_to_their_owner_only(
    as_: Any, connect: Callable[[str], Any], server: ServerProcess
) -> None:
    call = connect(server.address).unary_stream(
        "/umd.graph.Graphs/TranslateGraph", None, graph_pb2.TranslateGraphResponse.FromString
    )
    raw = graph_pb2.TranslateGraphRequest(graph=write_graph(_small())).SerializeToString()
    header = next(call(raw, timeout=20, metadata=who("anna"))).header
    assert not as_("anna").do(load=pb.Load(handle=A, sha256=header.sha256)).HasField("error")
    assert as_("bob").do(load=pb.Load(handle=A, sha256=header.sha256)).error.status == Status.STALE_HANDLE


def test_transfers_of_another_are_refused(as_: Any) -> None:
    anna = as_("anna")
    anna.allocate(A, 64)
    frame = anna.frame(transfer=pb.Transfer(id=1, direction=TO_DEVICE, buffer=A, size=4))
    anna.send(frame)
    raw = chunks.write_request(anna.opened.session, 1, 0, memoryview(b"1234"))
    write = anna.channel.stream_unary("/umd.runtime.Runtime/Write", None, pb.WriteResponse.FromString)
    assert write(iter([raw]), timeout=20, metadata=who("bob")).error.status == Status.NOT_AUTHORISED
    assert write(iter([raw]), timeout=20, metadata=who("anna")).size == 4
    assert anna.read(A, 0, 4) == b"1234"


def test_devices_are_for_those_who_may_use_them(as_: Any, connect: Callable[[str], Any], server: ServerProcess) -> None:
    channel = connect(server.address)
    describe = channel.unary_unary("/umd.runtime.Runtime/Describe", None, pb.DescribeResponse.FromString)
    assert [device.name for device in describe(b"", metadata=who("anna")).devices] == ["sim:0"]
    assert not describe(b"", metadata=who("nobody")).devices
    for device in ("", "sim:0", "sim:7"):
        refused = as_("nobody", open_it=False)
        refused.send(refused.frame(open=pb.Open(protocol=1, device=device)))
        assert refused.next().replies[0].error.status == Status.NOT_AUTHORISED
    translate = channel.unary_unary("/umd.Translator/Translate", None, translator_pb2.TranslateResponse.FromString)
    request = translator_pb2.TranslateRequest(op_type="Relu", device_id="sim:0")
    request.inputs.add(shape=(2,), dtype="f32")
    for name, status in (("anna", 0), ("nobody", Status.NOT_AUTHORISED), ("bob", 0), ("nobody", Status.NOT_AUTHORISED)):
        assert translate(request.SerializeToString(), metadata=who(name)).status == status


def test_priorities_are_bounded(as_: Any) -> None:
    for priority in (-2, 0, 2):
        assert as_("anna", priority=priority).do(flush=pb.Flush()).HasField("done")
    refused = as_("anna", open_it=False)
    refused.send(refused.frame(open=pb.Open(protocol=1, priority=3)))
    assert refused.next().replies[0].error.status == Status.LIMIT


def test_a_quota_holds_where_nobody_is_asked_who_he_is(start_server: Any) -> None:
    server = start_server("--quota-memory", "1MiB")
    first, second = FrameSession(server.address), FrameSession(server.address)
    half = pb.Allocate(handles=[1 | 1 << 32], sizes=[MIB * 3 // 4])
    assert not first.do(allocate=half).HasField("error")
    assert second.do(allocate=half).error.status == Status.QUOTA
    first.close()
    second.close()
