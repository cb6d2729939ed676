"""Frames that come again, or late: each is refused with the rule that it breaks, and nothing is done twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grpc.conftest import FrameSession, ServerProcess
from tests.grpc.frames import FENCE, PROGRAM, SIZE, A, B, C, D, X, add_program, handle, status, submit, values
from umd_core.errors import Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client
from umd_grpc.messages import chunks

BUFFERS = (A, B, C, D)
OTHER, MOVED = handle(10), handle(40)
WRITE: Any = pb.DIRECTION_WRITE
READ: Any = pb.DIRECTION_READ
LAST = 100
"""What fences are raised to at the end: every wait is over then."""


def ways(number: int) -> tuple[int, int, int]:
    """Returns which buffers a submission adds, and where to: what it does depends on what was done before."""
    out = BUFFERS[number % 4]
    others = [each for each in BUFFERS if each != out]
    return others[number // 4 % 3], others[number % 3], out


def waiting(number: int) -> dict[str, Any]:
    """Returns the fences of a submission: most have none."""
    if number % 3:
        return {}
    return {"waits": [pb.FenceValue(fence=FENCE, value=number)], "signals": [pb.FenceValue(fence=OTHER, value=number)]}


COMMANDS: dict[str, Callable[[int, int], Any]] = {
    "open": lambda n, seq: pb.Open(protocol=1),
    "allocate": lambda n, seq: pb.Allocate(handles=[handle(20 + n)], sizes=[4 + n]),
    "free": lambda n, seq: pb.Free(buffers=[handle(20 + n)]),
    "load": lambda n, seq: pb.Load(handle=handle(20 + n), program=add_program()),
    "submit": lambda n, seq: submit(*ways(n), queue=n % 2, reply=bool(n & 2), **waiting(n)),
    "wait": lambda n, seq: pb.Wait(fence=pb.FenceValue(fence=(FENCE, OTHER)[n % 2], value=n)),
    "read": lambda n, seq: pb.ReadRange(buffer=BUFFERS[n % 4], size=SIZE),
    "write": lambda n, seq: pb.WriteRange(buffer=BUFFERS[n % 4], offset=4 * (n % 2), data=X[n % 4 :][:2].tobytes()),
    "transfer": lambda n, seq: pb.Transfer(id=seq, direction=(WRITE, READ)[n % 2], buffer=MOVED, size=8),
    "flush": lambda n, seq: pb.Flush(),
    "signal": lambda n, seq: pb.FenceValue(fence=(FENCE, OTHER)[n % 2], value=n),
    "cancel": lambda n, seq: pb.Cancel(queues=[] if n % 3 else [n % 2]),
    "close": lambda n, seq: pb.Close(),
    "spoil": lambda n, seq: pb.Spoil(buffers=[BUFFERS[n % 4]], reason="lost"),
}
"""A command of each kind, by a number and that of its frame."""
GOOD = sorted(set(COMMANDS) - {"open", "close"})


@dataclass(frozen=True)
class Good:
    """A frame that belongs here, `gap` numbers after the one before."""

    kind: str
    number: int
    gap: int = 1


@dataclass(frozen=True)
class Late:
    """A frame that was not sent before, whose number is so far behind that of the last one; 0 at least."""

    kind: str
    number: int
    behind: int


@dataclass(frozen=True)
class Again:
    """A frame that was sent before, byte for byte."""

    which: int


Step = Good | Late | Again


def test_every_command_is_tried() -> None:
    assert set(COMMANDS) == {field.name for field in pb.Frame.DESCRIPTOR.oneofs_by_name["command"].fields}


class Recorded(FrameSession):
    """A session that remembers every reply, also two to one number."""

    def __init__(self, address: str) -> None:
        self.heard: list[pb.Reply] = []
        self.sent: list[pb.Frame] = []
        self.refused: Counter[int] = Counter()
        super().__init__(address)

    def next(self) -> pb.SessionResponse:
        """Returns the next response and remembers its replies."""
        self.heard += super().next().replies
        return self.last

    def frame(self, **command: Any) -> pb.Frame:
        """Returns the next frame."""
        self.sent.append(super().frame(**command))
        return self.sent[-1]

    def made(self, step: Step) -> pb.Frame:
        """Returns the frame of a step."""
        if isinstance(step, Good):
            self.seq += step.gap - 1
            return self.frame(**{step.kind: COMMANDS[step.kind](step.number, self.seq + 1)})
        if isinstance(step, Late):
            seq = max(0, self.seq - step.behind)
            frame = pb.Frame(seq=seq, **{step.kind: COMMANDS[step.kind](step.number, seq)})
        else:
            frame = self.sent[step.which % len(self.sent)]
        self.refused[frame.seq] += 1
        return frame

    def play(self, steps: list[Step]) -> None:
        """Sends steps as one message, and returns when all of it is over."""
        frames, moves = list[pb.Frame](), list[pb.Transfer]()
        for step in steps:
            frames.append(self.made(step))
            if isinstance(step, Good) and step.kind == "transfer":
                moves.append(frames[-1].transfer)
        flush = self.send(*frames, self.frame(flush=pb.Flush()))
        for move in moves:
            self.move(move)
        self.answer(flush)

    def move(self, transfer: pb.Transfer) -> None:
        """Sends, or takes, the bytes of a transfer."""
        token, data = self.opened.session, transfer.id.to_bytes(8, "little")
        if transfer.direction == WRITE:
            message = chunks.write_request(token, transfer.id, 0, memoryview(data))
            raw = self.channel.stream_unary("/umd.runtime.Runtime/Write")(iter([message]), timeout=30)
            assert not pb.WriteResponse.FromString(raw).HasField("error")
        else:
            request = pb.ReadRequest(session=token, transfer=transfer.id).SerializeToString()
            list(self.channel.unary_stream("/umd.runtime.Runtime/Read")(request, timeout=30))

    def end(self) -> None:
        """Raises the fences, asks what everything has come to, and ends the session."""
        self.play([Good("signal", LAST), Good("signal", LAST + 1)])
        self.play([*(Good("read", number) for number in range(4)), Good("wait", 0), Good("wait", 1)])
        assert self.ask(read=pb.ReadRange(buffer=MOVED, size=8)).WhichOneof("result") == "data"
        self.close()

    def said(self) -> tuple[Counter[str], Counter[int]]:
        """Returns the replies to frames that belong here, and the numbers of those that were refused as too late."""
        late, others = Counter[int](), Counter[str]()
        for reply in self.heard:
            if reply.HasField("error") and json.loads(reply.error.facts).get("rule") == "frame-seq":
                assert status(reply) == Status.BAD_BYTES
                late[reply.seq] += 1
            elif not reply.HasField("opened"):  # every session has other tokens
                others[str(reply)] += 1
        return others, late


def submissions(server: ServerProcess) -> int:
    """Returns how many submissions the server has carried out."""
    with Client(server.address) as client:
        return int(next(client.watch(0)).counters.submissions)


def outcome(server: ServerProcess, messages: list[list[Step]]) -> tuple[Counter[str], int]:
    """Returns (replies, submissions) of a session, once each frame that came again or late has been refused."""
    before, session = submissions(server), Recorded(server.address)
    session.send(
        session.frame(allocate=pb.Allocate(handles=[*BUFFERS, MOVED], sizes=[SIZE] * 5)),
        session.frame(load=pb.Load(handle=PROGRAM, program=add_program())),
        *(session.frame(write=pb.WriteRange(buffer=each, data=(X + at).tobytes())) for at, each in enumerate(BUFFERS)),
    )
    for message in messages:
        session.play(message)
    session.end()
    others, late = session.said()
    assert late == session.refused
    return others, submissions(server) - before


def check(server: ServerProcess, messages: list[list[Step]]) -> None:
    """Checks that everything is as if frames that come again, or late, had not been sent."""
    alone: list[list[Step]] = [[step for step in message if isinstance(step, Good)] for message in messages]
    assert outcome(server, messages) == outcome(server, alone)


@pytest.mark.parametrize("kind", GOOD)
def test_a_command_that_comes_again(server: ServerProcess, kind: str) -> None:
    """The same one three times, so that the server knows it by heart; then every frame of the session once more."""
    steps: list[Step] = [Good("submit", 3), *[Good(kind, 4, gap=2)] * 3, *map(Again, range(20))]
    check(server, [[step] for step in steps])


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_that_comes_late(server: ServerProcess, kind: str) -> None:
    """With numbers that were left out, those that were used, and 0; while a submission waits, and when it goes on."""
    for behind in (5, 4, 3, 2, 1, 0, 100):
        late, other = Late(kind, 4, behind), Late(kind, 3, behind)
        begun: list[Step] = [Good("write", 0, gap=2), Good("submit", 3), Good("submit", 4, gap=4)]
        check(server, [begun, [late], [other, Good("signal", 4, gap=3), late, other], [late]])


STEPS = st.one_of(
    st.builds(Good, st.sampled_from(GOOD), st.integers(0, 11), st.integers(1, 3)),
    st.builds(Late, st.sampled_from(sorted(COMMANDS)), st.integers(0, 11), st.integers(0, 30)),
    st.builds(Again, st.integers(0, 2**20)),
)


@settings(max_examples=60)
@given(st.lists(st.lists(STEPS, max_size=6), max_size=6))
def test_frames_that_come_again_or_late_change_nothing(server: ServerProcess, messages: list[list[Step]]) -> None:
    check(server, messages)


def test_frames_of_a_lost_stream_do_not_come_again(server: ServerProcess) -> None:
    """A client that attaches again sends what it is not sure of: what was carried out is refused."""
    first = FrameSession(server.address, lease_seconds=30)
    frames = [
        first.frame(allocate=pb.Allocate(handles=[A, B, C], sizes=[SIZE] * 3)),
        first.frame(load=pb.Load(handle=PROGRAM, program=add_program())),
        first.frame(write=pb.WriteRange(buffer=A, data=X.tobytes())),
        first.frame(submit=submit(A, A, B)),
        first.frame(submit=submit(A, B, C)),
        first.frame(submit=submit(B, C, A)),
    ]
    first.send(*frames, first.frame(flush=pb.Flush()))
    first.answer(first.seq)
    first.call.cancel()
    first.channel.close()
    again = FrameSession(server.address, open_it=False)
    again.seq = first.seq
    again.opened = again.ask(open=pb.Open(protocol=1, resume=first.opened.resume)).opened
    assert (again.opened.resumed, again.opened.processed_through) == (True, first.seq)
    again.send(*frames)
    assert [status(again.answer(frame.seq)) for frame in frames] == [Status.BAD_BYTES] * len(frames)
    assert values(again.read(A, 0, SIZE)) == list(5 * X)
    again.send(again.frame(close=pb.Close()))
    again.close()
