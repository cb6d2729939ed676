"""Leases: a session that outlives its stream, who may attach to it again, and what was lost with the stream."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import umd_core as umd
from tests.grpc.conftest import FrameSession, ServerProcess
from umd_core.device import FenceValue
from umd_core.errors import DeviceLostError, PoisonedError, Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client
from umd_grpc.client.outbox import Outbox
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.client.resume import LOST, lost_frames, recover

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


# the client


class Proxy:
    """A connection to a server that can be cut."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed by the test
            while True:
                inner, _ = self._listener.accept()
                outer = socket.create_connection(self._target)
                self._open += [inner, outer]
                for pair in ((inner, outer), (outer, inner)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # closed by either end
            while data := source.recv(1 << 16):
                sink.sendall(data)
        self._shut(source, sink)

    def _shut(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):  # the other end was first
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut(self) -> None:
        """Cuts every connection; new ones are accepted."""
        opened, self._open = self._open, []
        self._shut(*opened)

    def close(self) -> None:
        """Ends the proxy."""
        self._shut(self._listener)
        self.cut()


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    """A connection to the module's server."""
    opened = Proxy(server.address)
    yield opened
    opened.close()


def cut(proxy: Proxy, device: RemoteDevice) -> None:
    """Cuts the connection and returns when the device has noticed."""
    link = device._session.link
    proxy.cut()
    with suppress(DeviceLostError):  # it may have been noticed already
        link.wait_until(lambda: link.lost is not None, 10, "the end")


def test_a_device_goes_on_after_its_connection_was_cut(proxy: Proxy) -> None:
    device = RemoteDevice(proxy.address, lease_seconds=30)
    x = device.tensor(X)
    (y,) = device.run(ADD, [x, x])
    np.testing.assert_array_equal(y.numpy(), X + X)
    for turn in range(3):
        (y,) = device.run(ADD, [y, x])  # not sent yet
        cut(proxy, device)
        np.testing.assert_array_equal(y.numpy(), (3 + turn) * X)
    device.close()


def test_large_data_after_a_cut(proxy: Proxy) -> None:
    device = RemoteDevice(proxy.address, lease_seconds=30)
    large = np.random.default_rng(0).random(700_000)
    tensor = device.tensor(large)
    np.testing.assert_array_equal(tensor.numpy(), large)
    cut(proxy, device)
    np.testing.assert_array_equal(tensor.numpy(), large)
    np.testing.assert_array_equal(device.tensor(large).numpy(), large)
    device.close()


def test_without_a_lease_a_cut_is_the_end(proxy: Proxy) -> None:
    device = RemoteDevice(proxy.address)
    x = device.tensor(X)
    x.numpy()
    cut(proxy, device)
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            x.numpy()
    device.close()


def test_whoever_waits_when_the_connection_is_cut_is_told(proxy: Proxy) -> None:
    device = RemoteDevice(proxy.address, lease_seconds=30)
    fence, program = device.fence(), device.load(ADD)
    a, b = device.tensor(X), device.tensor(np.zeros_like(X))
    ticket = device.submit(program, [a.binding, a.binding, b.binding], waits=[FenceValue(fence, 1)])
    device.synchronize()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            fence.wait(1)
        except DeviceLostError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    server_has_it = device._session.link
    server_has_it.wait_until(lambda: server_has_it.processed >= device._session.outbox.sent, 10, "the wait")
    cut(proxy, device)
    waiter.join(10)
    assert len(caught) == 1
    fence.signal(1)  # the submission is there, its buffers are, and it runs
    ticket.wait()
    np.testing.assert_array_equal(b.numpy(), X + X)
    device.close()


def test_work_that_was_lost_is_told_and_not_repeated(proxy: Proxy) -> None:
    """Frames that the server never got: tickets fail, results are poisoned, things are there, nothing runs twice."""
    device = RemoteDevice(proxy.address, lease_seconds=30)
    step = umd.Graph("step")
    desc = umd.TensorDesc.of(X)
    step.input("w", desc)
    step.input("g", desc)
    step.output(step.add("Add", ["w", "g"]), alias="w")
    program = device.load(umd.translate(step))
    weights, ones, other = device.tensor(X), device.tensor(np.ones_like(X)), device.tensor(X)
    device.submit(program, [weights.binding, ones.binding, weights.binding]).wait()
    device.synchronize()
    link = device._session.link
    cut(proxy, device)
    # What is sent into the void: a link that has not noticed yet would do the same.
    lost, link._lost = link._lost, None
    late = device.submit(program, [weights.binding, ones.binding, weights.binding])
    made = device.tensor(2 * X)
    with pytest.raises(DeviceLostError):
        link._lost = lost
        device._session.send()
    kept = device.submit(program, [other.binding, ones.binding, other.binding])
    np.testing.assert_array_equal(other.numpy(), X + 1)
    kept.wait()
    with pytest.raises(DeviceLostError, match="lost with the connection"):
        late.wait()
    for tensor in (weights, made):
        with pytest.raises(PoisonedError) as caught:
            tensor.numpy()
        assert caught.value.facts()["root_status"] == Status.DEVICE_LOST
    device.write(weights.storage.buffer, 0, X)
    np.testing.assert_array_equal(weights.numpy(), X)
    device.close()


def test_a_lease_that_has_ended_is_a_loss(proxy: Proxy, server: ServerProcess, connect: Any) -> None:
    device = RemoteDevice(proxy.address, lease_seconds=30)
    x = device.tensor(X)
    x.numpy()
    cut(proxy, device)
    connect(server.address).unary_unary("/test.Test/Revoke")(b"local")
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="could not be resumed"):
            x.numpy()
    device.close()


