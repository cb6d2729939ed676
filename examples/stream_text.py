"""Train a GPT-2 on Python's documentation, watch it write: `python examples/stream_text.py [DEVICE] [STEPS]`.

The prompt is one program, and every character after it another, the same one each time: one round trip a character.
Keys and values of the characters so far stay on the device. Needs `pip install transformers`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pydoc_data import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from umd_torch import counters, train_step

CONTEXT, BATCH, CHARACTERS = 32, 16, 128


class Printer:
    """A streamer as `generate` wants it: shows every character as soon as it is there."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def put(self, value: Tensor) -> None:
        """Shows the prompt, then one character a call."""
        self._write("".join(map(chr, value.flatten().tolist())))

    def end(self) -> None:
        """Ends the line."""
        self._write("\n")


class Logits(nn.Module):
    """The model as `train_step` calls it: ids in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Returns (batch, tokens, CHARACTERS) logits of (batch, tokens) characters."""
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits


def loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Returns the cross entropy, in nats a character."""
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def train(model: nn.Module, device: str, steps: int) -> None:
    """Trains on the topics of Python's `help`."""
    ids = torch.tensor([min(ord(c), CHARACTERS - 1) for name in sorted(topics.topics) for c in topics.topics[name]])
    step = train_step(Logits(model), loss, torch.optim.AdamW(model.parameters(), 3e-3), device=device)
    generator = torch.Generator().manual_seed(0)
    for number in range(steps):
        starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH,), generator=generator)
        rows = torch.stack([ids[start : start + CONTEXT + 1] for start in starts.tolist()])
        value = step(rows[:, :-1], rows[:, 1:])
        if number % 50 == 0 or number == steps - 1:
            print(f"step {number:3}  loss {value.item():.3f}")
    step.sync()


def write(model: Any, device: str, prompt: str, characters: int) -> None:
    """Lets the model go on from a prompt, and prints what it writes while it writes."""
    compiled: Any = torch.compile(model.forward, backend="umd", options={"device": device, "strict": True})

    def forward(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs)

    forward.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]  # generate looks at it
    model.forward = forward
    ids = torch.tensor([[ord(c) for c in prompt]])
    counters.reset()
    model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=characters, do_sample=False, pad_token_id=0,
        cache_implementation="static", disable_compile=True,
        streamer=Printer(lambda text: print(text, end="", flush=True)),
    )  # fmt: skip
    print(f"{characters} characters, {counters.round_trips} round trips, {counters.programs} programs")


def main(device: str, steps: int, characters: int = 64) -> None:
    """Trains, then writes."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=CHARACTERS, n_positions=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config)
    train(model, device, steps)
    write(model.eval(), device, "The statement ", characters)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sim:0", int(sys.argv[2]) if len(sys.argv) > 2 else 200)
