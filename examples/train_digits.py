"""Train on a device that is somewhere else: `python examples/train_digits.py grpc://127.0.0.1:50051/sim:0`.

Without an argument it trains on "sim:0", in this process. Needs `pip install 'umd-runtime[demo]'`.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional

from umd_torch import digits, train_step


def main(device: str) -> None:
    """Trains for five epochs, one program and one round trip a step, and prints what comes of it."""
    training, testing = digits.load()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    step = train_step(model, functional.cross_entropy, optimizer, device=device)
    for epoch in range(5):
        losses = [step(*batch).item() for batch in digits.batches(training, epochs=1, seed=epoch)]
        schedule.step()  # another learning rate is no other program
        print(f"epoch {epoch + 1}  loss {sum(losses) / len(losses):.3f}")
    step.sync()  # parameters and optimizer state come back; from here on the model is torch's again

    model.eval()
    compiled = torch.compile(model, backend="umd", options={"device": device, "strict": True})
    print(f"test accuracy {digits.accuracy(compiled, testing):.1%}, predicted on {device}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sim:0")
