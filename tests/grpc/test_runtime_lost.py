"""A device that is lost for good: what a session hears does not depend on the thread that finds out."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.grpc.frames import PROGRAM, SIZE, A, B, C, X, add_program, status, submit
from umd_core.device import Binding, Device, FenceValue, Program
from umd_core.errors import DeviceLostError, Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import DEFAULT
from umd_grpc.server import host as host_module
from umd_grpc.server.host import DeviceHost, LocalSession
from umd_grpc.server.identity import LOCAL, Accounts
from umd_grpc.server.port import Outlet, Setup
from umd_grpc.server.tally import Tally
from umd_sim.device import SimDevice

WHY = "illegal address"


class Fragile(SimDevice):
    """A simulator that is lost in its next submission when the test wants it, and refuses everything from then on.

    Attributes:
        dying: whether it is.
        threads: those that have used it.
    """

    _lost = ""
    dying = False

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    @property
    def lost(self) -> str:
        return self._lost

    def _check_alive(self) -> None:
        self.threads.append(threading.get_ident())
        if self._lost:
            raise DeviceLostError(self.name, self._lost)

    def write_memory(self, memory: Any, offset: int, data: memoryview) -> None:
        self._check_alive()
        super().write_memory(memory, offset, data)

    def read_memory(self, memory: Any, offset: int, size: int) -> memoryview:
        self._check_alive()
        return super().read_memory(memory, offset, size)

    def _check_submission(self, program: Program, signals: Sequence[FenceValue]) -> None:
        self._check_alive()
        super()._check_submission(program, signals)

    def perform(
        self, program: Program, bindings: tuple[Binding, ...], words: tuple[int, ...], signals: Sequence[FenceValue]
    ) -> Exception | None:
        if self.dying:
            self._lost = WHY
            return DeviceLostError(self.name, WHY)
        return super().perform(program, bindings, words, signals)


class Held:
    """A session on a device of this process, whose thread can be kept busy: then nothing is done where it arrives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = Fragile()
        opened: Callable[[str], Device] = lambda _: self.device  # noqa: E731  # stands for `open_device`
        monkeypatch.setattr(host_module, "open_device", opened)
        self.host = DeviceHost("sim:0")
        self.told: list[tuple[int, str]] = []
        self.replies: dict[int, pb.Reply] = {}
        self._changed, self._through = threading.Condition(), 0
        setup = Setup(1, bytes(16), "local", DEFAULT)
        outlet = Outlet(self._heard, lambda *_: None, lambda _: None, lambda _: None)
        self.session: LocalSession = self.host.open_session(setup, outlet, Tally(Accounts().of(LOCAL)))
        self._seq = 0
        self.send(
            pb.Frame(open=pb.Open(protocol=1)),
            pb.Frame(allocate=pb.Allocate(handles=[A, B, C], sizes=[SIZE] * 3)),
            pb.Frame(load=pb.Load(handle=PROGRAM, program=add_program())),
            pb.Frame(write=pb.WriteRange(buffer=A, data=X.tobytes())),
        )
        for _ in range(3):  # from now on it is known how short this is
            self.send(pb.Frame(submit=submit(A, A, B, reply=True)))
        assert not any(reply.HasField("error") for reply in self.replies.values())
        self.host.gone = self._gone
        self.device.threads.clear()

    def _heard(self, response: bytes, consumed: int) -> None:
        said = pb.SessionResponse.FromString(response)
        with self._changed:
            self.replies.update({reply.seq: reply for reply in said.replies})
            self._through = said.processed_through
            self._changed.notify()

    def _gone(self, reason: str) -> None:
        with self._changed:
            self.told.append((threading.get_ident(), reason))
            self._changed.notify()

    def send(self, *frames: pb.Frame, busy: bool = False) -> pb.Reply:
        """Sends one message; returns the reply to its last frame, an empty one when there is none, once it is over."""
        go_on = threading.Event()
        if busy:
            self.host.post(functools.partial(_wait, go_on))
        for frame in frames:
            self._seq += 1
            frame.seq = self._seq
        self.session.feed(pb.SessionRequest(frames=frames).SerializeToString())
        go_on.set()
        self.wait_for(lambda: self._through >= self._seq)
        return self.replies.get(self._seq, pb.Reply())

    def wait_for(self, what: Callable[[], Any]) -> None:
        """Returns when something is so. The device's thread is given nothing to do for it."""
        with self._changed:
            assert self._changed.wait_for(what, 20)

    @property
    def thread(self) -> int:
        """That of the device."""
        return self.host._thread.ident or 0


def _wait(go_on: threading.Event) -> None:
    assert go_on.wait(20)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.host.close()


LITTLE: dict[str, dict[str, Any]] = {
    "submit": {"submit": submit(A, A, B, reply=True)},
    "read": {"read": pb.ReadRange(buffer=A, size=SIZE)},
    "write": {"write": pb.WriteRange(buffer=A, data=X.tobytes())},
}


def ask(held: Held, busy: bool, command: dict[str, Any]) -> pb.Reply:
    return held.send(pb.Frame(**command), busy=busy)


@pytest.mark.parametrize("name", LITTLE)
def test_short_messages_are_carried_out_where_they_arrive_unless_the_device_is_busy(held: Held, name: str) -> None:
    """Else the other tests here would compare one way with itself."""
    for busy, thread in ((False, threading.get_ident()), (True, held.thread)):
        assert not ask(held, busy, LITTLE[name]).HasField("error")
        assert set(held.device.threads) == {thread}
        held.device.threads.clear()


@pytest.mark.parametrize("busy", [False, True], ids=["at-once", "by-its-thread"])
def test_a_submission_that_loses_the_device(held: Held, busy: bool) -> None:
    held.device.dying = True
    reply = ask(held, busy, LITTLE["submit"])
    assert status(reply) == Status.DEVICE_LOST
    assert WHY in reply.error.message
    held.wait_for(lambda: held.told)
    assert set(held.told) == {(held.thread, WHY)}


@pytest.mark.parametrize("name", LITTLE)
def test_what_comes_after_the_loss_is_told_the_same_on_either_way(held: Held, name: str) -> None:
    held.device.dying = True
    ask(held, True, LITTLE["submit"])
    held.wait_for(lambda: held.told)
    held.told.clear()
    errors = [ask(held, busy, LITTLE[name]).error for busy in (False, True)]
    assert errors[0] == errors[1]
    assert errors[0].status == Status.DEVICE_LOST
    assert WHY in errors[0].message
    held.wait_for(lambda: held.told)
    assert set(held.told) == {(held.thread, WHY)}
