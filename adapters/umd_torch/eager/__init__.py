"""The eager device: importing this makes `umd` a device type of torch. See docs/pytorch.md."""

from __future__ import annotations

from umd_torch.eager import backend as _backend
from umd_torch.eager.devices import connect, options

__all__ = ["connect", "options"]
del _backend
