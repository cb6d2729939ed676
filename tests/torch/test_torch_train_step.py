"""train_step beside torch's own optimizers: losses, parameters, state, round trips."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from umd_core.errors import InputCountError, ShapeError, UnsupportedError
from umd_torch import TrainStep, connect, counters, train_step
from umd_torch.digits import Net

Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "decay": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam_decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "ascent": lambda p: torch.optim.SGD(p, lr=0.001, maximize=True),
}  # fmt: skip


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))


def batch(rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 5), torch.randint(0, 3, (rows,))


def torch_step(model: nn.Module, optimizer: torch.optim.Optimizer, *data: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(*data[:-1]), data[-1])
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_same_state(mine: Any, theirs: Any, models: tuple[nn.Module, nn.Module]) -> None:
    """Asserts that parameters, buffers and optimizer states agree."""
    for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert mine.state[a].keys() == theirs.state[b].keys()
        for name, value in theirs.state[b].items():
            torch.testing.assert_close(mine.state[a][name], value, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("device", ["sim:0", "plain"])
def test_steps_beside_torch(name: str, device: str, plain: str) -> None:
    model = network()
    reference = copy.deepcopy(model)
    mine, theirs = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](reference.parameters())
    step = train_step(model, functional.cross_entropy, mine, device=plain if device == "plain" else device)
    for _ in range(6):
        data = batch()
        torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data), rtol=1e-5, atol=1e-6)
    step.sync()
    assert_same_state(mine, theirs, (model, reference))
    torch_step(model, mine, *data)  # torch goes on from what came back
    torch_step(reference, theirs, *data)
    assert_same_state(mine, theirs, (model, reference))


def test_a_step_is_one_submission_and_one_round_trip(plain: str) -> None:
    model = Net()
    step = train_step(model, functional.cross_entropy, torch.optim.AdamW(model.parameters()), device=plain)
    data = torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,))
    step(*data)
    counters.reset()
    step(*data)
    assert (counters.submissions, counters.round_trips, counters.programs) == (1, 1, 0)
    assert counters.bytes_down == 4
    assert counters.bytes_up == 4 * 64 * 4 + 64 + 64 + 8  # images, labels, learning rate, number of the step


def test_the_learning_rate_changes_without_a_new_program(plain: str) -> None:
    model = network()
    reference = copy.deepcopy(model)
    mine, theirs = OPTIMIZERS["momentum"](model.parameters()), OPTIMIZERS["momentum"](reference.parameters())
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (mine, theirs)]
    step = train_step(model, functional.cross_entropy, mine, device=plain)
    data = batch()
    for _ in range(4):
        torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data))
        for schedule in schedules:
            schedule.step()
    assert counters.programs == 1
    mine.param_groups[0]["weight_decay"] = theirs.param_groups[0]["weight_decay"] = 0.2
    for _ in range(2):
        torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data))
    assert counters.programs == 2


def test_parameter_groups_and_other_batch_sizes() -> None:
    model = network()
    reference = copy.deepcopy(model)

    def groups(network: nn.Sequential) -> torch.optim.Optimizer:
        first = {"params": network[0].parameters(), "lr": 0.02, "weight_decay": 0.0}
        rest: dict[str, Any] = {"params": network[2].parameters()}
        return torch.optim.AdamW([first, rest], lr=0.001)

    mine, theirs = groups(model), groups(reference)
    step = train_step(model, functional.cross_entropy, mine, device="sim:0")
    for rows in (8, 3, 8, 1, 3):
        data = batch(rows)
        torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data), rtol=1e-5, atol=1e-6)
    assert counters.programs == 3
    step.sync()
    assert_same_state(mine, theirs, (model, reference))


def test_batch_norm_changes_its_buffers_on_the_device() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    reference = copy.deepcopy(model)
    mine, theirs = OPTIMIZERS["momentum"](model.parameters()), OPTIMIZERS["momentum"](reference.parameters())
    step = train_step(model, functional.cross_entropy, mine, device="sim:0")
    for _ in range(3):
        data = batch()
        torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data), rtol=1e-4, atol=1e-5)
    step.sync()
    for a, b in zip(model.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    model.eval(), reference.eval()
    data = batch()
    torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data), rtol=1e-4, atol=1e-5)


class TiedNet(nn.Module):
    """Two names for one weight, a frozen parameter, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.full((5,), 2.0), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.tanh(self.first(x))) * self.scale
        return result


