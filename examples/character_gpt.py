"""A character model on Python's own documentation: `python examples/character_gpt.py [DEVICE] [STEPS]`.

Two layers, 64 wide; 200 steps of AdamW. Every step is one program and one round trip. Torch takes the same steps beside
it on the CPU. DEVICE is "sim:0", in this process, without an argument; "grpc://127.0.0.1:50051/sim:0" does as well.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pydoc_data import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

from umd_torch import train_step

CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 32, 16, 64, 4, 2
Step = Callable[[Tensor, Tensor], Tensor]


class Block(nn.Module):
    """Attention to what came before, then two layers on each character."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Returns (batch, tokens, WIDTH), as it came."""
        batch, tokens, _ = x.shape
        q, k, v = (
            part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(WIDTH, 2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


class Gpt(nn.Module):
    """Characters in, logits of the next one out."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns (batch, tokens, characters) logits of (batch, tokens) ids."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def text() -> tuple[Tensor, str]:
    """Returns the topics of Python's `help`, as numbers of characters, and the characters."""
    written = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    characters = "".join(sorted(set(written)))
    number = {character: i for i, character in enumerate(characters)}
    return torch.tensor([number[character] for character in written]), characters


def batches(ids: Tensor, steps: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (BATCH, CONTEXT) characters and those that come after each, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH,), generator=generator)
        rows = torch.stack([ids[start : start + CONTEXT + 1] for start in starts.tolist()])
        yield rows[:, :-1], rows[:, 1:]


def loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Returns the cross entropy, in nats a character."""
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def by_torch(model: nn.Module) -> Step:
    """Returns torch's own training step."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def step(ids: Tensor, wanted: Tensor) -> Tensor:
        optimizer.zero_grad()
        value = loss(model(ids), wanted)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def on_device(model: nn.Module, device: str) -> Step:
    """Returns the same step as one program on a device."""
    return train_step(model, loss, torch.optim.AdamW(model.parameters(), 3e-3), device=device)


def main(device: str, steps: int) -> tuple[list[float], list[float]]:
    """Trains both ways, prints the losses beside each other, and returns them."""
    ids, characters = text()
    torch.manual_seed(0)
    model = Gpt(len(characters))
    ways = on_device(model, device), by_torch(copy.deepcopy(model))
    losses: tuple[list[float], list[float]] = ([], [])
    print(f"{len(ids):,} characters, {len(characters)} different ones\nstep  {device:>10}  torch CPU")
    for number, batch in enumerate(batches(ids, steps)):
        for way, found in zip(ways, losses, strict=True):
            found.append(way(*batch).item())
        if number % 20 == 0 or number == steps - 1:
            print(f"{number:4}  {losses[0][-1]:10.6f} {losses[1][-1]:10.6f}")
    return losses


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sim:0", int(sys.argv[2]) if len(sys.argv) > 2 else 200)
