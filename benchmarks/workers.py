"""A device in a process of its own beside one on a thread of the server's process: round trips, batches, bulk data."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from measure import interleaved, report

import umd_core as umd
from umd_core.device import Tensor
from umd_grpc.client.remote import RemoteDevice

BATCH, BULK = 1_000, 64 << 20
X = np.arange(6, dtype=np.float32)
ADD = umd.translate("Add", [X, X])
SERVER = (sys.executable, "-m", "umd_grpc.server", "--listen", "127.0.0.1:0", "--workers")
PLACES = {"thread": "off", "worker": "on"}


def start(choice: str, stack: ExitStack) -> str:
    """Starts a server and returns its address; the stack ends it."""
    process = subprocess.Popen([*SERVER, choice], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    return str(json.loads(process.stdout.readline())["listen"][0])


def run_and_read(device: RemoteDevice, held: Tensor) -> object:
    """Runs one Add and reads its result."""
    return device.run(ADD, [held, held])[0].numpy()


def batch(device: RemoteDevice, held: Tensor) -> None:
    """Submits many Adds and waits for the last one."""
    program, out = device.load(ADD), device.tensor(X)
    for _ in range(BATCH):
        device.submit(program, [held.binding, held.binding, out.binding])
    device.synchronize()


def main() -> None:
    """Prints the table."""
    with ExitStack() as stack:
        works: dict[str, dict[str, Callable[[], object]]] = {"one": {}, "batch": {}, "bulk": {}}
        data, out = np.ones(BULK, np.uint8), np.ones(BULK, np.uint8)
        for place, choice in PLACES.items():
            address = start(choice, stack)
            device, bulk = RemoteDevice(address), RemoteDevice(address, shared_memory=False)
            stack.callback(device.close)
            stack.callback(bulk.close)
            held, large, streamed = device.tensor(X), device.tensor(data), bulk.tensor(data)
            works["one"][f"nothing but the round trip, {place}"] = device.synchronize
            works["one"][f"run, read, {place}"] = functools.partial(run_and_read, device, held)
            works["batch"][f"{BATCH:,} submissions, {place}"] = functools.partial(batch, device, held)
            for name, user, tensor in (("stream", bulk, streamed), ("shared memory", device, large)):
                write = functools.partial(user.write, tensor.storage.buffer, 0, data)
                works["bulk"][f"64 MiB by {name}, write, {place}"] = write
                works["bulk"][f"64 MiB by {name}, read, {place}"] = functools.partial(tensor.numpy, out)
        times = {
            **interleaved(works["one"], number=200, repeat=9),
            **interleaved(works["batch"], number=3, repeat=9),
            **interleaved(works["bulk"], repeat=9),
        }
        rows = []
        for name, seconds in times.items():
            before, _, place = name.rpartition(", ")
            rows.append([name, seconds * 1e6, seconds / times[f"{before}, thread"] if place == "worker" else ""])
        report("workers", "A device in a worker", ["step", "µs", "× thread"], rows)


if __name__ == "__main__":
    main()