def test_a_server_that_is_gone_is_a_loss_within_the_lease(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    device = RemoteDevice(server.address, lease_seconds=2)
    x = device.tensor(X)
    x.numpy()
    server.process.kill()
    server.process.wait(10)
    for _ in range(3):
        with pytest.raises(DeviceLostError):
            x.numpy()
    device.close()


def test_closing_ends_the_lease(server: ServerProcess) -> None:
    with Client(server.address) as client:
        share = client.describe().devices[0].memory * 2 // 3
    for _ in range(2):
        device = RemoteDevice(server.address, lease_seconds=50)
        device.read(device.allocate(share), 0, 4)
        device.close()
    dropped = RemoteDevice(server.address, lease_seconds=50)
    dropped.read(dropped.allocate(share), 0, 4)
    del dropped

    def fits() -> bool:
        device = RemoteDevice(server.address)
        try:
            return len(device.read(device.allocate(share), 0, 4)) == 4
        except PoisonedError:
            return False
        finally:
            device.close()

    server.wait_for(fits)


def test_what_is_said_again() -> None:
    """Of lost frames, those that make things are repeated in order; work becomes poison."""
    sent = Outbox()
    sent.allocate(A, SIZE)
    submit = sent.frame().submit
    submit.program, submit.buffers[:], submit.sizes[:] = A, [A, B, C], [4, 4, 4]
    submit.signals.add(fence=A, value=9)
    sent.frame().write.MergeFrom(pb.WriteRange(buffer=B, offset=8, data=b"1234"))
    sent.frame().read.MergeFrom(pb.ReadRange(buffer=B, size=4))
    sent.free(buffers=[C])
    first, rest = sent.take(), Outbox()
    rest.seq = sent.seq
    rest.frame().transfer.MergeFrom(pb.Transfer(id=1, direction=WRITE, buffer=C, size=64))
    lost = lost_frames([first, rest.take()], 1)
    assert [frame.seq for frame in lost] == [2, 3, 4, 5, 6]
    again = Outbox()
    again.seq = 50

    class Told:
        name = "x"

        def __init__(self) -> None:
            self.seqs: list[tuple[int, str]] = []

        def lose(self, seq: int, error: DeviceLostError) -> None:
            self.seqs.append((seq, str(error)))

    told: Any = Told()
    recover(lost, again, told, lambda handle: (False, False, True) if handle == A else None)
    assert told.seqs == [(2, f"x is lost: {LOST}")]
    frames = pb.SessionRequest.FromString(again.take()).frames
    assert [frame.seq for frame in frames] == [51, 52, 53, 54]
    spoilt = [
        (list(f.spoil.buffers), list(f.spoil.offsets), list(f.spoil.sizes)) for f in frames if f.HasField("spoil")
    ]
    assert spoilt == [([C], [0], [4]), ([B], [8], [4]), ([C], [0], [64])]
    assert list(frames[0].spoil.signals) == [_value(A, 9)]
    assert list(frames[2].free.buffers) == [C]
