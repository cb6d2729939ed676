"""How a RemoteDevice ends: its server is killed, it is closed, or there was none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.grpc.wires import Wire
from umd_core.device import FenceValue
from umd_core.errors import DeviceLostError, QuotaError
from umd_core.registry import open_device
from umd_grpc.client import Client
from umd_grpc.client.remote import RemoteDevice

Start = Callable[..., Any]
X = np.arange(12, dtype=np.float32).reshape(3, 4)
ADD = umd.translate("Add", [X, X])


def test_the_server_killed_in_the_middle_of_a_step(start_server: Start) -> None:
    server = start_server()
    device = RemoteDevice(server.address)
    x = np.ones((1500, 1500), np.float32)
    a = device.tensor(x)
    program = umd.translate("MatMul", [x, x])
    device.run(program, [a, a])[0].numpy()
    for _ in range(200):
        (a,) = device.run(program, [a, a])
    threading.Timer(0.3, server.process.kill).start()
    with pytest.raises(DeviceLostError):
        a.numpy()
    ended = time.monotonic()
    server.process.wait(10)
    for use in (lambda: device.run(program, [a, a])[0].numpy(), device.synchronize, lambda: device.tensor(x)):
        with pytest.raises(DeviceLostError):
            use()
    assert time.monotonic() - ended < 2
    device.close()


def test_every_wait_ends_within_two_seconds_of_the_servers_end(start_server: Start) -> None:
    server = start_server()
    device = RemoteDevice(server.address)
    fence, program, a, b = device.fence(), device.load(ADD), device.tensor(X), device.tensor(X)
    ticket = device.submit(program, [a.binding, a.binding, b.binding], waits=[FenceValue(fence, 1)])
    device.synchronize()
    large = device.allocate(8 << 20)
    ends: dict[str, float] = {}

    def use(name: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except DeviceLostError:
            ends[name] = time.monotonic()

    uses = {"ticket": ticket.wait, "fence": lambda: fence.wait(1)}
    threads = [threading.Thread(target=use, args=item) for item in uses.items()]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    killed = time.monotonic()
    server.process.kill()
    server.process.wait(10)
    for thread in threads:
        thread.join(20)

    def write() -> None:
        device.write(large, 0, bytes(8 << 20))
        device.synchronize()

    use("write", write)
    use("read", lambda: device.read(large, 0, 8 << 20))
    assert set(ends) == {"ticket", "fence", "write", "read"}
    assert max(ends.values()) - killed < 2
    device.close()


@pytest.mark.timeout(120)
def test_a_half_open_connection(start_server: Start) -> None:
    """Nobody says that the other end is gone: either end finds out by itself, and the server frees everything."""
    server = start_server("--keepalive-time", "2s", "--keepalive-timeout", "1s")
    wire = Wire(server.address)
    try:
        device = RemoteDevice(wire.address)
        tensor = device.tensor(np.ones((300, 300), np.float32))
        tensor.numpy()
        with Client(server.address) as client:
            state = client.watch(0.5)
            assert [len(next(state).sessions) for _ in range(2)][-1] == 1
            wire.silence()
            silent = time.monotonic()
            for found in state:
                if not found.sessions:
                    break
            assert (
                time.monotonic() - silent < 20
            )  # as it was told to: 50 s is what it does by itself, 60 s what gRPC does
            assert [each.memory_used for each in found.devices] == [0]
            with pytest.raises(DeviceLostError):
                tensor.numpy()
    finally:
        wire.close()
        device.close()


def test_no_more_sessions_than_the_quota(start_server: Start) -> None:
    server = start_server("--quota-sessions", "1")
    device = RemoteDevice(server.address)
    with pytest.raises(QuotaError) as caught:
        RemoteDevice(server.address)
    facts = caught.value.facts()
    assert (facts["what"], facts["limit"]) == ("sessions", 1)
    assert 0 < facts["retry_after_seconds"] <= 10
    device.close()


def test_a_closed_device(server: Any) -> None:
    device = RemoteDevice(server.address)
    tensor = device.tensor(X)
    device.close()
    device.close()
    for use in (tensor.numpy, lambda: device.allocate(4), device.synchronize):
        with pytest.raises(DeviceLostError):
            use()


def test_no_server() -> None:
    with pytest.raises(DeviceLostError):
        RemoteDevice("127.0.0.1:1", timeout=5)


def test_a_unix_socket(start_server: Start, tmp_path: Path) -> None:
    server = start_server(listen=f"unix:{tmp_path}/umd.sock")
    device = open_device(f"grpc:unix:{tmp_path}/umd.sock#sim:0")
    np.testing.assert_array_equal(device.run(ADD, [X, X])[0].numpy(), X + X)
    device.close()
    assert server.terminate() == 0
    server = start_server(listen=f"unix:{tmp_path}/umd.sock")
    server.process.kill()
    server.process.wait(10)
    start_server(listen=f"unix:{tmp_path}/umd.sock").check_sound()  # what was left behind is no obstacle
