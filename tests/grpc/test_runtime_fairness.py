"""One client that floods the server, and the others. Turns are counted in frames, never in seconds."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import umd_core as umd
from tests.grpc.conftest import FrameSession, ServerProcess
from umd_core.device import SequentialDevice
from umd_core.errors import DecodeError, LimitError, Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client
from umd_grpc.limits import DEFAULT, Limits
from umd_grpc.messages import wire
from umd_grpc.messages.frames import cut_frames
from umd_grpc.server.cancels import WINDOW, Cancels, Order
from umd_grpc.server.courtesy import Courtesy, PoliteLoop
from umd_grpc.server.inbox import Inbox
from umd_grpc.server.repeats import Repeats, may_be_short
from umd_grpc.server.session import SHORT_SECONDS
from umd_grpc.server.work import Work

A, B, C = HANDLES = [number | 1 << 32 for number in (1, 2, 3)]
X = np.arange(6, dtype=np.float32)
LOOKALIKE = pb.SessionRequest(frames=[pb.Frame(seq=9_999, cancel=pb.Cancel())]).SerializeToString()
"""Data that looks like a Cancel frame."""
MESSAGE = 4_000
"""Frames in a message of a flood."""


class Flood:
    """A session that has been sent much work, and what is known of how far it is."""

    def __init__(self, session: FrameSession, op: str, extent: int, messages: int) -> None:
        x = np.ones((extent, extent), np.float32)
        session.send(
            session.frame(allocate=pb.Allocate(handles=HANDLES, sizes=[x.nbytes] * 3)),
            session.frame(load=pb.Load(handle=A, program=bytes(umd.translate(op, [x, x])))),
        )
        self.first, self.last = session.seq, session.seq + messages * MESSAGE
        self.processed = 0
        work = pb.Submit(program=A, buffers=HANDLES, sizes=[x.nbytes] * 3)
        for _ in range(messages):
            session.send(*(session.frame(submit=work) for _ in range(MESSAGE)))
        self._session, self._begun = session, threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        assert self._begun.wait(30)

    @property
    def share(self) -> float:
        """How much of it has been carried out, 0 to 1."""
        return (self.processed - self.first) / (self.last - self.first)

    def _listen(self) -> None:
        with suppress(grpc.RpcError):  # the session is abandoned with the test
            for raw in self._session.call:
                self.processed = pb.SessionResponse.FromString(raw).processed_through
                if self.processed > self.first:
                    self._begun.set()


FLOODS = {"many small submissions": ("MatMul", 48, 15), "fewer large ones": ("MatMul", 160, 2)}


@pytest.fixture(scope="module", params=["off", "on"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server whose device is in its own process, or in a worker."""
    process = ServerProcess("--workers", request.param)
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


@pytest.mark.parametrize("name", FLOODS)
def test_who_asks_for_little_is_answered_while_a_flood_goes_on(
    open_session: Callable[..., FrameSession], name: str
) -> None:
    others = [open_session() for _ in range(4)]
    for other in others:
        other.send(
            other.frame(allocate=pb.Allocate(handles=HANDLES, sizes=[X.nbytes] * 3)),
            other.frame(load=pb.Load(handle=A, program=bytes(umd.translate("Add", [X, X])))),
        )
    flood = Flood(open_session(), *FLOODS[name])
    for number in range(10):
        for other in others:
            x = X + number
            last = other.send(
                other.frame(write=pb.WriteRange(buffer=A, data=x.tobytes())),
                other.frame(submit=pb.Submit(program=A, buffers=[A, A, B], sizes=[X.nbytes] * 3)),
                other.frame(read=pb.ReadRange(buffer=B, size=X.nbytes)),
            )
            assert other.answer(last).data == (x + x).tobytes()
    assert 0 < flood.share < 0.9, "whoever waits behind the whole flood is answered when it is over"


