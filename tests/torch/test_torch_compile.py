"""torch.compile(backend="umd"): models beside torch, and what stays on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional

from umd_core.errors import AttributeValueError, IndexRangeError
from umd_torch import counters
from umd_torch.digits import Net
from umd_torch.handles import DeviceTensor

SIM: dict[str, Any] = {"device": "sim:0", "strict": True}
Model = Callable[..., Any]


class BatchNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(functional.relu(self.norm(self.convolution(x))).mean((2, 3)))
        return result


class Tied(nn.Module):
    """A token's embedding is also its output weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.out = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(functional.gelu(self.norm(self.embedding(tokens))))
        return result


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (mlp, lambda: torch.randn(5, 6)),
    "digits": (Net, lambda: torch.randn(3, 1, 8, 8)),
    "batch_norm": (BatchNormNet, lambda: torch.randn(4, 3, 6, 6)),
    "tied": (Tied, lambda: torch.randint(0, 11, (2, 7))),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), lambda: torch.randn(2, 5, 8),
    ),
    "lstm": (lambda: nn.LSTM(4, 6, 2, batch_first=True), lambda: torch.randn(2, 3, 4)),
}  # fmt: skip


def first(result: Any) -> torch.Tensor:
    value: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return value


def pair(name: str, options: dict[str, Any]) -> tuple[nn.Module, Model, nn.Module, torch.Tensor]:
    """Returns a model, the same compiled, a copy that torch runs, and an input."""
    build, example = MODELS[name]
    model = build()
    reference = copy.deepcopy(model)
    return model, torch.compile(model, backend="umd", options=options), reference, example()


def assert_same_training(model: nn.Module, reference: nn.Module, got: Any, wanted: Any) -> None:
    """Asserts that results, gradients and buffers agree, and that gradients lie as torch's do."""
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    for loss in (first(got), first(wanted)):
        (loss * torch.linspace(-1, 1, loss.numel()).reshape(loss.shape)).sum().backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=2e-5)
        assert mine.grad.stride() == theirs.grad.stride()
    torch.testing.assert_close(list(model.buffers()), list(reference.buffers()))


@pytest.mark.parametrize("name", MODELS)
def test_training_beside_torch(name: str) -> None:
    model, compiled, reference, x = pair(name, SIM)
    assert_same_training(model, reference, compiled(x), reference(x))
    assert not counters.fallbacks


@pytest.mark.parametrize("name", MODELS)
def test_inference_beside_torch(name: str) -> None:
    model, compiled, reference, x = pair(name, SIM)
    model.eval(), reference.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), reference(x), rtol=1e-5, atol=1e-5)
    assert not counters.fallbacks


@pytest.mark.parametrize("name", ["digits", "batch_norm", "tied"])
def test_training_on_a_device_with_its_own_memory(name: str, plain: str) -> None:
    model, compiled, reference, x = pair(name, {"device": plain, "strict": True})
    assert_same_training(model, reference, compiled(x), reference(x))


def test_activations_stay_on_the_device(plain: str) -> None:
    model, compiled, _, x = pair("digits", {"device": plain, "strict": True})
    result = compiled(x)
    assert counters.handles > 5
    assert counters.round_trips == 1
    assert counters.bytes_down == 120  # 30 logits
    sent = counters.bytes_up
    assert sent < 4 * sum(p.numel() for p in model.parameters()) + x.numel() * 4 + 64 * 8
    result.sum().backward()
    assert counters.round_trips == 2
    assert counters.bytes_up - sent == 120  # the gradient of the logits alone
    assert counters.materialised == 0


def test_host_tensors_are_bound_in_place_where_the_device_sees_them() -> None:
    _, compiled, _, x = pair("digits", SIM)
    compiled(x).sum().backward()
    assert counters.bytes_up == 0
    assert counters.uploads == 0


def test_inference_sends_weights_once(plain: str) -> None:
    _, compiled, reference, x = pair("digits", {"device": plain, "strict": True})
    with torch.no_grad():
        compiled(x)
        assert counters.uploads == 6
        counters.reset()
        torch.testing.assert_close(compiled(2 * x), reference(2 * x), rtol=1e-5, atol=1e-5)
    assert counters.uploads == 0
    assert counters.bytes_up == x.numel() * 4
    assert counters.round_trips == 1


def test_training_sends_only_what_the_optimizer_changed(plain: str) -> None:
    model, compiled, _, x = pair("digits", {"device": plain, "strict": True})
    optimizer = torch.optim.SGD([list(model.parameters())[-1]], lr=0.1)
    compiled(x).sum().backward()
    counters.reset()
    optimizer.step()
    compiled(x).sum().backward()
    assert counters.uploads == 1
    assert counters.round_trips == 2


@pytest.mark.parametrize("large", [False, True], ids=["whole", "sampled"])
def test_bytes_that_change_without_a_version_are_noticed(large: bool, plain: str) -> None:
    model = nn.Linear(256, 128 if large else 4)
    compiled = torch.compile(model, backend="umd", options={"device": plain, "strict": True})
    x = torch.randn(2, 256)
    with torch.no_grad():
        compiled(x)
        version = model.weight._version
        model.weight.data.mul_(3)
        model.weight.detach().numpy()[0, 0] = 7
        assert model.weight._version == version
        counters.reset()
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert counters.stale == 1
    assert counters.uploads == 1


def test_a_replaced_parameter_is_sent(plain: str) -> None:
    model = nn.Linear(3, 2)
    compiled = torch.compile(model, backend="umd", options={"device": plain, "strict": True})
    x = torch.randn(4, 3)
    with torch.no_grad():
        compiled(x)
        model.weight.data = torch.randn(2, 3)
        torch.testing.assert_close(compiled(x), model(x))


