"""Ops in plain parts, which torch takes apart itself only while it traces or only for the CPU.

Gradients of interpolation, shrinkage and a loss, batch norm, and cells of recurrent layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from umd_torch import cells
from umd_torch.eager import interpolation

aten = torch.ops.aten


def _nearest_backward(axes: int, exact: bool) -> Callable[..., Tensor]:
    """Returns the gradient of nearest-neighbour interpolation over the last `axes` axes: each element goes back."""

    def backward(grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *scales: float | None) -> Tensor:
        places: list[Tensor | None] = [None] * (len(input_size) - axes)
        given = scales or (None,) * axes
        for axis, (size, scale) in enumerate(zip(input_size[-axes:], given, strict=True)):
            step = size / output_size[axis] if scale is None else 1 / scale
            at = torch.arange(output_size[axis], dtype=torch.float32, device=grad.device)
            nearest = ((at + 0.5 if exact else at) * step).to(torch.int64).clamp(max=size - 1)
            places.append(nearest.view(-1, *(1,) * (axes - axis - 1)))
        result: Tensor = aten.index_put(grad.new_zeros(input_size), places, grad, accumulate=True)
        return result

    return backward


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the normalised tensor, and mean and 1 / deviation of the batch; running statistics are changed."""
    if running_mean is None or running_var is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)  # type: ignore[no-any-return]  # three tensors
    if not training:
        return aten._native_batch_norm_legit_no_training(x, weight, bias, running_mean, running_var, momentum, eps)  # type: ignore[no-any-return]  # three tensors
    y, mean, scale, new_mean, new_var = aten._native_batch_norm_legit_functional(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    running_mean.copy_(new_mean)
    running_var.copy_(new_var)
    return y, mean, scale


def shrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    """Returns the gradient of soft and hard shrinkage: none where they give 0."""
    return torch.where(x.abs() <= lambd, 0, grad)


def multi_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, p: int, margin: float, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """Returns the gradient of the multi-class margin loss of (batch, class) scores, or of one row of them."""
    scores, wanted = x.reshape(-1, x.shape[-1] if x.dim() else 1), target.reshape(-1, 1)
    apart = margin - scores.gather(1, wanted) + scores
    slope = torch.where(apart > 0, 1 if p == 1 else 2 * apart, 0) / scores.shape[1]
    if weight is not None:
        slope = slope * weight[wanted]
    slope = slope.scatter(1, wanted, 0)
    slope = slope.scatter_add(1, wanted, -slope.sum(1, keepdim=True))
    if reduction == 1:
        slope = slope / scores.shape[0]
    share: Tensor = slope * grad.reshape(-1, 1)
    return share.reshape(x.shape)


_NEAREST = {
    getattr(aten, f"{prefix}{axes}d_backward").default: _nearest_backward(axes, exact)
    for prefix, exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True))
    for axes in (1, 2, 3)
}

DECOMPOSITIONS: dict[Any, Any] = {
    **cells.DECOMPOSITIONS,
    aten.native_batch_norm.default: batch_norm,
    aten.softshrink_backward.default: shrink_backward,
    aten.hardshrink_backward.default: shrink_backward,
    aten.multi_margin_loss_backward.default: multi_margin_loss_backward,
    **interpolation.DECOMPOSITIONS,
    **_NEAREST,
}


def _grouped_product(
    x: Tensor, y: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Returns a tensor like the products of groups, of any element type; torch's own rule allows bfloat16 alone."""
    groups = 0 if offs is None else offs.shape[0]
    if offs is None or x.dim() == y.dim() == 3:
        lead: tuple[int, ...] = (x.shape[0],)
    else:
        lead = (groups,) if x.dim() == y.dim() == 2 else ()
    return torch.empty((*lead, x.shape[-2], y.shape[-1]), dtype=out_dtype or x.dtype)


PROMISES: dict[Any, Any] = {**DECOMPOSITIONS, aten._grouped_mm.default: _grouped_product}
"""What tells the results of ops whose shape rule torch lacks, or has for fewer element types."""
