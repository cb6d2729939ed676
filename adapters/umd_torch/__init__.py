"""umd for PyTorch: a torch.compile backend, and whole training steps as one program. See docs/pytorch.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from umd_torch.backend import umd
from umd_torch.counters import counters
from umd_torch.partition import FallbackWarning
from umd_torch.session import close_sessions
from umd_torch.train_step import TrainStep, train_step

if TYPE_CHECKING:
    from umd_torch.exporting import export

__all__ = ["FallbackWarning", "TrainStep", "close_sessions", "counters", "export", "train_step", "umd"]


def __getattr__(name: str) -> Any:
    """Returns `export`, whose packages (the extra `model`) only those need who call it."""
    if name == "export":
        from umd_torch.exporting import export  # noqa: PLC0415  # see above

        return export
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
