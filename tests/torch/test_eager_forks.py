"""A process that was forked off one with an open device is told when it uses it, at once, and never hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

FORKING = """
import os, signal, sys, threading
import torch, umd_torch
from torch import nn
from umd_core.errors import UnsupportedError

device, options = umd_torch.connect(sys.argv[1]), {"device": sys.argv[1]}
x, large = torch.arange(4.0, device=device), torch.ones(1 << 18, device=device)
model = nn.Linear(4, 2).to(device)
compiled = torch.compile(lambda v: v * 3 + 1, backend="umd")
assert ((x * 2).tolist(), compiled(x).tolist()) == ([0, 2, 4, 6], [1, 4, 7, 10])
uses = {
    "create": lambda: torch.ones(2, device="umd"),
    "empty": lambda: torch.empty(2, device="umd"),
    "draw": lambda: torch.rand(2, device="umd"),
    "send": lambda: torch.ones(2).to("umd"),
    "known op": lambda: x * 2,
    "new op": lambda: torch.atan(x),
    "large op": lambda: large * 2,
    "in place": lambda: x.add_(1),
    "on the CPU": lambda: torch.linalg.eigvalsh(torch.eye(2, device="umd")),
    "item": lambda: x[0].item(),
    "cpu": x.cpu,
    "tolist": x.tolist,
    "print": lambda: repr(x),
    "copy": lambda: torch.zeros(4).copy_(x),
    "equal": lambda: torch.equal(x, x),
    "nonzero": x.nonzero,
    "resize": lambda: x.resize_(100),
    "module": lambda: model(x),
    "move": lambda: model.to("cpu"),
    "backward": lambda: model(x).sum().backward(),
    "compiled": lambda: compiled(x),
    "compile": lambda: torch.compile(lambda v: v - 5, backend="umd")(x),
    "compile for it": lambda: torch.compile(lambda v: v - 5, backend="umd", options=options)(torch.ones(1)),
    "save": lambda: torch.save(x, os.devnull),
    "deepcopy": lambda: __import__("copy").deepcopy(x),
    "collate": lambda: torch.utils.data.default_collate([x, x]),
    "synchronize": lambda: torch.umd.synchronize(),
    "connect": lambda: umd_torch.connect(sys.argv[1]),
}


def child():
    signal.alarm(60)
    failed = 0
    for name, use in uses.items():
        try:
            use()
        except Exception as error:
            if "before this process was forked" not in str(error) or "spawn" not in str(error):
                failed = print(name, type(error), error, file=sys.stderr) or 3
        else:
            failed = print(name, "was not refused", file=sys.stderr) or 3
    assert (x.shape, x[1:].stride(), str(x.device)) == ((4,), (1,), "umd:0")
    umd_torch.close_sessions()  # what others opened is let go of; one of its own may be opened
    umd_torch.connect("sim:0")
    assert (torch.ones(2, device="umd:1" if sys.argv[1] != "sim:0" else "umd") + 1).tolist() == [2, 2]
    sys.stderr.flush()
    os._exit(failed)


over = threading.Event()


def work():
    while not over.is_set():
        (large * 2).sum().item()


thread = threading.Thread(target=work)  # it holds locks whenever the process is forked
thread.start()
states = []
for _ in range(3):
    process = os.fork()
    if not process:
        child()
    states.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
over.set()
thread.join()
assert states == [0, 0, 0], states
assert ((x * 2).tolist(), compiled(x).tolist()) == ([0, 2, 4, 6], [1, 4, 7, 10])
print("well")
"""
LOADERS = """
import sys
import torch, umd_torch
from torch.utils.data import DataLoader, TensorDataset
from umd_core.errors import UnsupportedError

device = umd_torch.connect(sys.argv[1])
there = torch.ones(8, 3).to(device)
options = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork", "timeout": 30}


def collate(items):
    return torch.stack(items).to("umd")


class Made(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((3,), float(index), device="umd")


for data, more in (
    (TensorDataset(there), {}),
    (torch.ones(8, 3), {"collate_fn": collate}),
    (Made(), {}),
    ([there[0]] * 8, {"collate_fn": list}),
):
    try:
        for batch in DataLoader(data, **options, **more):
            raise AssertionError(batch)
    except UnsupportedError as error:
        assert "before this process was forked" in str(error) and "spawn" in str(error), error
for batch in DataLoader(torch.ones(8, 3), **options):  # what stays on the CPU there comes as ever
    assert batch.to(device).sum().item() == 12
print("well")
"""


@pytest.fixture(params=["in process", "remote"])
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a device: here, or of a server in another process."""
    if request.param == "in process":
        yield "sim:0"
        return
    command = [sys.executable, "-m", "umd_grpc.server", "--device", "sim:0", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield f"grpc://{json.loads(process.stdout.readline())['listen'][0]}/sim:0"
        process.terminate()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("script", [FORKING, LOADERS], ids=["children", "loaders"])
def test_forked_processes_are_told(script: str, name: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", script, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert (done.stdout.strip(), done.returncode) == ("well", 0), done.stderr
