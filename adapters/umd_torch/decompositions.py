"""ATen ops that torch does not take apart, written in ops that are lowered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from umd_torch import cells
from umd_torch.lowering.places import SIGNLESS
from umd_torch.torch_private import get_decompositions

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
    row, column = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    distance: Tensor = torch.linalg.vector_norm(x[row] - x[column], p, -1)
    return distance


def pdist_backward(dy: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    """Returns the gradient of the distances of every pair of rows, which come in the order of the upper triangle."""
    count = x.shape[0]
    if count < 2:
        return torch.zeros_like(x)
    column = torch.arange(count, device=x.device)
    row = column.unsqueeze(1)
    low, high = torch.minimum(row, column), torch.maximum(row, column)
    place = (low * (2 * count - low - 1) // 2 + high - low - 1).clamp(0, count * (count - 1) // 2 - 1)
    apart = x.unsqueeze(1) - x
    others = (row != column).unsqueeze(-1)
    slope = _distance_gradient(apart, distance[place].unsqueeze(-1), dy[place].unsqueeze(-1), p)
    return torch.where(others, slope, 0).sum(1)


# whole slices at the places of one index


def _at_each(index: Tensor, dim: int, like: Tensor) -> Tensor:
    """Returns an index of slices as one of elements, of the shape of the slices."""
    if not like.dim():
        return index.reshape(())
    shape = [1] * like.dim()
    shape[dim] = -1
    return index.reshape(shape).expand(like.shape)


def _from_start(index: Tensor) -> Tensor:
    """Returns indices of which those below zero are beyond any extent: the sign is cleared, errors show it again."""
    return index.to(torch.int64).bitwise_and(SIGNLESS)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    """Returns x with alpha · source added to the slices that the index names; torch's own way counts from the end."""
    if x.dim() and source.dim():
        rest = [[extent for axis, extent in enumerate(t.shape) if axis != dim % x.dim()] for t in (x, source)]
        if rest[0] != rest[1]:
            raise RuntimeError(f"index_add: slices of {rest[1]} do not fit into slices of {rest[0]}")
    more = source if alpha == 1 else source * alpha
    return x.scatter_add(dim, _at_each(index, dim, source), more)


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Returns x with the slices of the source where the index says; torch's own way counts from the end."""
    if not x.dim():
        return index_copy(x.reshape(1), 0, index.reshape(1), source.reshape(1)).reshape(())
    copied: Tensor = aten.index_put(x, [*[None] * (dim % x.dim()), _from_start(index)], source)
    return copied


def index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    """Returns x with a number in the slices that the index names; here torch does count from the end."""
    if not x.dim():
        return index_fill(x.unsqueeze(0), 0, index, value).squeeze(0)
    number = value if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
    places = [*[None] * (dim % x.dim()), index]
    filled: Tensor = aten.index_put(x, places, number.to(x.dtype))
    return filled


