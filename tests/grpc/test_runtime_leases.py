"""Leases: a session that outlives its stream, who may attach to it again, and what was lost with the stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import umd_core as umd
from tests.grpc.conftest import FrameSession, ServerProcess
from umd_core.errors import Status
from umd_grpc._pb.umd import runtime_pb2 as pb

MODULE = (str(Path(__file__).with_name("known_callers.py")),)
X = np.arange(6, dtype=np.float32)
SIZE = X.nbytes
ADD = umd.translate("Add", [X, X])
A, B, C = (number | 1 << 32 for number in range(1, 4))
CALLERS = {"anna": {"quota": {"memory": 1 << 20, "sessions": 3}}, "bob": {}}
WRITE: Any = pb.DIRECTION_WRITE
Open = Callable[..., FrameSession]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server that knows anna and bob, and grants leases of 60 s at most."""
    process = ServerProcess(json.dumps({"callers": CALLERS, "limits": {"lease_seconds": 60}}), module=MODULE)
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


@pytest.fixture(autouse=True)
def ends(server: ServerProcess, connect: Any) -> Iterator[None]:
    """Ends all sessions after each test, also those that still wait for their client."""
    yield
    for name in (b"anna", b"bob", b"local"):
        connect(server.address).unary_unary("/test.Test/Revoke")(name)


@pytest.fixture
def as_(open_session: Open) -> Callable[..., FrameSession]:
    """Opens sessions of a caller."""
    return lambda who, **fields: open_session(metadata=(("who", who),), **fields)


def drop(session: FrameSession) -> None:
    """Loses a session's stream."""
    session.call.cancel()
    session.channel.close()


def resume(session: FrameSession, as_: Any, who: str = "anna", token: bytes | None = None) -> FrameSession:
    """Attaches to a session over another stream; fails when the server does not let it."""
    again: FrameSession = as_(who, open_it=False)
    again.seq = session.seq
    token = session.opened.resume if token is None else token
    seq = again.send(again.frame(open=pb.Open(protocol=1, resume=token)))
    while seq not in again.replies and 0 not in again.replies:
        again.next()
    again.opened = again.replies[seq].opened if seq in again.replies else pb.Opened()
    return again


def refusal(session: FrameSession) -> int:
    """Returns the status with which a session was refused."""
    return session.replies[0].error.status


@pytest.fixture
def session(as_: Any) -> FrameSession:
    """A session of anna with a lease; A holds 0…5, B nothing."""
    opened: FrameSession = as_("anna", lease_seconds=30)
    opened.send(
        opened.frame(allocate=pb.Allocate(handles=[A, B], sizes=[SIZE, SIZE])),
        opened.frame(load=pb.Load(handle=A, program=bytes(ADD))),
        opened.frame(write=pb.WriteRange(buffer=A, data=X.tobytes())),
    )
    opened.do(flush=pb.Flush())
    return opened


def used(as_: Any, size: int) -> bool:
    """Returns whether anna has less than `size` bytes left, of the megabyte that she may use."""
    probe = as_("anna")
    reply = probe.do(allocate=pb.Allocate(handles=[A], sizes=[size]))
    probe.close()
    return bool(reply.error.status == Status.QUOTA)


def test_a_session_is_found_again(session: FrameSession, as_: Any) -> None:
    assert session.opened.lease_seconds == 30
    assert not session.opened.resumed
    waiting = session.send(
        session.frame(submit=pb.Submit(program=A, buffers=[A, A, B], waits=[pb.FenceValue(fence=C, value=1)]))
    )
    session.do(flush=pb.Flush())
    before = session.seq
    drop(session)
    again = resume(session, as_)
    assert (again.opened.resumed, again.opened.processed_through) == (True, before)
    assert again.opened.session == session.opened.session
    assert again.read(A, 0, SIZE) == X.tobytes()
    again.send(again.frame(signal=pb.FenceValue(fence=C, value=1)))
    assert again.read(B, 0, SIZE) == (X + X).tobytes()
    assert {progress.seq for progress in again.last.completed_through} <= {waiting}
    session.opened, session.seq = again.opened, again.seq
    again.send(again.frame(close=pb.Close()))
    assert list(again.call) is not None
    assert refusal(resume(again, as_)) == Status.NOT_AUTHORISED


def test_what_went_wrong_meanwhile_is_told(session: FrameSession, as_: Any) -> None:
    """Failures and the progress of queues, which nobody may have heard, are said again."""
    bad = session.send(session.frame(submit=pb.Submit(program=A, buffers=[A, A, B], values=[7], queue=5)))
    session.do(flush=pb.Flush())
    drop(session)
    again = resume(session, as_)
    assert again.replies[bad].error.status == Status.INPUT_COUNT
    assert (5, bad) in {(progress.queue, progress.seq) for progress in again.last.completed_through}
    again.abandon()


