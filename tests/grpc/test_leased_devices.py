"""Leases as a client sees them: a RemoteDevice goes on after its connection was cut, and tells what was lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.grpc.conftest import ServerProcess
from tests.grpc.frames import A, B, C
from tests.grpc.wires import Wire
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
WRITE: Any = pb.DIRECTION_WRITE


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server that grants leases of 60 s at most."""
    process = ServerProcess(json.dumps({"limits": {"lease_seconds": 60}}), module=MODULE)
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


@pytest.fixture(autouse=True)
def ends(server: ServerProcess, connect: Any) -> Iterator[None]:
    """Ends all sessions after each test, also those that still wait for their client."""
    yield
    connect(server.address).unary_unary("/test.Test/Revoke")(b"local")


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """A connection to the module's server that can be cut."""
    opened = Wire(server.address)
    yield opened
    opened.close()


def cut(wire: Wire, device: RemoteDevice) -> None:
    """Cuts the connection and returns when the device has noticed."""
    link = device._session.link
    wire.cut()
    with suppress(DeviceLostError):  # it may have been noticed already
        link.wait_until(lambda: link.lost is not None, 10, "the end")


def test_a_device_goes_on_after_its_connection_was_cut(wire: Wire) -> None:
    device = RemoteDevice(wire.address, lease_seconds=30)
    x = device.tensor(X)
    (y,) = device.run(ADD, [x, x])
    np.testing.assert_array_equal(y.numpy(), X + X)
    for turn in range(3):
        (y,) = device.run(ADD, [y, x])  # not sent yet
        cut(wire, device)
        np.testing.assert_array_equal(y.numpy(), (3 + turn) * X)
    device.close()


def test_large_data_after_a_cut(wire: Wire) -> None:
    device = RemoteDevice(wire.address, lease_seconds=30)
    large = np.random.default_rng(0).random(700_000)
    tensor = device.tensor(large)
    np.testing.assert_array_equal(tensor.numpy(), large)
    cut(wire, device)
    np.testing.assert_array_equal(tensor.numpy(), large)
    np.testing.assert_array_equal(device.tensor(large).numpy(), large)
    device.close()


def test_without_a_lease_a_cut_is_the_end(wire: Wire) -> None:
    device = RemoteDevice(wire.address)
    x = device.tensor(X)
    x.numpy()
    cut(wire, device)
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            x.numpy()
    device.close()


def test_whoever_waits_when_the_connection_is_cut_is_told(wire: Wire) -> None:
    device = RemoteDevice(wire.address, lease_seconds=30)
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
    cut(wire, device)
    waiter.join(10)
    assert len(caught) == 1
    fence.signal(1)  # the submission is there, its buffers are, and it runs
    ticket.wait()
    np.testing.assert_array_equal(b.numpy(), X + X)
    device.close()


def test_work_that_was_lost_is_told_and_not_repeated(wire: Wire) -> None:
    """Frames that the server never got: tickets fail, results are poisoned, things are there, nothing runs twice."""
    device = RemoteDevice(wire.address, lease_seconds=30)
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
    cut(wire, device)
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


def test_a_lease_that_has_ended_is_a_loss(wire: Wire, server: ServerProcess, connect: Any) -> None:
    device = RemoteDevice(wire.address, lease_seconds=30)
    x = device.tensor(X)
    x.numpy()
    cut(wire, device)
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
    assert list(frames[0].spoil.signals) == [pb.FenceValue(fence=A, value=9)]
    assert list(frames[2].free.buffers) == [C]
