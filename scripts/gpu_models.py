"""Whole models on a device beside torch eager and torch.compile, on the GPU where torch has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from umd_torch import digits

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small MLP, batch 8": (
        lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (8, 64),
    ),
    "digits network, batch 64": (digits.net, (64, 1, 8, 8)),
    "transformer layer, 8 × 64 × 128": (
        lambda: nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True), (8, 64, 128),
    ),
    "convolutions, 8 × 16 × 32 × 32": (
        lambda: nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)),
        (8, 16, 32, 32),
    ),
}  # fmt: skip
"""By name: how it is made, and the shape of its input."""
TOLERANCE = 1e-3


def models(device: str, fastest: Callable[[Callable[[], object]], float]) -> dict[str, dict[str, Any]]:
    """Returns for each model its milliseconds on the device and by torch, their ratio, and how far results differ."""
    return {name: _one(make, shape, device, fastest) for name, (make, shape) in MODELS.items()}


def _one(
    make: Callable[[], nn.Module], shape: tuple[int, ...], device: str, fastest: Callable[[Callable[[], object]], float]
) -> dict[str, Any]:
    torch.manual_seed(1)
    model, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        wanted = model(x)
        ours = torch.compile(model, backend="umd", options={"device": device})
        apart = float((ours(x) - wanted).abs().max())
        row: dict[str, Any] = {"ms": fastest(lambda: ours(x)) * 1e3, "largest difference": apart}
        row["ok"] = apart < TOLERANCE * max(1.0, float(wanted.abs().max()))
        where = "cuda" if torch.cuda.is_available() else "cpu"
        there, y = make().eval().to(where), x.to(where)
        for label, called in (("eager", there), ("compile", _compiled(there, y))):
            if called is None:
                row[f"torch {label} ({where}) ms"] = "not available here"
                continue
            seconds = fastest(lambda called=called: _finished(called(y)))  # type: ignore[misc]  # mypy infers no type for the default
            row[f"torch {label} ({where}) ms"] = seconds * 1e3
            row[f"times torch {label}"] = row["ms"] / (seconds * 1e3)
    return {key: float(f"{value:.4g}") if type(value) is float else value for key, value in row.items()}


def _compiled(model: nn.Module, x: torch.Tensor) -> Any:
    """Returns the model compiled by torch's own compiler, None where that does not work (no C++ or Triton compiler)."""
    torch.compiler.reset()
    compiled = torch.compile(model)
    try:
        compiled(x)
    except Exception as error:  # noqa: BLE001  # a baseline that is not there is said in the report
        print(f"torch.compile does not work here: {type(error).__name__}")
        return None
    return compiled


def _finished(result: torch.Tensor) -> torch.Tensor:
    if result.is_cuda:
        torch.cuda.synchronize()
    return result
