"""What asserts something of tensors; in a module whose assertions pytest leaves as they are."""

from __future__ import annotations

import torch
from torch import nn


class Asserting(nn.Module):
    """A layer that wants no number below -100."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert (x > -100).all(), "far too small"
        y: torch.Tensor = self.layer(x)
        return y


def only_asserting(x: torch.Tensor) -> torch.Tensor:
    assert (x > -100).all(), "far too small"
    return x


def asserting_beside_the_cpu(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = torch.special.i0(x)
    assert (y > -100).all(), "far too small"
    return y
