"""A bidirectional LSTM that tags every element of a sequence: `python examples/tag_sequences.py [DEVICE] [STEPS]`.

The task is made up, so that nothing has to be fetched: an element's tag says whether the one before it is smaller than
the one after it. Neither direction alone knows both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from umd_torch import train_step

LENGTH, BATCH, KINDS, WIDTH = 10, 32, 8, 24


class Tagger(nn.Module):
    """Two readings of the sequence, one from each end, and a verdict on each element."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(KINDS, 12)
        self.read = nn.LSTM(12, WIDTH, batch_first=True, bidirectional=True)
        self.verdict = nn.Linear(2 * WIDTH, 2)

    def forward(self, sequence: Tensor) -> Tensor:
        """Returns (batch, LENGTH, 2) logits of (batch, LENGTH) numbers below KINDS."""
        logits: Tensor = self.verdict(self.read(self.kinds(sequence))[0])
        return logits


def batches(steps: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (BATCH, LENGTH) sequences and their tags; beyond both ends lies a 0."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        sequence = torch.randint(KINDS, (BATCH, LENGTH), generator=generator)
        beyond = functional.pad(sequence, (1, 1))
        yield sequence, (beyond[:, :-2] < beyond[:, 2:]).long()


def loss(logits: Tensor, tags: Tensor) -> Tensor:
    """Returns the cross entropy of all tags."""
    return functional.cross_entropy(logits.flatten(0, 1), tags.flatten())


def main(device: str, steps: int) -> float:
    """Trains, one program and one round trip a step; prints what comes of it and returns the share of right tags."""
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.NAdam(model.parameters(), 0.02)
    step = train_step(model, loss, optimizer, clip_norm=1.0, device=device)
    for number, batch in enumerate(batches(steps)):
        value = step(*batch)
        if number % 50 == 0 or number == steps - 1:
            print(f"step {number:3}  loss {value.item():.3f}")
    step.sync()
    compiled: Callable[..., Tensor] = torch.compile(
        model.eval(), backend="umd", options={"device": device, "strict": True}
    )
    with torch.no_grad():
        right: list[float] = [(compiled(x).argmax(2) == tags).float().mean().item() for x, tags in batches(4, seed=1)]
    accuracy = sum(right) / len(right)
    print(f"right tags of new sequences: {accuracy:.1%}, found on {device}")
    return accuracy


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sim:0", int(sys.argv[2]) if len(sys.argv) > 2 else 300)
