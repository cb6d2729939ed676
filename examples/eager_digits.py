"""Ordinary PyTorch on a device that is somewhere else: `python examples/eager_digits.py grpc://127.0.0.1:50051/sim:0`.

Nothing here is of umd but `connect`. Without an argument it runs on "sim:0", in this process. Needs
`pip install 'umd-runtime[demo]'`.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional

import umd_torch
from umd_torch import counters, digits


def main(name: str, epochs: int = 3) -> None:
    """Trains for some epochs and prints what comes of it, and how often a value was waited for."""
    device = umd_torch.connect(name, strict=True)
    training, testing = digits.load()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1),
        nn.Flatten(), nn.Linear(256, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        losses = []
        counters.reset()
        for x, y in digits.batches(training, epochs=1, seed=epoch):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())  # on the device: the epoch's losses are read at once
        mean = torch.stack(losses).mean().item()
        print(f"epoch {epoch + 1}  loss {mean:.3f}  {len(losses)} steps, {counters.round_trips} round trip")
    model.eval()
    with torch.no_grad():
        right = model(testing[0].to(device)).argmax(1) == testing[1].to(device)
    print(f"test accuracy {right.float().mean().item():.1%}, on {device}, which is {name}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sim:0")
