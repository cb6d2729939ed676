"""Bad input at every entrance: torch's or our clear error, or the right number; never a wrong one.

What the eager device refuses is in test_eager_refusals.py; of compiled graphs more is in test_torch_mutation.py and
test_torch_fallback.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed, TorchRuntimeError, Unsupported
from torch.nn import functional

from umd_core.errors import DTypeError, UnsupportedError
from umd_torch import connect, export, train_step

pytestmark = pytest.mark.filterwarnings("ignore:.*(torch.jit|isinstance|treespec|LeafSpec):")  # torch's, of itself

X, Y = torch.randn(4, 3), torch.randn(4, 2)


def compiled(function: Any, device: str, **keywords: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="umd", options={"device": device, "strict": True}, **keywords)


@pytest.fixture(params=["sim:0", "plain"])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.getfixturevalue("plain") if request.param == "plain" else request.param
    return name


# shapes and decisions that depend on data


class Picking(nn.Module):
    """Rows whose first number is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)[x[:, 0] > 0].sum()
        return found


class Deciding(Picking):
    """Another result where the sum is positive."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        result: torch.Tensor = y.sum() if x.sum() > 0 else y.mean()
        return result


@pytest.mark.parametrize(
    "function",
    [lambda x: x.nonzero(), lambda x: x.masked_select(x > 0) * 2, lambda x: torch.unique(x) + 1],
    ids=["nonzero", "masked_select", "unique"],
)
def test_shapes_that_depend_on_data_in_one_graph(function: Callable[..., Any]) -> None:
    x = torch.tensor([1.0, -1.0, 2.0])
    with pytest.raises(BackendCompilerFailed, match=r"depends on data|no lowering") as caught:
        compiled(function, "sim:0", fullgraph=True)(x)
    assert isinstance(caught.value.inner_exception, UnsupportedError)
    assert "test_bad_input.py:" in str(caught.value.inner_exception)
    assert torch.equal(compiled(function, "sim:0")(x), function(x))  # torch itself does that part


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it
def test_decisions_by_data_in_one_graph() -> None:
    with pytest.raises(Unsupported, match="Data-dependent branching"):
        compiled(Deciding(), "sim:0", fullgraph=True)(X)
    model = Deciding()
    torch.testing.assert_close(compiled(model, "sim:0")(X), model(X))


@pytest.mark.parametrize("model", [Picking, Deciding])
def test_whole_steps_that_depend_on_data(model: type[nn.Module]) -> None:
    made = model()
    step = train_step(made, lambda y, _: y, torch.optim.SGD(made.parameters()), device="sim:0")
    with pytest.raises(UnsupportedError, match="depends on what a tensor holds") as caught:
        step(X, Y)
    assert "test_bad_input.py:" in caught.value.facts()["source"]


@pytest.mark.parametrize("model", [Picking, Deciding])
def test_files_of_what_depends_on_data(model: type[nn.Module], tmp_path: Path) -> None:
    with pytest.raises((UnsupportedError, RuntimeError), match=r"depends on data|data-dependent expression"):
        export(model(), (X,), tmp_path / "x.umd")
    assert not list(tmp_path.iterdir())


# ops that are not there


class Bessel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.special.i1(self.layer(x))
        return y


def test_an_op_whose_gradient_alone_is_not_there() -> None:
    x = torch.randn(1, 1, 4, 4)
    grid = torch.rand(1, 3, 3, 2, requires_grad=True)
    call = compiled(lambda g: functional.grid_sample(x, g, align_corners=False).sum(), "sim:0")
    try:
        call(grid).backward()
    except (BackendCompilerFailed, UnsupportedError) as error:
        assert "grid_sampler" in str(error)  # it may be raised in forward or in backward
    else:
        other = grid.detach().clone().requires_grad_()
        functional.grid_sample(x, other, align_corners=False).sum().backward()
        torch.testing.assert_close(grid.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_ops_that_are_not_there(tmp_path: Path) -> None:
    model = Bessel()
    with pytest.raises(BackendCompilerFailed, match=r"special_i1.*no lowering"):
        compiled(model, "sim:0")(X)
    with pytest.raises(UnsupportedError, match=r"special_i1.*no lowering"):
        train_step(model, functional.mse_loss, torch.optim.SGD(model.parameters()), device="sim:0")(X, Y)
    with pytest.raises(UnsupportedError, match=r"special_i1.*no lowering"):
        export(model, (X,), tmp_path / "x.umd")


# tensors of several devices


def test_tensors_that_are_not_the_cpu_s(tmp_path: Path) -> None:
    meta = nn.Linear(3, 2, device="meta")
    with pytest.raises(TorchRuntimeError, match="same device"):
        compiled(meta, "sim:0")(X)
    with pytest.raises(BackendCompilerFailed, match="a tensor on meta"):
        compiled(lambda x: x + 1, "sim:0")(X.to("meta"))
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(UnsupportedError, match="part 0 of the batch lies on meta; give it from the CPU"):
        train_step(model, functional.mse_loss, optimizer, device="sim:0")(X.to("meta"), Y)
    with pytest.raises(UnsupportedError, match=r"lies on meta: .*model\.cpu\(\)"):
        train_step(meta, functional.mse_loss, torch.optim.SGD(meta.parameters()), device="sim:0")
    with pytest.raises(RuntimeError, match="same device"):
        export(meta, (X,), tmp_path / "x.umd")


def test_tensors_of_the_eager_device_among_the_cpu_s() -> None:
    there = connect("sim:0")
    with pytest.raises(RuntimeError, match="same device"):
        compiled(lambda x, y: x + y, "sim:0")(X, X.to(there))
    model = nn.Linear(3, 2)
    step = train_step(model, functional.mse_loss, torch.optim.SGD(model.parameters()), device="sim:0")
    with pytest.raises(UnsupportedError, match="part 0 of the batch lies on umd:0; give it from the CPU"):
        step(X.to(there), Y)
    moved = nn.Linear(3, 2).to(there)
    with pytest.raises(UnsupportedError, match=r"lies on umd:0: .*model\.cpu\(\)"):
        train_step(moved, functional.mse_loss, torch.optim.SGD(moved.parameters()), device="sim:0")


@pytest.mark.parametrize("part", [X.numpy(), [1.0, 2.0], 3.0, None], ids=["numpy", "list", "number", "nothing"])
def test_what_is_no_tensor(part: Any) -> None:
    model = nn.Linear(3, 2)
    step = train_step(model, functional.mse_loss, torch.optim.SGD(model.parameters()), device="sim:0")
    with pytest.raises(DTypeError, match=r"input '0': is a .*, no tensor"):
        step(part, Y)
    with pytest.raises(DTypeError, match="input '1'"):
        step(X, part)


# tensors with gaps, in another order, over each other


def layouts() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Returns inputs (4, 3) and targets (4, 2) that do not lie row-major."""
    base = torch.randn(8, 6)
    return {
        "transposed": (torch.randn(3, 4).t(), torch.randn(2, 4).t()),
        "gaps": (base[::2, ::2], base[::2, 1::3]),
        "repeated": (torch.randn(1, 3).expand(4, 3), torch.randn(2).expand(4, 2)),
        "sliding": (torch.randn(6).as_strided((4, 3), (1, 1)), torch.randn(5).as_strided((4, 2), (1, 1))),
        "one base": (base[:4, :3], base[:4, 2:4]),
    }


