"""umd for PyTorch: a torch.compile backend, whole training steps as one program, a device. See docs/pytorch.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from umd_torch.backend import umd
from umd_torch.counters import counters
from umd_torch.explain import Explanation, explain
from umd_torch.partition import FallbackWarning
from umd_torch.progress import show_progress
from umd_torch.session import close_sessions
from umd_torch.train_step import TrainStep, train_step

if TYPE_CHECKING:
    from umd_torch.eager import connect
    from umd_torch.exporting import export

__all__ = [
    "Explanation",
    "FallbackWarning",
    "TrainStep",
    "close_sessions",
    "connect",
    "counters",
    "explain",
    "export",
    "show_progress",
    "train_step",
    "umd",
]


def __getattr__(name: str) -> Any:
    """Returns `export`, whose packages (the extra `model`) only those need who call it."""
    if name == "export":
        from umd_torch.exporting import export  # noqa: PLC0415  # see above

        return export
    if name == "connect":
        from umd_torch.eager import connect  # noqa: PLC0415  # makes `umd` a device type of torch: only for who asks

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
