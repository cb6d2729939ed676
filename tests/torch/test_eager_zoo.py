"""The zoo trains on the eager device, in process and through a server; compiled graphs read the device's tensors."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional
from torch.utils._pytree import tree_map

import umd_torch
from tests.torch.zoo import ZOO, Case, _classes, build
from umd_core.errors import PoisonedError
from umd_torch import counters, session
from umd_torch.eager import options

LOCAL = umd_torch.connect("sim:0")
STEPS, RATE, LOSSES = 3, 0.05, 1e-5

pytestmark = [
    pytest.mark.usefixtures("only_the_device"),
    pytest.mark.filterwarnings("ignore"),  # of transformers and of torch about it
]


@pytest.fixture(scope="module")
def remote() -> Iterator[torch.device]:
    """A device of a server in another process."""
    command = [sys.executable, "-m", "umd_grpc.server", "--device", "sim:0", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        name = f"grpc://{json.loads(process.stdout.readline())['listen'][0]}/sim:0"
        yield umd_torch.connect(name)
        session._SESSIONS.pop(name).device.close()
        process.terminate()


def on(device: torch.device, name: str) -> Case:
    """Returns a model of the zoo with everything on a device."""
    case = build(name)

    def move(tree: Any) -> Any:
        return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)

    loss = case.loss
    if name == "gpt":
        ids = case.arguments[0].to(device)
        loss = lambda y: functional.cross_entropy(y.flatten(0, 1), ids.flatten())  # noqa: E731  # as zoo.py has it
    elif case.loss is _classes:
        loss = lambda y: functional.cross_entropy(y, (torch.arange(len(y)) % 5).to(device))  # noqa: E731  # as above
    keywords = move(dict(case.keywords))
    return dataclasses.replace(
        case, model=case.model.to(device), arguments=move(case.arguments), keywords=keywords, loss=loss
    )


def train(case: Case, between: Callable[[], None] = lambda: None) -> list[float]:
    """Returns the losses of three steps of SGD."""
    optimizer = torch.optim.SGD(case.model.train().parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = case.loss(case.results(case.model))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        between()
    return losses


@pytest.mark.parametrize("name", ZOO)
def test_training(name: str) -> None:
    wanted, found = train(build(name)), train(on(LOCAL, name))
    assert found == pytest.approx(wanted, rel=LOSSES)
    assert found[-1] < found[0]
    assert not counters.fallbacks


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "bilstm2", "t5"])
def test_training_through_a_server_is_one_round_trip_a_step(name: str, remote: torch.device) -> None:
    case = on(remote, name)
    device: Any = session.session_for(_name_of(remote)).device
    trips = [device.round_trips]
    found = train(case, lambda: trips.append(device.round_trips))
    assert found == pytest.approx(train(build(name)), rel=LOSSES)
    assert [b - a for a, b in itertools.pairwise(trips)] == [1] * STEPS  # each reads its loss once


def _name_of(device: torch.device) -> str:
    from umd_torch.eager.devices import device_at

    return device_at(device.index).session.name


def test_a_server_is_asked_only_when_a_value_is_read(remote: torch.device) -> None:
    device: Any = session.session_for(_name_of(remote)).device
    before = device.round_trips
    x = torch.randn(8, 8, device=remote)
    for _ in range(50):
        x = torch.tanh(x @ x) + torch.ones(8, device=remote)
    picked = x[torch.tensor([99]).to(remote)]  # which fails there
    assert device.round_trips == before
    with pytest.raises(PoisonedError, match="index 99 is outside"):
        picked.cpu()
    assert x.isfinite().all().item()
    assert device.round_trips == before + 2


def test_devices_do_not_mix(remote: torch.device) -> None:
    here, there = torch.ones(3, device=LOCAL), torch.ones(3, device=remote)
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    assert torch.equal(there.to(LOCAL).cpu(), here.cpu())
    assert torch.equal(here.copy_(there * 2).cpu(), torch.full((3,), 2.0))


# torch.compile over tensors of the device


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="umd", options={"strict": True})


def test_a_compiled_model_trains_where_its_parameters_are(remote: torch.device) -> None:
    for device in (LOCAL, remote):
        ours = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        theirs = copy.deepcopy(ours)
        x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
        ours.to(device)
        called = _compiled(ours)
        optimizers = [torch.optim.SGD(m.parameters(), 0.1, 0.9) for m in (ours, theirs)]
        for step in range(4):
            counters.reset()
            losses = []
            models: list[Callable[..., Tensor]] = [called, theirs]
            places = [device, torch.device("cpu")]
            for model, optimizer, where in zip(models, optimizers, places, strict=True):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x.to(where)), y.to(where))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert losses[0] == pytest.approx(losses[1], rel=1e-5)
            assert counters.round_trips == 1
            assert counters.bytes_down == 4  # the loss
            assert step < 2 or counters.programs == 0  # momentum begins with the second
        for found, wanted in zip(ours.buffers(), theirs.buffers(), strict=True):
            assert torch.allclose(found.cpu(), wanted)
        torch._dynamo.reset()


def test_compiled_graphs_change_arguments_and_draw() -> None:
    x = torch.zeros(3, device=LOCAL)
    _compiled(lambda v: v.add_(1))(x)
    assert x.tolist() == [1, 1, 1]
    drop = _compiled(lambda v: functional.dropout(v, 0.5))
    torch.manual_seed(3)
    first, second = drop(torch.ones(100, device=LOCAL)), drop(torch.ones(100, device=LOCAL))
    torch.manual_seed(3)
    assert torch.equal(drop(torch.ones(100, device=LOCAL)), first)
    assert not torch.equal(first, second)


def test_compiled_graphs_of_any_size_and_with_breaks() -> None:
    def function(v: Tensor) -> Tensor:
        w = v * 2
        torch._dynamo.graph_break()
        return w + torch.arange(v.shape[0], device=v.device)

    called = torch.compile(function, backend="umd", dynamic=True, options={"strict": True})
    for size in (3, 5, 8):
        assert called(torch.ones(size, device=LOCAL)).tolist() == [2.0 + k for k in range(size)]


def test_what_a_compiled_graph_cannot_be_runs_op_by_op() -> None:
    options.strict = False
    called = torch.compile(lambda v: torch.linalg.eigvalsh(v * 2) + 1, backend="umd")
    assert called(torch.eye(2, device=LOCAL)).tolist() == [3, 3]
    assert sum(counters.fallbacks.values()) == 1
    torch._dynamo.reset()
    options.strict = True
    with pytest.raises(BackendCompilerFailed, match=r"UnsupportedError: op aten\._linalg_eigh"):
        _compiled(lambda v: torch.linalg.eigvalsh(v))(torch.eye(2, device=LOCAL))


def test_the_example_trains_and_waits_once_an_epoch(remote: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples/eager_digits.py"))
    example["main"](_name_of(remote), epochs=2)
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[3]) for line in lines[:2]]
    assert losses[1] < losses[0] < 2.3
    assert all(line.endswith("22 steps, 1 round trip") for line in lines[:2])
    assert f"on {remote}" in lines[2]
