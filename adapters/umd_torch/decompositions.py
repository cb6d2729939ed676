"""ATen ops that torch does not take apart, written in ops that are lowered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Number = bool | int | float


# products


def trilinear(
    x: Tensor, y: Tensor, z: Tensor, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """Returns the sum over `sumdim` of x · y · z, each with axes of extent 1 put in where it is told to expand."""

    def widened(factor: Tensor, places: Sequence[int]) -> Tensor:
        for place in sorted(places):
            factor = factor.unsqueeze(place)
        return factor

    product = widened(x, expand1) * widened(y, expand2) * widened(z, expand3)
    return product.sum(list(sumdim)) if sumdim else product


def addbmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """Returns beta · bias + alpha · the sum of the products of a batch; a bias times 0 is not read."""
    total = torch.bmm(x, y).sum(0)
    total = total if alpha == 1 else total * alpha
    if beta == 0:
        return total
    return (bias if beta == 1 else bias * beta) + total


# distances


def _distance_gradient(apart: Tensor, distance: Tensor, dy: Tensor, p: float) -> Tensor:
    """Returns the gradient of a p-norm in each coordinate of the difference `apart`; 0 where two points are one.

    `distance` and `dy` have an axis of extent 1 where the coordinates are.
    """
    if p == 0:
        return torch.zeros_like(apart)
    sign, size = torch.sign(apart), apart.abs()
    if p == 1:
        return sign * dy
    if math.isinf(p):
        return sign * (size == distance) * dy
    slope = apart / distance if p == 2 else sign * size.pow(p - 1) / distance.pow(p - 1)
    still = (distance == 0) | ((apart == 0) & (p < 1))
    return torch.where(still, 0, slope * dy)


def cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Returns the p-norm distance of every row of x to every row of y."""
    apart = x.unsqueeze(-2) - y.unsqueeze(-3)
    return torch.linalg.vector_norm(apart, p, -1) if x.shape[-1] else apart.new_zeros(apart.shape[:-1])


def cdist_backward(dy: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    """Returns the gradient in x of `cdist`."""
    apart = x.unsqueeze(-2) - y.unsqueeze(-3)
    slope = _distance_gradient(apart, distance.unsqueeze(-1), dy.unsqueeze(-1), p)
    total: Tensor = slope.sum(-2).sum_to_size(x.shape)
    return total


def pdist(x: Tensor, p: float = 2) -> Tensor:
    """Returns the p-norm distance of every pair of rows, in the order of the upper triangle."""
    if not x.shape[1]:
        return x.new_zeros(x.shape[0] * (x.shape[0] - 1) // 2)
    row, column = torch.triu_indices(x.shape[0], x.shape[0], 1)
    distance: Tensor = torch.linalg.vector_norm(x[row] - x[column], p, -1)
    return distance


def pdist_backward(dy: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    """Returns the gradient of the distances of every pair of rows, which come in the order of the upper triangle."""
    count = x.shape[0]
    if count < 2:
        return torch.zeros_like(x)
    row, column = torch.arange(count).unsqueeze(1), torch.arange(count)
    low, high = torch.minimum(row, column), torch.maximum(row, column)
    place = (low * (2 * count - low - 1) // 2 + high - low - 1).clamp(0, count * (count - 1) // 2 - 1)
    apart = x.unsqueeze(1) - x
    others = (row != column).unsqueeze(-1)
    slope = _distance_gradient(apart, distance[place].unsqueeze(-1), dy[place].unsqueeze(-1), p)
    return torch.where(others, slope, 0).sum(1)


# padding


def replication_pad_backward(dy: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """Returns the gradient of padding with the edge: every element adds to the one that it repeats."""
    for i in range(len(padding) // 2):
        axis = x.dim() - 1 - i
        extent = x.shape[axis]
        source = torch.arange(-padding[2 * i], extent + padding[2 * i + 1]).clamp(0, extent - 1)
        shape = list(dy.shape)
        shape[axis] = extent
        dy = dy.new_zeros(shape).index_add(axis, source, dy)
    return dy


# activations


def rrelu(
    x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Tensor, Tensor]:
    """Returns x with what is negative times a slope drawn for each element, and the slopes; the mean in evaluation."""
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise
    slope = torch.where(x <= 0, torch.rand_like(x) * (upper - lower) + lower, 1)
    return x * slope, slope


def rrelu_backward(
    dy: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, self_is_result: bool
) -> Tensor:
    """Returns the gradient of `rrelu`: dy times the slopes that were drawn, or their mean in evaluation."""
    if training and upper - lower > 1e-6:
        return dy * noise
    return torch.where(x > 0, dy, dy * ((lower + upper) / 2))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._trilinear.default: trilinear,
    aten.addbmm.default: addbmm,
    aten._cdist_forward.default: cdist,
    aten._cdist_backward.default: cdist_backward,
    aten._pdist_forward.default: pdist,
    aten._pdist_backward.default: pdist_backward,
    aten.replication_pad1d_backward.default: replication_pad_backward,
    aten.replication_pad2d_backward.default: replication_pad_backward,
    aten.replication_pad3d_backward.default: replication_pad_backward,
    aten.rrelu_with_noise_functional.default: rrelu,
    aten.rrelu_with_noise_backward.default: rrelu_backward,
}
"""Overload → what is traced instead."""
