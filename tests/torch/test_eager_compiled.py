"""torch.compile over tensors of the eager device, beside torch on the CPU: layouts, layers, the zoo."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional
from torch.testing import assert_close

import umd_torch
from tests.torch.test_eager_zoo import on
from tests.torch.test_zoo import GRADIENTS, OUTPUTS, close
from tests.torch.zoo import ZOO, build
from umd_torch import counters

DEVICE = umd_torch.connect("sim:0")

pytestmark = [
    pytest.mark.usefixtures("only_the_device"),
    pytest.mark.filterwarnings("ignore"),  # of transformers and of torch about it
]


def compiled(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="umd", options={"strict": True}, **settings)


def compare_gradients(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> None:
    for found, wanted in zip(ours, theirs, strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert_close(found.grad.cpu(), wanted.grad)


# results and gradients through views


class Between(nn.Module):
    """A view between two layers: what the second needs for backward is the view."""

    def __init__(self, view: Callable[[Tensor], Tensor], wide: int) -> None:
        super().__init__()
        self.first, self.second, self._view = nn.Linear(4, 4), nn.Linear(wide, 2), view

    def forward(self, x: Tensor) -> Any:
        return self.second(self._view(self.first(x)))


VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "first": (lambda y: y[:, 0], 4),
    "last": (lambda y: y[:, -1], 4),
    "every-second": (lambda y: y[:, ::2], 4),
    "half": (lambda y: y[..., :2], 2),
    "transposed": (lambda y: y.transpose(0, 1), 4),
    "expanded": (lambda y: y[:, :1].expand(2, 3, 4), 4),
    "windows": (lambda y: y.unfold(2, 3, 1), 3),
    "diagonal": (lambda y: y[:, :4].diagonal(0, 1, 2), 4),
}


@pytest.mark.parametrize("name", VIEWS)
def test_gradients_through_a_view(name: str) -> None:
    theirs = Between(*VIEWS[name])
    ours = copy.deepcopy(theirs).to(DEVICE)
    x = torch.randn(2, 5, 4)
    compiled(ours)(x.to(DEVICE)).square().sum().backward()
    theirs(x).square().sum().backward()
    compare_gradients(ours.parameters(), theirs.parameters())


def test_gradients_of_a_product_of_two_views() -> None:
    theirs = nn.Linear(4, 4)
    ours = copy.deepcopy(theirs).to(DEVICE)
    x = torch.randn(3, 4)

    def product(layer: nn.Module, x: Tensor) -> Tensor:
        y = layer(x)
        total: Tensor = (y[..., :2] @ y[..., 2:].T).square().sum()
        return total

    compiled(product)(ours, x.to(DEVICE)).backward()
    product(theirs, x).backward()
    compare_gradients(ours.parameters(), theirs.parameters())


RETURNED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "every-second": (lambda x: (x * 2)[:, ::2], (2, 6)),
    "expanded": (lambda x: (x * 2)[:, :1].expand(3, 5), (3, 6)),
    "expanded-rows": (lambda x: x.sum(0).expand(4, 6), (3, 6)),
    "windows": (lambda x: (x * 2).unfold(0, 3, 1), (6,)),
    "windows-of-rows": (lambda x: (x * 2).unfold(1, 3, 2), (2, 7)),
    "diagonal": (lambda x: (x * 2).diagonal(), (4, 4)),
    "transposed-rows": (lambda x: (x * 2).T[::2], (4, 4)),
    "channels-last": (lambda x: (x * 2).to(memory_format=torch.channels_last)[:, :2], (2, 4, 3, 3)),
    "as-strided": (lambda x: (x * 2).as_strided((3, 2), (1, 2), 1), (8,)),
    "empty": (lambda x: (x * 2)[:, 3:3], (2, 6)),
}


@pytest.mark.parametrize("name", RETURNED)
def test_results_lie_as_torch_has_them(name: str) -> None:
    function, shape = RETURNED[name]
    x = torch.randn(shape)
    found, wanted = compiled(function)(x.to(DEVICE)), function(x)
    assert found.device == DEVICE
    assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
    assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("name", RETURNED)
def test_results_on_the_cpu_lie_as_torch_has_them(name: str) -> None:
    function, shape = RETURNED[name]
    x, y = torch.randn(shape), torch.randn(())
    found = compiled(lambda x, y: function(x.cpu() + y))(x.to(DEVICE), y)
    wanted = function(x + y)
    assert found.device.type == "cpu"
    assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
    assert torch.equal(found, wanted)


def test_too_large_a_constant_of_places_is_refused() -> None:
    x = torch.zeros(1 << 17, device=DEVICE)
    with pytest.raises(BackendCompilerFailed, match="elements overlap in 131072 places"):
        compiled(lambda x: (x + 1).unfold(0, 3, 1))(x)


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN], ids=["gru", "lstm", "rnn"])
def test_recurrent_layers(layer: Callable[..., nn.Module]) -> None:
    theirs = layer(4, 3, batch_first=True)
    ours = copy.deepcopy(theirs).to(DEVICE)
    x = torch.randn(2, 3, 4)
    compiled(ours)(x.to(DEVICE))[0][:, -1].square().sum().backward()
    theirs(x)[0][:, -1].square().sum().backward()
    compare_gradients(ours.parameters(), theirs.parameters())


@pytest.mark.parametrize("layer", [nn.GRUCell, nn.LSTMCell, nn.RNNCell], ids=["gru", "lstm", "rnn"])
def test_recurrent_cells(layer: Callable[..., nn.Module]) -> None:
    theirs = layer(4, 3)
    ours = copy.deepcopy(theirs).to(DEVICE)
    x = torch.randn(2, 4)
    found, wanted = compiled(ours, fullgraph=True)(x.to(DEVICE)), theirs(x)
    for mine, other in zip(_several(found), _several(wanted), strict=True):
        assert_close(mine.cpu(), other)
    sum(y.square().sum() for y in _several(found)).backward()
    sum(y.square().sum() for y in _several(wanted)).backward()
    compare_gradients(ours.parameters(), theirs.parameters())


def _several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


# arguments that lie in other ways than torch has said


@pytest.mark.parametrize("back", [lambda t: t, lambda t: t.to(DEVICE)], ids=["stays", "comes-back"])
def test_what_hooks_have_moved_to_the_cpu(back: Callable[[Tensor], Tensor]) -> None:
    theirs = Between(*VIEWS["every-second"])
    ours = copy.deepcopy(theirs).to(DEVICE)
    x = torch.randn(2, 5, 4)
    loss = compiled(lambda x: ours(x).square().sum())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), back):
        loss(x.to(DEVICE)).backward()
    theirs(x).square().sum().backward()
    compare_gradients(ours.parameters(), theirs.parameters())


def test_what_hooks_have_laid_out_anew_is_read_as_it_lies() -> None:
    x = torch.randn(3, 4)

    def turned(tensor: Tensor) -> Tensor:
        return tensor.T.contiguous().T if tensor.dim() == 2 else tensor

    def function(x: Tensor) -> Tensor:
        y = x.sin()
        return (y * y.cos()).sum()

    inner, outer = x.to(DEVICE).requires_grad_(), x.clone().requires_grad_()
    call = compiled(function)
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(turned, lambda t: t):
            call(inner).backward()
        call(inner).backward()
        function(outer).backward()
        function(outer).backward()
    compare_gradients([inner], [outer])


def test_strided_arguments_are_read_and_changed_where_they_lie() -> None:
    base = torch.randn(4, 6)
    inner, outer = base.to(DEVICE), base.clone()

    def function(v: Tensor, w: Tensor) -> Tensor:
        v.mul_(2)
        return v + w

    wide, narrow = torch.randn(4, 2), torch.randn(2)
    found = compiled(function)(inner[:, ::3], narrow.to(DEVICE).expand(4, 2))
    assert_close(found.cpu(), function(outer[:, ::3], narrow.expand(4, 2)))
    assert_close(inner.cpu(), outer)
    found = compiled(function)(inner[:, 1::3], wide.T.contiguous().to(DEVICE).T)
    assert_close(found.cpu(), function(outer[:, 1::3], wide))
    assert_close(inner.cpu(), outer)


def test_strided_tensors_of_the_cpu_are_sent_as_they_are_read() -> None:
    x, v = torch.randn(3, 2), torch.randn(3, 4)
    found = compiled(lambda x, v: x * v)(x.to(DEVICE), v[:, ::2].to(DEVICE))
    assert_close(found.cpu(), x * v[:, ::2])
    torch._dynamo.reset()
    found = compiled(lambda x, v: x * v.to(x.device))(x.to(DEVICE), v[:, ::2])
    assert_close(found.cpu(), x * v[:, ::2])


def test_tensors_that_the_graph_holds() -> None:
    def function(x: Tensor) -> Tensor:
        places = torch.tensor([2, 0, 2], device=x.device)
        return x[places] * torch.tensor([1.0, 2.0, 3.0], device=x.device) + torch.tensor(0.5)

    x = torch.randn(3)
    inner, outer = x.to(DEVICE).requires_grad_(), x.clone().requires_grad_()
    call = compiled(function)
    for _ in range(2):
        found, wanted = call(inner), function(outer)
        assert_close(found.detach().cpu(), wanted.detach())
        found.sum().backward()
        wanted.sum().backward()
    compare_gradients([inner], [outer])


PARTS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "pairs": (functional.pdist, (5, 3)),
    "pairs-by-1": (lambda x: functional.pdist(x, 1), (5, 3)),
    "distances": (lambda x: torch.cdist(x, x[:2] * 2), (5, 3)),
    "edges": (lambda x: functional.pad(x, (2, 1, 1, 1), "replicate"), (2, 3, 4, 4)),
    "cut-edges": (lambda x: functional.pad(x, (-1, 2), "replicate"), (2, 3, 4)),
    "mirrored": (lambda x: functional.pad(x, (2, 1, 1, 1), "reflect"), (2, 3, 4, 4)),
    "bicubic": (lambda x: functional.interpolate(x, size=(5, 7), mode="bicubic"), (1, 2, 3, 3)),
    "margins": (lambda x: functional.multi_margin_loss(x, torch.tensor([0, 1], device=x.device)), (2, 4)),
}


@pytest.mark.parametrize("name", PARTS)
def test_ops_whose_parts_make_tensors(name: str) -> None:
    function, shape = PARTS[name]
    x = torch.randn(shape)
    inner, outer = x.to(DEVICE).requires_grad_(), x.clone().requires_grad_()
    found, wanted = compiled(function)(inner), function(outer)
    assert_close(found.detach().cpu(), wanted.detach())
    found.square().sum().backward()
    wanted.square().sum().backward()
    compare_gradients([inner], [outer])


# the zoo


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_trains(name: str) -> None:
    theirs, ours = build(name), on(DEVICE, name)
    theirs.model.train()
    found, wanted = ours.loss(ours.results(compiled(ours.model.train()))), theirs.loss(theirs.results(theirs.model))
    found.backward()
    wanted.backward()
    assert found.item() == pytest.approx(wanted.item(), rel=OUTPUTS)
    gradients = {label: p.grad for label, p in theirs.model.named_parameters() if p.grad is not None}
    floor = 1e-6 * max(float(gradient.abs().max()) for gradient in gradients.values())
    same = {label: p.grad for label, p in ours.model.named_parameters() if p.grad is not None}
    assert same.keys() == gradients.keys()
    for label, gradient in gradients.items():
        assert close(same[label].cpu(), gradient, GRADIENTS, floor), label
    assert not counters.fallbacks
