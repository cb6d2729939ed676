"""umd for PyTorch: a torch.compile backend, and whole training steps as one program. See docs/pytorch.md."""

from __future__ import annotations

from umd_torch.backend import umd
from umd_torch.counters import counters
from umd_torch.partition import FallbackWarning
from umd_torch.session import close_sessions
from umd_torch.train_step import TrainStep, train_step

__all__ = ["FallbackWarning", "TrainStep", "close_sessions", "counters", "train_step", "umd"]