def test_tokens_are_good_once_and_for_their_owner(session: FrameSession, as_: Any) -> None:
    drop(session)
    token = session.opened.resume
    for stolen in (token, token[:-1] + bytes([token[-1] ^ 1]), token[:8], b"\xff" * 40, token + b"x"):
        assert refusal(resume(session, as_, "bob", stolen)) == Status.NOT_AUTHORISED
    assert refusal(resume(session, as_, "anna", token[:-1] + bytes([token[-1] ^ 1]))) == Status.NOT_AUTHORISED
    second = resume(session, as_)
    assert second.opened.resume not in (b"", token)
    # Until the client shows that it has the new token, the old one still works: the answer may have been lost.
    third = resume(second, as_, token=token)
    assert third.opened.resumed
    third.do(flush=pb.Flush())
    assert refusal(resume(third, as_, token=token)) == Status.NOT_AUTHORISED
    assert third.read(A, 0, SIZE) == X.tobytes()
    third.abandon()


def test_the_newer_stream_wins(session: FrameSession, as_: Any) -> None:
    again = resume(session, as_)
    with pytest.raises(grpc.RpcError) as caught:
        while True:
            session.next()
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert "attached again" in str(caught.value.details())
    assert again.read(A, 0, SIZE) == X.tobytes()
    again.abandon()


def test_what_had_not_been_carried_out_never_is(session: FrameSession, as_: Any) -> None:
    """A frame that waited for the bytes of a transfer when the stream was lost is not carried out afterwards."""
    session.send(session.frame(transfer=pb.Transfer(id=1, direction=WRITE, buffer=B, size=SIZE)))
    session.send(
        session.frame(write=pb.WriteRange(buffer=B, data=bytes(SIZE))),
        session.frame(write=pb.WriteRange(buffer=A, data=bytes(SIZE))),
    )
    seq = session.seq
    while session.last.processed_through < seq - 2:
        session.next()
    first = resume(session, as_)
    session.seq, session.opened = first.seq, first.opened
    again = resume(session, as_)  # attaching is no progress
    assert first.opened.processed_through == again.opened.processed_through == seq - 2
    assert again.read(A, 0, SIZE) == X.tobytes()
    again.send(
        again.frame(spoil=pb.Spoil(buffers=[A], offsets=[4], sizes=[4], reason="lost", signals=[_value(C, 3)])),
    )
    reply = again.ask(read=pb.ReadRange(buffer=A, size=SIZE))
    assert reply.error.status == Status.POISONED
    assert json.loads(reply.error.facts)["root_status"] == Status.DEVICE_LOST
    assert again.ask(wait=pb.Wait(fence=_value(C, 3))).done.value == 3
    again.send(again.frame(write=pb.WriteRange(buffer=A, data=X.tobytes())))
    assert again.read(A, 0, SIZE) == X.tobytes()
    again.abandon()


def _value(fence: int, value: int) -> pb.FenceValue:
    return pb.FenceValue(fence=fence, value=value)


def test_memory_counts_until_the_lease_ends(server: ServerProcess, as_: Any) -> None:
    size = 700_000
    for lease in (1, 0):
        opened: FrameSession = as_("anna", lease_seconds=lease)
        opened.allocate(A, size)
        assert used(as_, size)
        drop(opened)
        if lease:
            assert used(as_, size)
        server.wait_for(lambda: not used(as_, size))
        assert refusal(resume(opened, as_, token=opened.opened.resume or b"none")) == Status.NOT_AUTHORISED


def test_leases_are_limited(as_: Any) -> None:
    assert as_("bob", lease_seconds=10_000).opened.lease_seconds == 60
    plain = as_("bob")
    assert (plain.opened.resume, plain.opened.lease_seconds) == (b"", 0)


def test_a_session_that_waits_for_its_client_counts_as_one(server: ServerProcess, as_: Any) -> None:
    sessions = [as_("anna", lease_seconds=30) for _ in range(3)]
    drop(sessions[0])
    refused = as_("anna", open_it=False)
    refused.send(refused.frame(open=pb.Open(protocol=1)))
    refused.next()
    assert refusal(refused) == Status.QUOTA
    facts = json.loads(refused.replies[0].error.facts)
    assert (facts["limit"], facts["retry_after_seconds"] > 0) == (3, True)
    again = resume(sessions[0], as_)
    for opened in (again, *sessions[1:]):
        opened.send(opened.frame(close=pb.Close()))
        assert list(opened.call) is not None
    as_("anna").close()


def test_a_drain_ends_leases(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server("{}", module=MODULE)
    for lost in (True, False):
        opened = FrameSession(server.address, lease_seconds=50)
        if lost:
            drop(opened)
    assert server.terminate() == 0
    assert server.events("stopped")


def test_sessions_of_a_revoked_caller_end(server: ServerProcess, as_: Any, connect: Any) -> None:
    attached, lost, other = as_("anna", lease_seconds=50), as_("anna", lease_seconds=50), as_("bob")
    drop(lost)
    revoke = connect(server.address).unary_unary("/test.Test/Revoke")
    assert revoke(b"anna") == b"2"
    with pytest.raises(grpc.RpcError, match="revoked"):
        attached.next()
    assert refusal(resume(lost, as_)) == Status.NOT_AUTHORISED
    assert other.do(flush=pb.Flush()).HasField("done")
    assert not used(as_, 1 << 19)
