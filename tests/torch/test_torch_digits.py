"""Training on the digits beside torch: losses of the first 20 steps, in process and through a server."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from umd_core.errors import DeviceLostError
from umd_torch import counters, digits, session, train_step

STEPS = 20
Step = Callable[[digits.Digits], float]


@pytest.fixture(scope="module")
def data() -> digits.Digits:
    return digits.load()[0]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Yields the address of a server in another process."""
    command = [sys.executable, "-m", "umd_grpc.server", "--device", "sim:0", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["listen"][0]
        process.terminate()


@pytest.fixture(scope="module")
def remote(server: str) -> Iterator[str]:
    """Yields the name of the server's device."""
    name = f"grpc://{server}/sim:0"
    yield name
    session._SESSIONS.pop(name).device.close()


@pytest.fixture(scope="module")
def wanted(data: digits.Digits) -> list[float]:
    """Returns torch's losses."""
    model = digits.net()
    return losses(data, eager(model, model))


def losses(data: digits.Digits, step: Step) -> list[float]:
    return [step(batch) for batch in itertools.islice(digits.batches(data), STEPS)]


def eager(model: torch.nn.Module, called: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """Returns the step of an ordinary training loop."""
    optimizer = digits.optimizer(model)

    def step(batch: digits.Digits) -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(called(batch.images), batch.labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def compiled(device: str) -> Step:
    model = digits.net()
    return eager(model, torch.compile(model, backend="umd", options={"device": device, "strict": True}))


def whole(device: str) -> Step:
    model = digits.net()
    step = train_step(model, functional.cross_entropy, digits.optimizer(model), device=device)
    return lambda batch: step(*batch).item()


def assert_same_and_falling(got: list[float], wanted: list[float]) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=0)
    assert sum(got[-5:]) < 0.9 * sum(got[:5])


@pytest.mark.parametrize("make", [compiled, whole])
def test_in_process(make: Callable[[str], Step], data: digits.Digits, wanted: list[float]) -> None:
    assert_same_and_falling(losses(data, make("sim:0")), wanted)
    assert not counters.fallbacks


@pytest.mark.parametrize(("make", "trips"), [(compiled, 2), (whole, 1)])
def test_through_a_server(
    make: Callable[[str], Step], trips: int, data: digits.Digits, wanted: list[float], remote: str
) -> None:
    step = make(remote)
    first, *rest = itertools.islice(digits.batches(data), STEPS)
    got = [step(first)]
    device: Any = session.session_for(remote).device
    before, counted = device.round_trips, counters.round_trips
    got += [step(batch) for batch in rest]
    assert_same_and_falling(got, wanted)
    assert device.round_trips - before == trips * len(rest)
    assert counters.round_trips - counted == trips * len(rest)


def test_a_server_that_dies_is_a_typed_error(data: digits.Digits) -> None:
    command = [sys.executable, "-m", "umd_grpc.server", "--device", "sim:0", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    name = f"grpc://{json.loads(process.stdout.readline())['listen'][0]}/sim:0"
    try:
        step = whole(name)
        batch = next(digits.batches(data))
        step(batch)
        process.kill()
        with pytest.raises(DeviceLostError):
            step(batch)
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
        session._SESSIONS.pop(name).device.close()
