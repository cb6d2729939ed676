"""Devices in processes of their own: what is the same, and what becomes of everybody when one of them ends."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

import umd_core as umd
from tests.grpc import test_remote_conformance
from tests.grpc.conftest import FrameSession, ServerProcess
from tests.grpc.faulty_workers import LOST, STUCK, WHY
from tests.grpc.frames import A, B, submit
from tests.grpc.test_runtime_hostile import (
    test_what_cannot_be_read_ends_the_session_with_a_reason,  # the same is to hold here  # noqa: F401
)
from tests.grpc.test_runtime_memory import (
    test_new_memory_is_zero_whatever_other_sessions_left,  # the same is to hold here  # noqa: F401
)
from tests.grpc.test_runtime_replays import (  # the same is to hold here  # noqa: F401
    test_a_command_that_comes_again,
    test_a_command_that_comes_late,
)
from tests.grpc.test_runtime_session import (  # the same is to hold here  # noqa: F401
    test_fences,
    test_handles_are_made_once,
    test_large_reads_are_answered_in_several_messages,
    test_programs_by_hash,
    test_ranges_of_buffers,
    test_sessions_cannot_touch_each_others_things,
    test_what_was_not_computed_is_not_read,
)
from tests.grpc.workers import ADD, ON, X, check, opened, worker
from umd_core.errors import DeviceLostError, Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.config.fields import FIELDS
from umd_grpc.server.worker import in_worker

Start = Callable[..., ServerProcess]
KIB, MIB = 1 << 10, 1 << 20
HERE = Path(__file__)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server with two devices, each in a worker."""
    process = ServerProcess(*ON, "--device", "sim:0", "--device", "sim:1")
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


class TestInWorker(test_remote_conformance.TestRemote):
    """A device in a worker passes the conformance kit."""


# one worker ends


class Load:
    """A client that works until its device is lost, or it is told to end."""

    def __init__(self, server: ServerProcess, device: str) -> None:
        self.server, self.name = server, device
        self.error: Exception | None = None
        self.over, self.begun = threading.Event(), threading.Event()
        self.ended = 0.0
        self.rounds = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        device = opened(self.server, self.name)
        try:
            while not self.over.wait(0.002):  # or it would keep the processor from those that start
                tensor = device.tensor(np.ones(64 * KIB, np.float32))
                check(device)
                assert tensor.numpy().sum() == 64 * KIB
                self.rounds += 1
                self.begun.set()
        except Exception as error:  # noqa: BLE001  # the test looks at it
            self.error, self.ended = error, time.monotonic()
        finally:
            self.begun.set()
            device.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("share", [True, False])
