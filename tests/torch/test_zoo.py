"""The zoo on our devices, nothing on the CPU: results, gradients and three steps of SGD beside torch's own."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.torch.zoo import ZOO, Case, build
from umd_torch import counters, session

OUTPUTS, GRADIENTS, PARAMETERS = 1e-5, 1e-4, 1e-4
STEPS, RATE = 3, 0.05

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and of torch about it


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    """The name of a device of a server in another process."""
    command = [sys.executable, "-m", "umd_grpc.server", "--device", "sim:0", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        name = f"grpc://{json.loads(process.stdout.readline())['listen'][0]}/sim:0"
        yield name
        session._SESSIONS.pop(name).device.close()
        process.terminate()


def compiled(model: nn.Module, device: str) -> Callable[..., Any]:
    return torch.compile(model, backend="umd", options={"device": device, "strict": True})


def floats(results: Any) -> list[Tensor]:
    """Returns the floating-point tensors of what a model returned."""
    leaves = tree_leaves(results if isinstance(results, Tensor) else dict(results))
    return [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]


def close(found: Tensor, wanted: Tensor, tolerance: float, floor: float) -> bool:
    """Returns whether two tensors agree within `tolerance` of the largest element, or within `floor`."""
    return bool((found - wanted).abs().max() <= tolerance * wanted.abs().max() + floor)


@pytest.mark.parametrize("name", ZOO)
def test_inference(name: str) -> None:
    infer_beside_torch(name, "sim:0")


@pytest.mark.parametrize("name", ZOO)
def test_inference_through_a_server(name: str, remote: str) -> None:
    infer_beside_torch(name, remote)


@pytest.mark.parametrize("name", ZOO)
def test_inference_with_our_cuda_kernels(name: str) -> None:
    infer_beside_torch(name, "cuda-cpu:0")


def infer_beside_torch(name: str, device: str) -> None:
    """Runs a model once on the device, a round trip a program, and in torch; compares results and their strides."""
    case = build(name)
    model = case.model.eval()
    with torch.no_grad():
        wanted, found = floats(case.results(model)), floats(case.results(compiled(model, device)))
    assert counters.programs == counters.submissions == counters.round_trips > 0
    assert len(wanted) == len(found) > 0
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.stride() == theirs.stride()
        assert close(ours, theirs, OUTPUTS, 0.0)


@pytest.mark.parametrize("name", ZOO)
def test_training(name: str) -> None:
    train_beside_torch(name, "sim:0")


@pytest.mark.parametrize("name", ZOO)
def test_training_through_a_server(name: str, remote: str) -> None:
    train_beside_torch(name, remote)


@pytest.mark.parametrize("name", ZOO)
def test_training_with_our_cuda_kernels(name: str) -> None:
    train_beside_torch(name, "cuda-cpu:0")


def train_beside_torch(name: str, device: str) -> None:
    """Takes three steps of SGD on the device and in torch, and compares losses, gradients and parameters."""
    case = build(name)
    ours = case.model.train()
    theirs = copy.deepcopy(ours)
    on_device = compiled(ours, device)
    optimizers = [torch.optim.SGD(model.parameters(), RATE) for model in (ours, theirs)]
    called: tuple[Callable[..., Any], ...] = (on_device, theirs)
    losses: list[list[float]] = [[], []]
    for step in range(STEPS):
        for which in range(2):
            losses[which].append(one_step(case, called[which], optimizers[which]))
        if not step:
            compare_gradients(ours, theirs)
        for optimizer in optimizers:
            optimizer.step()
    assert losses[0][0] == pytest.approx(losses[1][0], rel=OUTPUTS)
    assert losses[0] == pytest.approx(losses[1], rel=PARAMETERS)  # batch norms make small differences grow
    assert losses[0][-1] < losses[0][0]
    for (label, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert close(a, b, PARAMETERS, 1e-6), label


def one_step(case: Case, called: Callable[..., Any], optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = case.loss(case.results(called))
    loss.backward()
    return float(loss)


def compare_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    """Compares gradients. What is zero in exact arithmetic (a bias before a norm) is noise: it has a floor."""
    wanted = {label: p.grad for label, p in theirs.named_parameters() if p.grad is not None}
    floor = 1e-6 * max(float(grad.abs().max()) for grad in wanted.values())
    found = {label: p.grad for label, p in ours.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for label, grad in wanted.items():
        assert close(found[label], grad, GRADIENTS, floor), label
