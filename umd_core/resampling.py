"""Where Resize takes each output element from along one axis, and with which weights.

Source: ONNX, operator Resize (version 19), coordinate_transformation_mode, nearest_mode and cubic_coeff_a.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from umd_core.ir import Array

TRANSFORMATIONS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""By nearest_mode, the whole number that stands for a position."""


@dataclass(frozen=True, slots=True)
class AxisScale:
    """One resized axis: its extents before and after, the scale, and the part of it that is wanted (0 to 1: all)."""

    extent: int
    output: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def positions(axis: AxisScale, transformation: str) -> Array:
    """Returns (output,) float64: where each output element lies on the input axis, in input elements."""
    at = np.arange(axis.output, dtype=np.float64)
    whole, last = axis.scale * axis.extent, axis.extent - 1
    half_pixel = (at + 0.5) / axis.scale - 0.5
    if transformation == "asymmetric":
        return np.asarray(at / axis.scale)
    if transformation == "align_corners":
        return np.zeros_like(at) if whole == 1 else at * last / (whole - 1)
    if transformation == "tf_crop_and_resize":
        span = (axis.end - axis.start) * last
        return axis.start * last + (np.full_like(at, span / 2) if whole == 1 else at * span / (whole - 1))
    if transformation == "pytorch_half_pixel" and whole == 1:
        return np.zeros_like(at)
    if transformation == "half_pixel_symmetric":
        return half_pixel + axis.extent / 2 * (1 - axis.output / whole)
    return half_pixel


def nearest(axis: AxisScale, transformation: str, mode: str) -> Array:
    """Returns (output,) int64: the input element that each output element is."""
    return np.clip(NEAREST[mode](positions(axis, transformation)), 0, axis.extent - 1).astype(np.int64)


def _linear(distance: Array) -> Array:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def taps(
    axis: AxisScale, transformation: str, mode: str, *, cubic_a: float, antialias: bool, exclude_outside: bool
) -> tuple[Array, Array]:
    """Returns which input elements make up each output element and their weights: (output, taps) int64 and float64."""
    at = positions(axis, transformation)
    shrink = min(axis.scale, 1.0) if antialias else 1.0
    first = math.floor((-1 if mode == "linear" else -2) / shrink) + 1
    where = np.floor(at)[:, None] + np.arange(first, 2 - first)
    distance = (where - at[:, None]) * shrink
    weights = _linear(distance) if mode == "linear" else _cubic(distance, cubic_a)
    if antialias:
        weights /= weights.sum(axis=1, keepdims=True)
    if exclude_outside:
        weights = np.where((where < 0) | (where >= axis.extent), 0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights /= np.where(total == 0, 1, total)
    return np.clip(where, 0, axis.extent - 1).astype(np.int64), weights


def outside(axis: AxisScale) -> Array:
    """Returns (output,) bool: what tf_crop_and_resize finds outside the input."""
    at = positions(axis, "tf_crop_and_resize")
    return (at < 0) | (at > axis.extent - 1)
