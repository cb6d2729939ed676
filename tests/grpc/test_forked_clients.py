"""After a fork: a child is told when it uses what it cannot, works where it can, and never hangs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

COMMON = """
import gc, multiprocessing, os, sys, threading
import numpy as np
from umd_core.errors import DeviceLostError, UnsupportedError
from umd_grpc.client import Client
from umd_grpc.client.remote import RemoteDevice

address = sys.argv[1]
"""
DATA = """
import torch
from torch.utils.data import DataLoader, Dataset

options = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": "fork", "timeout": 30}


class Data(Dataset):
    # Rows that come from something, made of it when a row is first needed.
    def __init__(self, made):
        self.made, self.use = made, None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.use = self.use or self.made()
        return torch.tensor(self.use(index))


def own():
    device = RemoteDevice(address)
    return lambda index: device.tensor(np.arange(4.0) + index).numpy()
"""
CHILDREN = """
devices = [RemoteDevice(address) for _ in range(3)]
device, client = devices[0], Client(address)
held = device.tensor(np.arange(4.0))
held.numpy()
client.describe()


def child():
    global device, devices, held, client
    for use, kind in (
        (held.numpy, DeviceLostError),
        (lambda: device.allocate(4), DeviceLostError),
        (client.describe, DeviceLostError),
        (lambda: RemoteDevice(address), UnsupportedError),
        (lambda: Client(address), UnsupportedError),
    ):
        try:
            use()
        except kind as error:
            assert "spawn" in str(error), error
        else:
            os._exit(3)
    device.close()
    client.close()
    use = device = devices = held = client = None
    gc.collect()


over = threading.Event()


def work():
    while not over.is_set():
        devices[1].tensor(np.arange(3.0)).numpy()


thread = threading.Thread(target=work)
thread.start()
for number in range(15):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0, process.exitcode
    assert held.numpy().tolist() == [0, 1, 2, 3]
over.set()
thread.join(30)
for each in (*devices, client):
    each.close()
print("well")
"""
LOADERS = """
found = torch.cat(list(DataLoader(Data(own), **options)))  # nothing was open when they were forked
assert found[:, 0].tolist() == list(range(8)), found
device, client = RemoteDevice(address), Client(address)
held = device.tensor(np.arange(4.0))
assert held.numpy().tolist() == [0, 1, 2, 3]
for made in (own, lambda: lambda index: held.numpy(), lambda: lambda index: client.describe()):
    try:
        list(DataLoader(Data(made), **options))
    except Exception as error:
        assert "spawn" in str(error), error
    else:
        raise AssertionError("nobody was told")
assert held.numpy().tolist() == [0, 1, 2, 3]
device.close()
client.close()
print("well")
"""
FORKING = """
import os, sys
import numpy as np
from umd_core.errors import DeviceLostError
from umd_grpc.client import Client
from umd_grpc.client.remote import RemoteDevice

address = sys.argv[1]
device, client = RemoteDevice(address), Client(address)
tensor = device.tensor(np.arange(4.0))
tensor.numpy()
child = os.fork()
if not child:
    for use in (tensor.numpy, lambda: device.allocate(4), client.describe):
        try:
            use()
        except DeviceLostError as error:
            assert "spawn" in str(error), error
        else:
            os._exit(3)
    os._exit(7)
_, state = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(state) == 7, state
assert tensor.numpy().tolist() == [0, 1, 2, 3]
device.close()
client.close()
print("well")
"""


@pytest.mark.parametrize("script", [CHILDREN, DATA + LOADERS], ids=["children", "loaders"])
def test_forked_children_finish_or_raise(server: Any, script: str) -> None:
    """Children made by fork, and the workers of a DataLoader, which PyTorch forks."""
    command = [sys.executable, "-W", "ignore", "-c", COMMON + script, server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.strip(), done.returncode) == ("well", 0), done.stderr


def test_a_forked_child_is_told_and_the_parent_goes_on(server: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, server.address], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("well", 0), done.stderr
