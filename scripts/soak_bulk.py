"""The part of a soak that moves much: tensors of several MiB, through shared memory and through streams."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Any

import numpy as np
from soak_server import MEBIBYTE, Server

from umd_core.errors import DeviceLostError
from umd_grpc.client.remote import RemoteDevice

MEBIBYTES = 2, 5, 8, 20
"""What one transfer has, and a little more: also more than one that its client lets travel unattended."""
LEFT = 4
"""One device in so many is closed while its bytes are under way."""


def bulk(server: Server, count: int, chance: random.Random) -> dict[str, Any]:
    """Devices that come and go; every other one shares memory with the server."""
    wrong = unshared = moved = 0
    for number in range(count):
        share = number % 2 == 0
        data = np.frombuffer(chance.randbytes(chance.choice(MEBIBYTES) * MEBIBYTE + chance.randrange(64)), np.uint8)
        before = server.sample()
        device = RemoteDevice(server.address, shared_memory=share)
        tensor = device.tensor(data)
        wrong += not np.array_equal(tensor.numpy(), data)
        unshared += (server.sample().shared > before.shared) is not share
        moved += 2 * data.nbytes
        if number % LEFT < 2:
            _leave(device, data, chance.random() * 0.01)
        device.close()
    return {"wrong": wrong, "unshared": unshared, "mebibytes": moved // MEBIBYTE}


def _leave(device: RemoteDevice, data: np.ndarray[Any, np.dtype[np.uint8]], seconds: float) -> None:
    """Closes a device while one thread writes and another reads."""
    tensor = device.tensor(data)

    def use(what: Any) -> None:
        with contextlib.suppress(DeviceLostError):  # as it should be, unless it was ready before
            what()

    uses = (lambda: device.tensor(data), tensor.numpy)
    threads = [threading.Thread(target=use, args=(what,)) for what in uses]
    for thread in threads:
        thread.start()
    time.sleep(seconds)  # the moment is what varies
    device.close()
    for thread in threads:
        thread.join()