def test_a_cancel_is_heard_wherever_it_stands(open_session: Callable[..., FrameSession]) -> None:
    """It stands behind thousands of frames of its own message, none of which has begun when it is heard."""
    session = open_session()
    session.send(
        session.frame(allocate=pb.Allocate(handles=HANDLES, sizes=[X.nbytes] * 3)),
        session.frame(load=pb.Load(handle=A, program=bytes(umd.translate("Add", [X, X])))),
    )
    submit = pb.Submit(program=A, buffers=HANDLES, sizes=[X.nbytes] * 3)
    frames = [session.frame(submit=submit) for _ in range(MESSAGE)]
    flush = session.send(*frames, session.frame(cancel=pb.Cancel()), session.frame(flush=pb.Flush()))
    session.answer(flush)
    assert {session.replies[frame.seq].error.status for frame in frames} == {Status.CANCELLED}


def test_a_client_that_goes_away_leaves_nothing_under_way(server: ServerProcess, client: Client) -> None:
    """Also while the server still looks at what its message, of many parts, cancels."""
    large = pb.WriteRange(buffer=A, data=b"\x6a" * 500_000)  # the key of a Cancel frame
    for number in range(20):
        session = FrameSession(server.address)
        session.send(*(session.frame(write=large) for _ in range(20)))
        time.sleep(number / 200)  # until it is on its way, arrives, is looked at, or is carried out
        session.abandon()

    def settled() -> bool:
        state = next(client.watch(0))
        return not state.sessions and not any(each.in_flight or each.sessions for each in state.identities)

    server.wait_for(settled)


# what a message cancels


COMMANDS = st.one_of(
    st.builds(pb.Submit, program=st.integers(0, 2**64 - 1), buffers=st.lists(st.integers(0, 2**64 - 1), max_size=3)),
    st.builds(lambda n: pb.WriteRange(buffer=A, data=LOOKALIKE * n), st.integers(0, 40)),
    st.builds(lambda n: pb.WriteRange(buffer=A, data=bytes(n)), st.integers(WINDOW - 40, WINDOW + 40)),
    st.builds(pb.Cancel, seqs=st.lists(st.integers(1, 12), max_size=3), queues=st.lists(st.integers(0, 2), max_size=2)),
    st.just(pb.Flush()),
)
ANY = st.lists(st.integers(1, 40), max_size=2)
_FIELDS = {pb.Submit: "submit", pb.WriteRange: "write", pb.Cancel: "cancel", pb.Flush: "flush"}


def cancels() -> Cancels:
    """Returns those of a session on a device where nothing runs."""
    return Cancels(cast("SequentialDevice", SimpleNamespace(control=None)), DEFAULT)


@given(st.lists(COMMANDS, max_size=8), st.sampled_from([1, 100, 2**20, 2**63]))
def test_exactly_the_cancel_frames_of_a_message_are_found(commands: list[Any], first: int) -> None:
    frames = [pb.Frame(seq=first + at, **{_FIELDS[type(each)]: each}) for at, each in enumerate(commands)]
    found = cancels()
    for _ in found.look_ahead(pb.SessionRequest(frames=frames).SerializeToString()):
        pass
    orders = [frame for frame in frames if frame.HasField("cancel")]
    for seq, queue in ((seq, queue) for seq in (*range(1, 13), first, first + 3) for queue in range(3)):
        meant = [
            not order.cancel.ByteSize() or seq in order.cancel.seqs or queue in order.cancel.queues
            for order in orders
            if order.seq > seq
        ]
        assert (found.begin(Work(found, seq, queue)) is not None) == any(meant)


@given(st.lists(st.one_of(st.just("submit"), st.just("hear"), st.builds(pb.Cancel, seqs=ANY, queues=ANY)), max_size=40))
def test_orders_hold_until_they_are_reached_and_are_forgotten_then(steps: list[Any]) -> None:
    """Frames are heard of some time before they are reached, and a submission that is reached begins or is ended."""
    found, frames, heard = cancels(), list(enumerate(steps, 1)), list[tuple[int, Any]]()
    behind = deque(frames)
    for seq, step in frames:
        while behind and (behind[0][0] <= seq or step == "hear"):
            number, other = behind.popleft()
            if isinstance(other, pb.Cancel):
                raw = pb.SessionRequest(frames=[pb.Frame(seq=number, cancel=other)]).SerializeToString()
                assert not list(found.look_ahead(raw))
                heard.append((number, other))
            elif other == "hear" and number > seq:
                break
        if step == "submit":
            meant = any(
                number > seq and (not order.ByteSize() or seq in order.seqs or 1 in order.queues)
                for number, order in heard
            )
            assert (found.begin(Work(found, seq, 1)) is not None) == meant
        found.passed(seq)
    for _ in range(2):
        found.passed(len(frames) + 1)
    assert not any(noted.newest or noted._seqs or noted._queues for noted in (found._older, found._newer))