def test_a_view_sends_its_own_bytes(plain: str) -> None:
    function = torch.compile(lambda a: a + 1, backend="umd", options={"device": plain, "strict": True})
    whole = torch.randn(1000, 1000)
    torch.testing.assert_close(function(whole[:4, 2]), whole[:4, 2] + 1)
    assert counters.bytes_up == 16
    torch.testing.assert_close(function(whole[:2, :2].t()), whole[:2, :2].t() + 1)
    assert counters.bytes_up == 32


def test_two_forwards_then_two_backwards(plain: str) -> None:
    model, compiled, reference, x = pair("digits", {"device": plain, "strict": True})
    (compiled(x).sum() - compiled(2 * x).exp().sum()).backward()
    (reference(x).sum() - reference(2 * x).exp().sum()).backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_backward_twice_through_one_forward(plain: str) -> None:
    model, compiled, reference, x = pair("mlp", {"device": plain, "strict": True})
    for network in (compiled, reference):
        result = network(x).square().sum()
        result.backward(retain_graph=True)
        result.backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_whoever_looks_at_a_saved_tensor_sees_its_numbers(plain: str) -> None:
    model, compiled, reference, x = pair("mlp", {"device": plain, "strict": True})
    seen: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DeviceTensor):
            assert "on plain:0" in repr(tensor)
            seen.append(tensor)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compiled(x).sum().backward()
    assert seen
    assert counters.materialised >= len(seen)
    reference(x).sum().backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_inputs_changed_in_place() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        b[1] = 5
        return a + b

    results = []
    for call in (torch.compile(function, backend="umd", options=SIM), function):
        a, b = torch.arange(3.0), torch.zeros(3)
        results.append((call(a, b), a, b))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t(), lambda x: (x + 1).t(), lambda x: (x, x[0], (x * 2)[:, 1:]), lambda x: x.sum(0).expand(4, 3),
        lambda x: (x, None, 3, {"a": x.exp()}), lambda x: torch.empty(0) + x[:0, 0], lambda x: x.detach(),
        lambda x: (x + 1).to(memory_format=torch.contiguous_format).unsqueeze(0).expand(2, 2, 3),
    ],
    ids=["view", "transposed", "several", "expanded", "structure", "empty", "detached", "repeated"],
)  # fmt: skip
def test_results_lie_as_torch_says(function: Model) -> None:
    x = torch.randn(2, 3)
    got, wanted = torch.compile(function, backend="umd", options=SIM)(x), function(x)
    torch.testing.assert_close(got, wanted)
    if isinstance(wanted, torch.Tensor):
        assert got.stride() == wanted.stride()


@pytest.mark.parametrize("dynamic", [True, None])
def test_other_sizes(dynamic: bool | None) -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(1, 2), nn.LayerNorm(12))
    compiled = torch.compile(model, backend="umd", options=SIM, dynamic=dynamic)
    for batch in (2, 5, 3, 1, 7):
        x = torch.randn(batch, 2, 6)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        weights = list(model.parameters())
        mine, theirs = (torch.autograd.grad(f(x).square().sum(), weights) for f in (compiled, model))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_sizes_and_floats_that_change() -> None:
    def function(x: Any, n: Any, f: Any) -> Any:
        return x.reshape(-1, n) * f + x.shape[0]

    compiled: Any = torch.compile(function, backend="umd", options=SIM, dynamic=True)
    for rows, n, factor in ((4, 2, 0.5), (6, 3, 1.5), (8, 4, -2.0)):
        x = torch.randn(rows, n)
        torch.testing.assert_close(compiled(x, n, factor), function(x, n, factor))


def test_threads_that_call_at_once(plain: str) -> None:
    _, compiled, reference, x = pair("mlp", {"device": plain, "strict": True})
    with torch.no_grad():
        compiled(x)
        inputs = [torch.randn_like(x) for _ in range(24)]
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda v: infer(compiled, v), inputs))
        for got, given in zip(results, inputs, strict=True):
            torch.testing.assert_close(got, reference(given), rtol=1e-5, atol=1e-5)


def infer(compiled: Model, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():  # which each thread says for itself
        return first(compiled(x))


def test_an_index_out_of_range_is_an_error_and_the_next_call_works() -> None:
    compiled = torch.compile(nn.Embedding(3, 2), backend="umd", options=SIM)
    with torch.no_grad(), pytest.raises(IndexRangeError):
        compiled(torch.tensor([1, 3]))
    with torch.no_grad():
        assert compiled(torch.tensor([1, 2])).shape == (2, 2)


@pytest.mark.parametrize(
    ("options", "attribute"),
    [({"devise": "sim:0"}, "devise"), ({"device": 3}, "device"), ({"device": "sim:0", "strict": "yes"}, "strict")],
)
def test_unknown_and_ill_typed_options(options: dict[str, Any], attribute: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=attribute) as caught:
        torch.compile(lambda x: x + 1, backend="umd", options=options)(torch.zeros(1))
    assert isinstance(caught.value.inner_exception, AttributeValueError)


def test_the_device_is_the_environment_s_or_the_best(monkeypatch: pytest.MonkeyPatch, plain: str) -> None:
    x = torch.randn(3)
    monkeypatch.setenv("UMD_DEVICE", plain)
    torch.testing.assert_close(torch.compile(lambda v: v + 1, backend="umd")(x), x + 1)
    assert counters.bytes_up
    counters.reset()
    monkeypatch.delenv("UMD_DEVICE")
    torch.testing.assert_close(torch.compile(lambda v: v + 2, backend="umd")(x), x + 2)
    assert counters.submissions == 1
    assert not counters.bytes_up
