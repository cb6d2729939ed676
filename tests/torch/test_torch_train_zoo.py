"""Whole training steps of every model of the zoo at a falling rate, each with another optimizer, beside torch's own."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.torch.test_torch_optimizers import OPTIMIZERS
from tests.torch.test_zoo import OUTPUTS, close
from tests.torch.zoo import ZOO, Case, Gpt, build
from umd_torch import counters, train_step

STEPS, DECAY = 3, 0.7
LOOSE, CENTERED = 1e-4, 1e-3
"""Relative tolerances of parameters after three steps; centered RMSprop subtracts almost equal numbers."""
PAIRS = list(zip(ZOO, itertools.cycle([n for n in OPTIMIZERS if n not in ("rprop", "adamax")]), strict=False))

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and of torch about it


class WithLoss(nn.Module):
    """A model of the zoo and its loss as one module over the tensors that it is called with."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.model, self._case = case.model, case

    def loss(self, results: Any, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Returns the case's loss; that of the own GPT has the ids themselves for targets, which are in the batch."""
        if isinstance(self.model, Gpt):
            return functional.cross_entropy(results.flatten(0, 1), tensors[0].flatten())
        return self._case.loss(results)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (*self._case.arguments, *self._case.keywords.values())

    def forward(self, *tensors: torch.Tensor) -> Any:
        count = len(self._case.arguments)
        keywords = dict(zip(self._case.keywords, tensors[count:], strict=True))
        return self.loss(self.model(*tensors[:count], **keywords), tensors)


@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
def test_steps_beside_torch(name: str, optimizer: str, plain: str) -> None:
    case = build(name)
    ours = WithLoss(case).train()
    theirs = copy.deepcopy(ours)
    mine, reference = (OPTIMIZERS[optimizer](m.parameters()) for m in (ours, theirs))
    step = train_step(ours, lambda loss, _: loss, mine, device=plain)
    data = ours.tensors()
    sure = {label: torch.ones_like(p, dtype=torch.bool) for label, p in theirs.named_parameters()}
    for number in range(STEPS):
        slow_down(mine, reference)  # another learning rate in each step is no other program
        reference.zero_grad()
        wanted = theirs(*data)
        wanted.backward()
        leave_out_noise(theirs, sure)
        reference.step()
        found = step(*data, torch.zeros(()))
        assert float(found) == pytest.approx(float(wanted), rel=LOOSE if number else OUTPUTS)
        if not number:
            counters.reset()
    assert (counters.programs, counters.round_trips, counters.submissions) == (0, STEPS - 1, STEPS - 1)
    step.sync()
    tolerance = CENTERED if optimizer == "centered" else LOOSE
    for (label, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert not sure[label].any() or close(a[sure[label]], b[sure[label]], tolerance, 1e-5), label


def slow_down(*optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * DECAY


def leave_out_noise(model: nn.Module, sure: dict[str, torch.Tensor]) -> None:
    """Leaves out elements whose gradient is zero in exact arithmetic (the bias of keys): Adam divides it by itself."""
    gradients = {label: p.grad for label, p in model.named_parameters() if p.grad is not None}
    floor = 1e-5 * max(float(g.abs().max()) for g in gradients.values())
    for label, gradient in gradients.items():
        sure[label] &= (gradient.abs() > floor) | (gradient == 0)