def test_a_submission_begins_as_fast_however_many_orders_wait() -> None:
    """Nothing is looked at one by one: a session that has sent a million of them keeps nobody from the device."""
    found, looks = cancels(), list[int]()

    class Counted(int):
        def __lt__(self, other: int) -> bool:
            looks.append(other)
            return int(self) < other

    for seq in range(10, 5_000):
        found._note(Order(seq, frozenset({seq}), frozenset()))
    assert found.begin(Work(found, Counted(1), 0)) is None
    assert 0 < len(looks) <= 6


@pytest.mark.parametrize("size", [0, WINDOW, WINDOW + 1, 10 * WINDOW])
def test_a_large_message_is_looked_at_in_parts(size: int) -> None:
    assert len(list(cancels().look_ahead(b"\x6a" * size))) == max(0, -(-size // WINDOW) - 1)


# what has arrived


def message(*bodies: bytes) -> bytes:
    return b"".join(wire.head(1, len(body)) + body for body in bodies)


def taken(inbox: Inbox) -> Iterator[bytes]:
    while (frame := inbox.frame()) is not None:
        assert inbox.frame() is frame
        yield frame
        inbox.done()


def test_frames_are_cut_when_it_is_their_turn() -> None:
    inbox = Inbox(DEFAULT)
    first, second = message(b"a", b"bc"), message(b"d")
    inbox.add(first, 1.0)
    inbox.add(second, 2.0, [b"known"])
    assert (inbox.size, inbox.arrived) == (len(first) + len(second), 1.0)
    assert not inbox.at_end
    assert list(taken(inbox)) == [b"a", b"bc"]
    assert inbox.at_end
    assert inbox.end_message() == len(first)
    assert (inbox.size, inbox.arrived) == (len(second), 2.0)
    assert list(taken(inbox)) == [b"known"]
    inbox.clear()
    assert not inbox


def test_what_cannot_be_read_stops_where_it_stands() -> None:
    for raw, limits, error in (
        (message(b"a", b"b") + b"\xff", DEFAULT, DecodeError),
        (message(b"a", b"b", b"c"), Limits(frames=2), LimitError),
    ):
        inbox, seen = Inbox(limits), list[bytes]()
        inbox.add(raw, 0.0)
        with pytest.raises(error):
            for frame in taken(inbox):
                seen.append(frame)
        assert seen == [b"a", b"b"]
        assert not inbox.at_end
        with pytest.raises(error):  # also when somebody asks again
            inbox.frame()


def test_a_message_of_many_little_frames_is_not_short() -> None:
    """It would keep the event loop, and with it everybody, for milliseconds."""
    many = [pb.Frame(seq=seq, flush=pb.Flush()) for seq in range(1, 400)]
    raw = pb.SessionRequest(frames=many).SerializeToString()
    assert may_be_short(raw)
    taken_ = [Repeats().seconds(body) for body in cut_frames(raw, DEFAULT)]
    assert sum(taken_[:3]) < SHORT_SECONDS < sum(taken_)


# giving way


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


def test_a_device_steps_aside_for_who_wants_to_run_and_not_at_every_turn(pauses: list[float]) -> None:
    reader, writer = os.pipe()
    try:
        polite = Courtesy(reader)
        polite.give_way(1e9)
        assert not pauses
        os.write(writer, b"!")
        polite.give_way(2e9)
        assert len(pauses) == 1
        polite.give_way(0.0)  # hardly any time has passed since
        assert len(pauses) == 1
    finally:
        os.close(reader)
        os.close(writer)


def test_a_loop_wants_to_run_while_it_has_something_to_do(pauses: list[float]) -> None:
    loop = PoliteLoop()
    try:
        polite = loop.courtesy()
        loop.call_soon(polite.give_way, 1e9)
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert len(pauses) == 1
    finally:
        loop.close()
