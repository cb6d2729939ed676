"""What tests of devices in processes of their own share."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import numpy as np

import umd_core as umd
from tests.grpc.conftest import ServerProcess
from umd_core.errors import DeviceLostError
from umd_grpc.client import Client
from umd_grpc.client.remote import RemoteDevice

ON = ("--workers", "on", "--workers-pause", "50ms")
X = np.arange(6, dtype=np.float32)
ADD = umd.translate("Add", [X, X])


def worker(server: ServerProcess, device: str = "sim:0") -> int:
    """Returns the process of a device, as soon as it has one that is open."""
    with Client(server.address) as client:
        while True:
            found = next(each for each in next(iter(client.watch(0))).devices if each.name == device)
            if found.worker_pid:
                return int(found.worker_pid)
            time.sleep(0.01)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):  # it is gone
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def opened(server: ServerProcess, device: str = "sim:0") -> RemoteDevice:
    """Opens a device as soon as its worker is there."""
    while True:
        try:
            return RemoteDevice(server.address, device)
        except DeviceLostError as error:
            assert "another one is started" in str(error)
            time.sleep(0.01)


def check(device: RemoteDevice) -> None:
    np.testing.assert_array_equal(device.run(ADD, [X, X])[0].numpy(), X + X)