def test_a_worker_killed_while_much_is_read(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, share: bool
) -> None:
    """Whichever learns of it first, the transfer or the session: the device is lost, and why is said."""
    if not share:
        monkeypatch.setenv("UMD_SHARED_MEMORY", "0")
    for number in range(4):
        device = opened(server)
        tensor = device.tensor(np.ones(4 << 20, np.float32))
        pid = worker(server)
        killer = threading.Timer(0.02 * (1 + number), os.kill, (pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(DeviceLostError, match=r"signal 9 \(SIGKILL\)"):
            while True:
                tensor.numpy()
        killer.join()
        device.close()


@pytest.mark.timeout(120)
def test_workers_killed_at_any_moment(server: ServerProcess) -> None:
    """20 times: who worked there is told within 2 s, who works elsewhere sees nothing, the next start is clean."""
    before = len(server.events("worker_lost"))
    epoch, other = 0, Load(server, "sim:1")
    for number in range(20):
        load = Load(server, "sim:0")
        load.begun.wait(30)
        pid = worker(server)
        time.sleep(random.Random(number).random() * 0.02)  # the moment is what varies
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        load.thread.join(30)
        assert isinstance(load.error, DeviceLostError), load.error
        assert "signal 9 (SIGKILL)" in str(load.error), load.error
        assert load.ended - killed < 2
        with Client(server.address) as client:
            found = client.describe().devices[0].epoch
        assert found >= epoch
        epoch = found
    device = opened(server)
    check(device)
    device.close()
    rounds = other.rounds
    other.over.set()
    other.thread.join(30)
    assert other.error is None
    assert rounds > 0
    lost = server.events("worker_lost")[before:]
    assert len(lost) == 20
    assert {line["reason"] for line in lost} == {"signal 9 (SIGKILL)"}
    assert {line["device"] for line in lost} == {"sim:0"}
    restarted = server.events("worker_restarted")
    assert len({line["epoch"] for line in restarted}) == len(restarted) >= 20
    server.wait_for(lambda: usage(server) == (0, 0))


def usage(server: ServerProcess) -> tuple[int, int]:
    """Returns (bytes of memory, sessions) in use."""
    with Client(server.address) as client:
        found = next(iter(client.watch(0))).identities
    return sum(each.memory for each in found), sum(each.sessions for each in found)


def test_the_rest_goes_on_while_there_is_no_worker(server: ServerProcess) -> None:
    """Translation, the other device, and what the server says of the one that is gone."""
    one = FrameSession(server.address, "sim:0", lease_seconds=60)
    first = one.opened
    os.kill(worker(server), signal.SIGSEGV)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in range(100):
            one.next()
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert "signal 11 (SIGSEGV)" in str(caught.value.details())
    with Client(server.address) as client:
        assert client.translate("Add", [X, X]).outputs
        epoch = client.describe().devices[0].epoch
    device = RemoteDevice(server.address, "sim:1")
    check(device)
    device.close()
    again = FrameSession(server.address, open_it=False)
    again.send(again.frame(open=pb.Open(device="sim:0", protocol=1, resume=first.resume)))
    assert again.next().replies[0].error.status == Status.NOT_AUTHORISED  # the lease ended with the worker
    worker(server)
    other = opened(server)
    check(other)
    other.close()
    with Client(server.address) as client:
        assert client.describe().devices[0].epoch > epoch
    for each in (one, again):
        each.abandon()


@pytest.mark.parametrize(("queue", "reason"), [(STUCK, "did not end when it was told to"), (LOST, WHY)])
def test_what_cannot_go_on_is_ended_and_begun_anew(start_server: Start, queue: int, reason: str) -> None:
    """A submission that never ends, and a device on which nothing will run again, cost their process."""
    server = start_server(module=(str(HERE.with_name("faulty_workers.py")),))
    device = opened(server)
    x = device.tensor(X)
    device.submit(device.load(ADD), [x.binding, x.binding, device.tensor(X).binding], queue=queue)
    with pytest.raises(DeviceLostError, match=reason):
        x.numpy()
        device.synchronize()
        device.synchronize()
    device.close()
    again = opened(server)
    check(again)
    again.close()
    server.wait_for(lambda: len(server.events("worker_restarted")) == 1)
    assert reason in server.events("worker_lost")[0]["reason"]
    assert usage(server)[0] == 0
    assert server.terminate() == 0


# quotas


def test_quotas_hold_and_come_back(start_server: Start) -> None:
    """What the server's process counts is exact, and is given back whatever becomes of the worker."""
    callers = {"memory": {"quota": {"memory": MIB}}, "ops": {"quota": {"ops_per_second": 5}}}
    module = (str(HERE.with_name("known_callers.py")),)
    server = start_server(json.dumps({"callers": callers, "workers": "on"}), module=module)

    def as_(name: str) -> FrameSession:
        return FrameSession(server.address, metadata=(("who", name),))

    def allocate(one: FrameSession, handle: int, size: int) -> int:
        return int(one.do(allocate=pb.Allocate(handles=[handle], sizes=[size])).error.status)

    first, second = as_("memory"), as_("memory")
    assert allocate(first, A, 600 * KIB) == Status.DONE
    assert allocate(second, A, 600 * KIB) == Status.QUOTA
    first.do(free=pb.Free(buffers=[A]))
    assert allocate(second, B, MIB) == Status.DONE
    assert allocate(first, B, 1) == Status.QUOTA
    quick = as_("ops")
    quick.send(
        quick.frame(allocate=pb.Allocate(handles=[A, B], sizes=[X.nbytes] * 2)),
        quick.frame(load=pb.Load(handle=A, program=bytes(ADD))),
    )
    frames = [quick.frame(submit=submit(A, A, B, program=A)) for _ in range(12)]
    quick.send(*frames, quick.frame(flush=pb.Flush()))
    quick.answer(quick.seq)
    refused = [quick.replies[frame.seq].error.status for frame in frames if frame.seq in quick.replies]
    assert refused == [Status.QUOTA] * 7
    os.kill(worker(server), signal.SIGKILL)
    server.wait_for(lambda: usage(server) == (0, 0))
    while True:
        try:
            third = as_("memory")
            if third.opened.session:
                break
        except (grpc.RpcError, StopIteration):
            time.sleep(0.01)
    assert allocate(third, A, MIB) == Status.DONE
    for each in (first, second, quick, third):
        each.abandon()
    server.wait_for(lambda: usage(server) == (0, 0))
    server.check_sound()


def test_signals_are_the_servers_affair(server: ServerProcess) -> None:
    """Ctrl-C reaches a group of processes, and a service manager tells all of them: workers wait for the server."""
    pid, device = worker(server), opened(server)
    assert os.getpgid(pid) != os.getpgid(server.process.pid)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
        check(device)
    assert worker(server) == pid
    device.close()


# what travels


def test_answers_that_are_taken_late(server: ServerProcess) -> None:
    """32 MiB of answers to one message: the session stands still at 8 MiB of them, and goes on as they are taken."""
    one = FrameSession(server.address)
    one.allocate(A, MIB)
    frames = [one.frame(read=pb.ReadRange(buffer=A, size=MIB)) for _ in range(32)]
    one.send(*frames, one.frame(flush=pb.Flush()))
    one.answer(one.seq)
    assert all(len(one.replies[frame.seq].data) == MIB for frame in frames)
    one.close()


def test_large_tensors(server: ServerProcess) -> None:
    """By calls of Write and Read, and through shared memory; transfers in both directions at a time."""
    data = np.random.default_rng(0).random(2 * MIB, np.float32)
    for shared in (True, False):
        device = RemoteDevice(server.address, "sim:1", shared_memory=shared)
        tensors = [device.tensor(data) for _ in range(3)]
        threads = [threading.Thread(target=lambda t=t: np.testing.assert_array_equal(t.numpy(), data)) for t in tensors]
        for thread in threads:
            thread.start()
        np.testing.assert_array_equal(device.run(umd.translate("Neg", [data]), [data])[0].numpy(), -data)
        for thread in threads:
            thread.join(60)
        del tensors
        device.close()
    server.wait_for(lambda: usage(server) == (0, 0))


def test_programs_are_known_to_all_devices(server: ServerProcess) -> None:
    """What was loaded by its bytes on one device is loaded by its hash on another, and after a restart."""
    raw = bytes(umd.translate("Mul", [X, X]))
    sha256 = hashlib.sha256(raw).digest()
    first = FrameSession(server.address, "sim:0")
    assert first.do(load=pb.Load(handle=A, sha256=sha256)).error.status == Status.STALE_HANDLE
    assert not first.do(load=pb.Load(handle=B, program=raw)).HasField("error")
    second = FrameSession(server.address, "sim:1")
    assert not second.do(load=pb.Load(handle=A, sha256=sha256)).HasField("error")
    os.kill(worker(server), signal.SIGKILL)
    device = opened(server)
    third = FrameSession(server.address, "sim:0")
    assert not third.do(load=pb.Load(handle=A, sha256=sha256)).HasField("error")
    for each in (first, second, third):
        each.abandon()
    device.close()


@pytest.mark.parametrize(
    ("choice", "device", "wanted"),
    [
        ("auto", "cuda:0", True),
        ("auto", "cuda:1?queues=2", True),
        ("auto", "cuda-cpu:0", False),
        ("auto", "sim:0", False),
        ("on", "sim:0", True),
        ("off", "cuda:0", False),
    ],
)
def test_which_devices_live_in_workers(choice: str, device: str, wanted: bool) -> None:
    assert FIELDS["workers.use"].read(choice) == choice
    assert in_worker(choice, device) is wanted
    with pytest.raises(ValueError, match="auto, on, off"):
        FIELDS["workers.use"].read("maybe")
