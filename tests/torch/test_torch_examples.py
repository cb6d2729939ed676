"""What the documents show: the demo, the example client of the original design, the example backend."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional

from umd_core.errors import DeviceLostError, UmdError
from umd_torch import demo, digits, session

ROOT = Path(__file__).parents[2]


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yields the address of a server in another process."""
    with demo.served() as found:
        yield found


@pytest.fixture(scope="module")
def client() -> ModuleType:
    return module("examples/autograd_function.py")


@pytest.fixture(scope="module")
def server(client: ModuleType, address: str) -> Iterator[Any]:
    connected = client.Server(address)
    yield connected
    connected.close()


def test_the_example_client_s_gradients_are_derivatives(client: ModuleType, server: Any) -> None:
    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    check = torch.autograd.gradcheck
    assert check(lambda x, y: client.Add.apply(server, x, y), (tensor(2, 3), tensor(3)))
    assert check(lambda x, y: client.Add.apply(server, x, y), (tensor(1, 3), tensor(2, 1)))
    assert check(lambda x, y: client.MatMul.apply(server, x, y), (tensor(2, 3), tensor(3, 4)))
    assert check(lambda x: client.Relu.apply(server, x), (tensor(4, 2),))


def test_the_example_client_computes_what_torch_does(client: ModuleType, server: Any) -> None:
    weights = [torch.randn(1, 5), torch.randn(5), torch.randn(5, 2), torch.randn(2)]
    x = torch.randn(7, 1)
    wanted = torch.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
    torch.testing.assert_close(client.network(server, x, weights), wanted)


def test_the_example_client_says_what_is_wrong(client: ModuleType, server: Any) -> None:
    with pytest.raises(UmdError, match=r"columns|rows"):
        client.MatMul.apply(server, torch.randn(2, 3), torch.randn(4, 2))
    with pytest.raises(DeviceLostError):
        client.Server("127.0.0.1:1", seconds=2.0)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the name of a device of the worked example backend, which has the level-0 kernels only."""
    backend = module("docs/example_backend/umd_example.py")
    device = backend.ExampleDevice("example:0")
    monkeypatch.setitem(session._SESSIONS, "example:0", session.Session("example:0", device))
    return "example:0"


def test_the_example_backend_trains_the_digits(example: str) -> None:
    training, _ = digits.load()
    mine, theirs = digits.by_train_step(example), digits.by_torch()
    losses = [(mine.step(b), theirs.step(b)) for b in itertools.islice(digits.batches(training), 20)]
    got, wanted = map(list, zip(*losses, strict=True))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=0)
    assert demo.falls(got)


def test_the_example_backend_runs_compiled_models(example: str) -> None:
    model = digits.net()
    compiled = torch.compile(model, backend="umd", options={"device": example, "strict": True})
    x, y = torch.randn(3, 1, 8, 8), torch.tensor([1, 2, 3])
    functional.cross_entropy(compiled(x), y).backward()
    got = [p.grad for p in model.parameters()]
    model.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    torch.testing.assert_close(got, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-5)


def test_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.demo(device="sim:0", epochs=1) == 0
    shown = capsys.readouterr().out
    assert "loss of step 20" in shown
    assert "round trips a step" in shown
    assert "agree within 1e-05 and fall" in shown


def test_the_demo_through_a_server_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.demo(epochs=1, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["agree"] is True
    assert document["check"]["execution_result"] == "right"
    assert document["check"]["kernel_name"] == "elementwise_add_kernel"
    assert document["torch.compile"]["round_trips_per_step"] == 2
    assert document["train_step"]["round_trips_per_step"] == 1
    assert document["train_step"]["bytes_down_per_step"] == 4


def test_the_demo_fails_when_losses_differ_or_do_not_fall() -> None:
    falling = [2.0 - 0.05 * i for i in range(demo.SHOWN)]
    reference = demo.Run(losses=falling)
    assert demo.agrees(demo.Run(losses=[x * (1 + 5e-6) for x in falling]), reference)
    assert not demo.agrees(demo.Run(losses=[x * (1 + 2e-5) for x in falling]), reference)
    assert not demo.agrees(demo.Run(losses=[2.0] * demo.SHOWN), demo.Run(losses=[2.0] * demo.SHOWN))


def test_the_digits_example(capsys: pytest.CaptureFixture[str]) -> None:
    module("examples/train_digits.py").main("sim:0")
    shown = capsys.readouterr().out
    assert "epoch 5" in shown
    assert "test accuracy 9" in shown
