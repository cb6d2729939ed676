"""Interpolation in plain parts: torch takes it apart itself, but not its gradients.

An element of the result is a sum of elements of the input along each axis; in the gradient each gets its share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from umd_torch.torch_private import get_decompositions

aten = torch.ops.aten
Taps = list[tuple[Tensor, Tensor]]
"""Which element along an axis of the input an element of the result takes, and times what; several of them."""
_A = -0.75
"""The parameter of the cubic kernel. Source: Keys, Cubic convolution interpolation, 1981, as in torch."""


def _places(size: int, extent: int, align_corners: bool, scale: float | None, like: Tensor) -> Tensor:
    """Returns where along the input each of `extent` elements lies, from -0.5 on."""
    at = torch.arange(extent, dtype=like.dtype, device=like.device)
    if align_corners:
        return at * ((size - 1) / (extent - 1) if extent > 1 else 0.0)
    step = size / extent if scale is None or scale <= 0 else 1 / scale
    return (at + 0.5) * step - 0.5


def _linear(places: Tensor, size: int) -> Taps:
    places = places.clamp(min=0)
    low = places.floor().clamp(max=size - 1)
    share = (places - low).clamp(0, 1)
    low = low.to(torch.int64)
    return [(low, 1 - share), ((low + 1).clamp(max=size - 1), share)]


def _near(t: Tensor) -> Tensor:
    return ((_A + 2) * t - (_A + 3)) * t * t + 1


def _far(t: Tensor) -> Tensor:
    return ((_A * t - 5 * _A) * t + 8 * _A) * t - 4 * _A


def _cubic(places: Tensor, size: int) -> Taps:
    low = places.floor()
    t = places - low
    shares = (_far(t + 1), _near(t), _near(1 - t), _far(2 - t))
    return [((low.to(torch.int64) + at - 1).clamp(0, size - 1), share) for at, share in enumerate(shares)]


def _backward(axes: int, taps: Callable[[Tensor, int], Taps]) -> Callable[..., Tensor]:
    """Returns the gradient of an interpolation over the last `axes` axes."""

    def backward(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool, *scales: float | None
    ) -> Tensor:
        result = grad.to(torch.float32) if grad.element_size() < 4 else grad
        for number, scale in enumerate(scales or (None,) * axes):
            axis = len(input_size) - axes + number
            size, extent = input_size[axis], output_size[number]
            places = _places(size, extent, align_corners, scale, result)
            shape = [size if at == axis else other for at, other in enumerate(result.shape)]
            total = result.new_zeros(shape)
            for index, share in taps(places, size):
                column = share.view(-1, *(1,) * (len(shape) - axis - 1))
                total = total.index_add(axis, index, result * column)
            result = total
        return result.to(grad.dtype)

    return backward


_FORWARD = (aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d, aten.upsample_bicubic2d)
DECOMPOSITIONS: dict[Any, Any] = {
    **{op.default: get_decompositions([op])[op.default] for op in _FORWARD},
    aten.upsample_linear1d_backward.default: _backward(1, _linear),
    aten.upsample_bilinear2d_backward.default: _backward(2, _linear),
    aten.upsample_trilinear3d_backward.default: _backward(3, _linear),
    aten.upsample_bicubic2d_backward.default: _backward(2, _cubic),
}
