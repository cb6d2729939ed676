"""After a fork: a child is told when it uses what its parent opened, works with what it opens itself, and never hangs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

COMMON = """
import os, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from umd_grpc.client import Client
from umd_grpc.client.remote import RemoteDevice

address = sys.argv[1]
device, client = RemoteDevice(address), Client(address)
held = device.tensor(np.arange(4.0))
held.numpy()
client.describe()
"""
CHILDREN = """
for number in range(10):
    child = os.fork()
    if not child:
        own = RemoteDevice(address)
        well = own.tensor(np.arange(3.0)).numpy().tolist() == [0, 1, 2]
        own.close()
        with Client(address) as again:
            well = well and len(again.describe().devices) == 1
        os._exit(7 if well else 3)
    _, state = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(state) == 7, state
    assert held.numpy().tolist() == [0, 1, 2, 3]
"""
LOADERS = """
class Opened(Dataset):
    # What the parent opened, for the client or the device.
    def __init__(self, use):
        self.use = use

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(self.use()[0] + index)


class Own(Dataset):
    # What each worker opens when it first needs it.
    device = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.device is None:
            self.device = RemoteDevice(address)
        return torch.tensor(self.device.tensor(np.arange(4.0) + index).numpy())


options = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": "fork", "timeout": 30}
uses = (held.numpy, lambda: device.tensor(np.arange(4.0)).numpy(), lambda: [len(client.describe().devices)])
for use in uses:
    try:
        list(DataLoader(Opened(use), **options))
    except Exception as error:
        assert "open it again" in str(error), error
    else:
        raise AssertionError("nobody was told")
found = torch.cat(list(DataLoader(Own(), **options)))
assert found[:, 0].tolist() == list(range(8)), found
assert held.numpy().tolist() == [0, 1, 2, 3]
"""
END = """
device.close()
client.close()
print("well")
"""


@pytest.mark.parametrize("script", [CHILDREN, LOADERS], ids=["children", "loaders"])
def test_forked_children_finish_or_raise(server: Any, script: str) -> None:
    """Children made by fork, and the workers of a DataLoader, which PyTorch forks."""
    command = [sys.executable, "-W", "ignore", "-c", COMMON + script + END, server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.strip(), done.returncode) == ("well", 0), done.stderr