def embedding_renorm(x: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Returns the table with the rows that the indices name scaled so that their norm is `max_norm` at most."""
    places = indices.reshape(-1)
    rows = x.index_select(0, places)
    norm = torch.linalg.vector_norm(rows, norm_type, 1, keepdim=True)
    scaled = torch.where(norm > max_norm, rows * (max_norm / (norm + 1e-7)), rows)
    return x.scatter(0, _at_each(places, 0, rows), scaled)


def max_unpool(x: Tensor, indices: Tensor, output_size: Sequence[int], *_: Sequence[int]) -> Tensor:
    """Returns zeros with the elements of each plane where the indices say; torch's own way counts from the end."""
    axes = len(output_size)
    planes = x.shape[: x.dim() - axes]
    flat = x.new_zeros((*planes, math.prod(output_size)))
    done = flat.scatter(-1, indices.flatten(-axes), x.flatten(-axes))
    return done.reshape(*planes, *output_size)


# losses


def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """Returns the loss; x and target outside [0, 1] are an error when it runs."""
    for name, value in (("input", x), ("target", target)):
        inside = ((value >= 0) & (value <= 1)).all()
        aten._assert_async.msg(inside, f"all elements of {name} should be between 0 and 1")
    loss: Tensor = _CROSS_ENTROPY(x, target, weight, reduction)
    return loss


def _margins(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns margins (rows, named, others), 0 where none counts; targets, and which classes they are (rows, classes).

    A row names classes up to its first -1; every other class should score at least 1 less than each of them.
    """
    score, named = torch.atleast_2d(x), torch.atleast_2d(target)
    classes = score.shape[1]
    place, ends = torch.arange(classes, device=x.device), named == -1
    inside = place < torch.where(ends, place, classes).amin(1, keepdim=True)
    known = torch.where(ends, 0, named)
    is_target = (place == torch.where(inside, named, -1).unsqueeze(2)).any(1)
    apart = (1 - score.gather(1, known).unsqueeze(2) + score.unsqueeze(1)).clamp_min(0)
    return torch.where(inside.unsqueeze(2) & ~is_target.unsqueeze(1), apart, 0), known, is_target


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Returns the loss of (rows, classes) or (classes,), and 1 where a class is named, else 0."""
    margins, _, is_target = _margins(x, target)
    losses = margins.sum((1, 2)) / margins.shape[2]
    loss = losses.reshape(x.shape[:-1]) if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()
    return loss, is_target.to(x.dtype).reshape(target.shape)


def multilabel_margin_loss_backward(dy: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    """Returns the gradient of `multilabel_margin_loss` in x."""
    margins, known, _ = _margins(x, target)
    counts = (margins > 0).to(x.dtype)
    slope = counts.sum(1).scatter_add(1, known, -counts.sum(2)) / margins.shape[2]
    rows = dy.reshape(-1, 1) if reduction == 0 else dy / margins.shape[0] if reduction == 1 else dy
    return (slope * rows).reshape(x.shape)


_CROSS_ENTROPY = get_decompositions([aten.binary_cross_entropy])[aten.binary_cross_entropy.default]


# weights


def weight_norm_backward(dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Returns the gradients in v and g of w = g · v / norms, where the norms of v are over all axes but one.

    Source: Salimans and Kingma, "Weight normalization", 2016, equation 3.
    """
    others = [axis for axis in range(v.dim()) if axis != dim % v.dim()]
    along = (dw * v).sum(others, keepdim=True) if others else dw * v
    return (g / norms) * (dw - v * (along / (norms * norms))), along / norms


# padding


def replication_pad_backward(dy: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """Returns the gradient of padding with the edge: every element adds to the one that it repeats."""
    for i in range(len(padding) // 2):
        axis = x.dim() - 1 - i
        extent = x.shape[axis]
        places = torch.arange(-padding[2 * i], extent + padding[2 * i + 1], device=dy.device)
        source = places.clamp(0, extent - 1)
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
    **cells.DECOMPOSITIONS,
    aten._trilinear.default: trilinear,
    aten.addbmm.default: addbmm,
    aten._cdist_forward.default: cdist,
    aten._cdist_backward.default: cdist_backward,
    aten._pdist_forward.default: pdist,
    aten._pdist_backward.default: pdist_backward,
    aten.index_add.default: index_add,
    aten.index_copy.default: index_copy,
    aten.index_fill.int_Scalar: index_fill,
    aten.index_fill.int_Tensor: index_fill,
    aten.embedding_renorm.default: embedding_renorm,
    aten.binary_cross_entropy.default: binary_cross_entropy,
    aten.multilabel_margin_loss_forward.default: multilabel_margin_loss,
    aten.multilabel_margin_loss_backward.default: multilabel_margin_loss_backward,
    aten.max_unpool2d.default: max_unpool,
    aten.max_unpool3d.default: max_unpool,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten.replication_pad1d_backward.default: replication_pad_backward,
    aten.replication_pad2d_backward.default: replication_pad_backward,
    aten.replication_pad3d_backward.default: replication_pad_backward,
    aten.rrelu_with_noise_functional.default: rrelu,
    aten.rrelu_with_noise_backward.default: rrelu_backward,
}
"""Overload → what is traced instead."""
