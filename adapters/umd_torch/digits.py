"""The handwritten digits that scikit-learn ships, a small network for them, and the ways to train it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from umd_torch.train_step import train_step

BATCH = 64
LEARNING_RATE = 3e-3
EPOCHS = 10
MEAN, DEVIATION = 4.884, 6.017
"""Of the 64 · 1,797 pixels, which are 0 to 16."""


class Digits(NamedTuple):
    """Images (n, 1, 8, 8) float32 of mean 0 and deviation 1, and their classes (n,) int64."""

    images: torch.Tensor
    labels: torch.Tensor


Network = Callable[[torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """Two convolutions with pools, then one linear layer: (n, 1, 8, 8) → (n, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.last = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the logits."""
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        logits: torch.Tensor = self.last(torch.flatten(x, 1))
        return logits


def load() -> tuple[Digits, Digits]:
    """Returns 1,437 digits to train with and 360 to test with, the same in every run."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  # takes a second, and only this needs it

    pixels, classes = load_digits(return_X_y=True)
    images = (torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) - MEAN) / DEVIATION
    labels = torch.tensor(classes, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held = len(labels) // 5
    test, train = order[:held], order[held:]
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])


def net(seed: int = 1) -> Net:
    """Returns a network with the weights that belong to a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net()


def optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Returns the optimizer that the demo trains with."""
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def batches(digits: Digits, epochs: int = EPOCHS, seed: int = 1) -> Iterator[Digits]:
    """Yields shuffled batches of BATCH digits, the same in every run; what fills no batch waits for another epoch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(digits.labels), generator=generator)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield Digits(digits.images[chosen], digits.labels[chosen])


def accuracy(model: Network, digits: Digits) -> float:
    """Returns the share of digits that a network names rightly."""
    with torch.no_grad():
        named = model(digits.images).argmax(1)
    return float((named == digits.labels).float().mean())


@dataclass(frozen=True, slots=True)
class Training:
    """One of several ways to train the same network.

    Attributes:
        step: trains with one batch and returns the loss.
        finish: ends training and returns the network, ready to name digits.
    """

    step: Callable[[Digits], float]
    finish: Callable[[], Network]


def _loop(model: Net, called: Network) -> Training:
    """Returns the ordinary training loop over `called`, which is the model or what was compiled from it."""
    update = optimizer(model)

    def step(batch: Digits) -> float:
        update.zero_grad()
        loss = functional.cross_entropy(called(batch.images), batch.labels)
        loss.backward()
        update.step()
        return loss.item()

    return Training(step, lambda: called)


def by_torch() -> Training:
    """Returns training by torch on the CPU."""
    model = net()
    return _loop(model, model)


def by_compile(device: str) -> Training:
    """Returns training with torch.compile on a device; the optimizer stays on the CPU."""
    model = net()
    return _loop(model, torch.compile(model, backend="umd", options={"device": device, "strict": True}))


def by_train_step(device: str) -> Training:
    """Returns training with whole steps on a device."""
    model = net()
    step = train_step(model, functional.cross_entropy, optimizer(model), device=device)

    def finish() -> Network:
        step.sync()
        return model

    return Training(lambda batch: step(*batch).item(), finish)
