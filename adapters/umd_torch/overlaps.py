"""Tensors some of whose elements share memory: expanded ones, and windows that overlap."""

from __future__ import annotations

import functools
import math

import numpy as np

MEETS_ITSELF = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
"""What torch says where such a tensor is written."""


@functools.lru_cache(1 << 12)
def lies_twice(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Returns whether two elements of a tensor share memory."""
    axes = sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1)
    if 0 in shape or not axes:
        return False
    reach = sum((size - 1) * stride for stride, size in axes)
    if not axes[0][0] or math.prod(shape) > reach + 1:
        return True
    return not _nests(axes) and _collides(axes)


def _nests(axes: list[tuple[int, int]]) -> bool:
    """Returns whether each axis steps over all that the ones before it reach."""
    reach = 0
    for stride, size in axes:
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _collides(axes: list[tuple[int, int]]) -> bool:
    """Returns whether two elements come to lie at one place, of which there is a map: a step of an axis moves it on."""
    seen = np.ones(1, np.bool_)
    for stride, size in axes:
        wider = np.zeros(len(seen) + (size - 1) * stride, np.bool_)
        for start in range(0, size * stride, stride):
            part = wider[start : start + len(seen)]
            if (part & seen).any():
                return True
            part |= seen
        seen = wider
    return False


__all__ = ["MEETS_ITSELF", "lies_twice"]
