"""Devices in processes of their own, when their server ends, or does not begin."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import umd_core as umd
from tests.grpc.conftest import ServerProcess
from tests.grpc.workers import ON, alive, check, opened, worker
from umd_grpc.client import Client

Start = Callable[..., ServerProcess]


def test_a_killed_server_leaves_no_worker(start_server: Start) -> None:
    server = start_server(*ON, "--device", "sim:0", "--device", "sim:1")
    device = opened(server)
    check(device)
    pids = [worker(server, "sim:0"), worker(server, "sim:1")]
    assert all(map(alive, pids))
    server.process.kill()
    server.process.wait(10)
    server.wait_for(lambda: not any(map(alive, pids)))
    device.close()


def test_a_drain_lets_work_in_a_worker_finish(start_server: Start) -> None:
    server = start_server(*ON, "--grace", "60")
    device, pid = opened(server), worker(server)
    large = np.eye(700, dtype=np.float32)
    program = umd.translate("MatMul", [large, large])
    a = value = device.tensor(large)
    for _ in range(25):
        (value,) = device.run(program, [value, a])
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(value.numpy()))
    reader.start()
    with Client(server.address) as client:
        server.wait_for(lambda: any(s.waiting for s in next(client.watch(0)).sessions))  # the work has come
    server.process.send_signal(signal.SIGTERM)
    reader.join(60)
    np.testing.assert_array_equal(found[0], large)
    assert server.process.wait(30) == 0
    assert not alive(pid)
    device.close()


def test_a_device_that_cannot_be_opened_is_told_in_a_line() -> None:
    command = ["-m", "umd_grpc.server", "--listen", "127.0.0.1:0", *ON, "--device", "sim:99"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "sim:99" in done.stderr
    assert "Traceback" not in done.stderr