def test_tied_frozen_and_unused_parameters() -> None:
    model = TiedNet()
    reference = copy.deepcopy(model)
    mine, theirs = OPTIMIZERS["adam_decay"](model.parameters()), OPTIMIZERS["adam_decay"](reference.parameters())
    step = train_step(model, functional.cross_entropy, mine, device="sim:0")
    for _ in range(3):
        data = batch()
        torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data), rtol=1e-5, atol=1e-6)
    step.sync()
    assert model.second.weight is model.first.weight
    assert_same_state(mine, theirs, (model, reference))


FREEZING = ["none", "first", "first", "last", "none", "none", "first", "none"]
"""What is frozen in each of some steps."""


@pytest.mark.parametrize("name", ["momentum", "adamw", "adagrad"])
def test_parameters_are_frozen_and_thawed(name: str, plain: str) -> None:
    model = network()
    reference = copy.deepcopy(model)
    make = (lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1)) if name == "adagrad" else OPTIMIZERS[name]
    mine, theirs = make(model.parameters()), make(reference.parameters())
    step = train_step(model, functional.cross_entropy, mine, device=plain)
    for frozen in FREEZING:
        for module in (model, reference):
            module[0].requires_grad_(frozen != "first")
            module[2].requires_grad_(frozen != "last")
        data = batch()
        torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data), rtol=1e-5, atol=1e-6)
    step.sync()
    assert_same_state(mine, theirs, (model, reference))
    if name != "momentum":
        assert [int(mine.state[p]["step"]) for p in model.parameters()] == [5, 5, 7, 7]
    counters.reset()
    step(*batch())
    assert (counters.programs, counters.submissions, counters.round_trips) == (0, 1, 1)


@pytest.mark.parametrize("optimizer", [torch.optim.ASGD, torch.optim.Rprop, torch.optim.AdamW])
def test_state_that_starts_from_the_rate_of_the_first_update(optimizer: Any, plain: str) -> None:
    model = network()
    reference = copy.deepcopy(model)
    mine, theirs = (optimizer(m.parameters(), lr=0.02) for m in (model, reference))
    step = train_step(model, functional.cross_entropy, mine, device=plain)
    for number in range(5):
        for each in (mine, theirs):
            each.param_groups[0]["lr"] *= 0.5
        for module in (model, reference):
            module[0].requires_grad_(number > 1)  # begins later, at another rate
        data = batch()
        torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data), rtol=1e-5, atol=1e-6)
    step.sync()
    assert_same_state(mine, theirs, (model, reference))


def test_what_stays_frozen_makes_one_program() -> None:
    model = network()
    model[0].requires_grad_(False)
    before = copy.deepcopy(model[0].state_dict())
    step = train_step(model, functional.cross_entropy, torch.optim.AdamW(model.parameters()), device="sim:0")
    for _ in range(4):
        step(*batch())
    assert counters.programs == 1
    model[0].requires_grad_(True)
    for _ in range(4):
        step(*batch())
    assert counters.programs == 2
    step.sync()
    assert all(not torch.equal(value, before[name]) for name, value in model[0].state_dict().items())


def test_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[TrainStep.__module__], "PROGRAMS", 2)
    model = network()
    step = train_step(model, functional.cross_entropy, torch.optim.AdamW(model.parameters()), device="sim:0")
    for round_ in range(3):
        for frozen in (False, True):
            model[0].requires_grad_(not frozen)
            for rows in (4, 5):
                step(*batch(rows))
                assert len(step._programs) <= 2
                assert {kind for kind, _ in step._programs} == step._updated.keys()
        assert counters.programs == 4 * (round_ + 1)