@pytest.mark.parametrize("kind", layouts())
def test_layouts(kind: str, device: str) -> None:
    x, y = layouts()[kind]
    model = nn.Linear(3, 2)
    theirs = copy.deepcopy(model)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(model(x), y)

    wanted = functional.mse_loss(theirs(x), y)
    wanted.backward()
    got = compiled(loss, device)(x, y)
    got.backward()
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(model.weight.grad, theirs.weight.grad)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = train_step(model, functional.mse_loss, optimizer, device=device)
    torch.testing.assert_close(step(x, y), wanted)
    step.sync()
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    torch.testing.assert_close(model.weight, theirs.weight)


def test_inputs_over_each_other_that_are_changed(device: str) -> None:
    def change(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a + b

    mine, theirs = (torch.arange(8.0) for _ in range(2))
    torch.testing.assert_close(compiled(change, device)(mine[:5], mine[3:]), change(theirs[:5], theirs[3:]))
    assert torch.equal(mine, theirs)
    mine, theirs = (torch.arange(12.0).reshape(3, 4) for _ in range(2))
    torch.testing.assert_close(compiled(change, device)(mine[:, 1], mine[:, 2]), change(theirs[:, 1], theirs[:, 2]))
    assert torch.equal(mine, theirs)  # what lies between the elements is as it was


# gradients


def test_integers_have_no_gradient(device: str) -> None:
    w, i = torch.randn(3, requires_grad=True), torch.arange(3)
    compiled(lambda a, b: (a * b).sum(), device)(w, i).backward()
    assert torch.equal(w.grad, torch.tensor([0.0, 1.0, 2.0]))  # type: ignore[arg-type]  # there is one
    assert i.grad is None
    with pytest.raises(RuntimeError, match="floating point"):
        i.requires_grad_()
    with pytest.raises(RuntimeError, match="does not require grad"):
        compiled(lambda a: (a * 2).sum(), device)(i).backward()
    frozen = nn.Embedding(4, 2).requires_grad_(False)
    with pytest.raises(UnsupportedError, match="no parameter of the optimizer has a gradient"):
        step = train_step(frozen, functional.mse_loss, torch.optim.SGD(frozen.parameters()), device=device)
        step(torch.tensor([0, 1]), torch.zeros(2, 2))


class Penalty(nn.Module):
    """A loss of the norm of a gradient: backward goes through backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.layers(x).sum(), x, create_graph=True)
        loss: torch.Tensor = (slope.norm(dim=1) - 1).square().mean()
        return loss


def test_second_derivatives_within_a_whole_step(device: str) -> None:
    model = Penalty()
    theirs = copy.deepcopy(model)
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, theirs))
    step = train_step(model, lambda loss, _: loss, optimizer, device=device)
    for _ in range(3):
        other.zero_grad()
        wanted = theirs(X)
        wanted.backward()
        other.step()
        torch.testing.assert_close(step(X, Y), wanted.detach(), rtol=1e-5, atol=1e-6)
    step.sync()
    for mine, their in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, their, rtol=1e-4, atol=1e-6)


def test_second_derivatives_of_compiled_graphs(device: str) -> None:
    """Torch cannot go backward through a compiled backward pass, and says so."""
    x = torch.randn(3, requires_grad=True)
    (slope,) = torch.autograd.grad(compiled(lambda v: v.exp().sum(), device)(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        slope.sum().backward()