def test_models_and_batches_that_are_elsewhere_are_refused() -> None:
    model = network()
    with pytest.raises(UnsupportedError, match=r"0\.weight lies on meta.*model\.cpu\(\)"):
        made(copy.deepcopy(model).to("meta"))
    device = connect("sim:0")
    with pytest.raises(UnsupportedError, match=r"0\.weight lies on umd:\d.*model\.cpu\(\).*torch\.compile"):
        made(copy.deepcopy(model).to(device))
    x, y = batch()
    with pytest.raises(UnsupportedError, match=r"part 1 of the batch lies on umd:\d"):
        made(model)(x, y.to(device))


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_training_goes_on_from_the_optimizer_s_state(name: str) -> None:
    model = network()
    reference = copy.deepcopy(model)
    mine, theirs = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](reference.parameters())
    for _ in range(3):
        data = batch()
        torch_step(model, mine, *data), torch_step(reference, theirs, *data)
    step = train_step(model, functional.cross_entropy, mine, device="sim:0")
    for _ in range(3):
        data = batch()
        torch.testing.assert_close(step(*data), torch_step(reference, theirs, *data), rtol=1e-5, atol=1e-6)
    step.sync()
    assert_same_state(mine, theirs, (model, reference))


def made(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train_step(model, functional.cross_entropy, optimizer, device="sim:0")


def test_a_change_on_the_host_is_sent_after_a_sync_and_refused_before() -> None:
    model = network()
    step, data = made(model), batch()
    step(*data)
    step.sync()
    with torch.no_grad():
        next(model.parameters()).zero_()
    wanted = functional.cross_entropy(model(data[0]), data[1])
    torch.testing.assert_close(step(*data), wanted.detach())
    with torch.no_grad():
        next(model.parameters()).fill_(0.5)
    with pytest.raises(UnsupportedError, match=r"0\.weight.*sync\(\).*load\(\)"):
        step(*data)
    step.load()
    wanted = functional.cross_entropy(model(data[0]), data[1])
    torch.testing.assert_close(step(*data), wanted.detach())


def test_sync_without_a_step_changes_nothing() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    made(model).sync()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS.*torch.optim"),
        (lambda p: torch.optim.SGD([*p, nn.Parameter(torch.zeros(1))], lr=1.0), "does not have"),
        (lambda p: torch.optim.SGD(p, lr=1.0, differentiable=True), "differentiable"),
    ],
    ids=["class", "stranger", "differentiable"],
)
def test_optimizers_that_are_not_there(optimizer: Optimizer, message: str) -> None:
    model = network()
    with pytest.raises(UnsupportedError, match=message):
        train_step(model, functional.cross_entropy, optimizer(list(model.parameters())), device="sim:0")


def test_parameters_added_later_and_names_like_ours() -> None:
    model = network()
    model.register_parameter("batch_0", nn.Parameter(torch.ones(1)))
    model.register_parameter("lr_0", nn.Parameter(torch.ones(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = train_step(model, functional.cross_entropy, optimizer, device="sim:0")
    step(*batch())
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(UnsupportedError, match="groups changed"):
        step(*batch())


def test_losses_and_nodes_that_are_not_there() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ShapeError, match="single number"):
        train_step(model, lambda out, y: out, optimizer, device="sim:0")(*batch())
    with pytest.raises(InputCountError):
        made(model)(batch()[0])

    def picked(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (out * torch.poisson(out.detach().exp())).mean()

    with pytest.raises(UnsupportedError, match="poisson") as caught:
        train_step(model, picked, optimizer, device="sim:0")(*batch())
    assert caught.value.facts()["node"]


def test_a_step_trains_where_gradients_are_off() -> None:
    model = network()
    before, data = copy.deepcopy(model.state_dict()), batch()
    with torch.no_grad():
        step = made(model)
        step(*data)
        step.sync()
    assert all(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_tensor_from_elsewhere_is_refused() -> None:
    model, weights = network(), torch.tensor([1.0, 2.0, 3.0])
    step = train_step(model, lambda y, _: (y * weights).sum(), torch.optim.SGD(model.parameters(), 0.1), device="sim:0")
    with pytest.raises(UnsupportedError, match="register it as a buffer"):
        step(*batch())


def test_the_model_s_source_line_is_in_the_program() -> None:
    model = TiedNet()
    program = made(model).program(*batch())
    sources = {entry.source for entry in program.command_buffer.debug}
    assert any("test_torch_train_step.py" in source for source in sources)
