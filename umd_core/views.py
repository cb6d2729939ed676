"""Views: strided tensors in numbered buffers, and the merging of their axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.errors import LimitError
from umd_core.ir import contiguous_strides
from umd_core.kernels import RANK_CLASSES


class View:
    """A strided tensor in a buffer: strides and offset in elements. Its methods move no data."""

    __slots__ = ("buffer", "dtype", "offset", "shape", "strides")

    buffer: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def __init__(
        self, buffer: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0
    ) -> None:
        self.buffer, self.dtype, self.shape, self.strides, self.offset = buffer, dtype, shape, strides, offset

    def __repr__(self) -> str:
        return f"View({self.buffer}, {self.dtype}, {self.shape}, {self.strides}, {self.offset})"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def permute(self, axes: Sequence[int]) -> View:
        """Returns the view with its axes in another order."""
        shape, strides = tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes)
        return View(self.buffer, self.dtype, shape, strides, self.offset)

    def expand(self, shape: Sequence[int]) -> View:
        """Returns the view broadcast to a shape (stride 0 where it repeats)."""
        lead = len(shape) - len(self.shape)
        strides = [0] * lead
        for extent, stride, wanted in zip(self.shape, self.strides, shape[lead:], strict=True):
            strides.append(0 if extent == 1 and wanted != 1 else stride)
        return View(self.buffer, self.dtype, tuple(shape), tuple(strides), self.offset)

    def slice(self, axis: int, start: int, count: int, step: int = 1) -> View:
        """Returns `count` elements along an axis from `start` on, `step` apart (negative goes backwards)."""
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        strides = (*self.strides[:axis], self.strides[axis] * step, *self.strides[axis + 1 :])
        offset = self.offset + (start * self.strides[axis] if count else 0)
        return View(self.buffer, self.dtype, shape, strides, offset)

    def unsqueeze(self, axis: int) -> View:
        """Returns the view with an axis of extent 1 inserted before `axis`."""
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        strides = (*self.strides[:axis], 0, *self.strides[axis:])
        return View(self.buffer, self.dtype, shape, strides, self.offset)

    def squeeze(self, axis: int) -> View:
        """Returns the view without an axis of extent 1."""
        shape, strides = self.shape[:axis] + self.shape[axis + 1 :], self.strides[:axis] + self.strides[axis + 1 :]
        return View(self.buffer, self.dtype, shape, strides, self.offset)

    def windows(self, axis: int, count: int, stride: int, size: int, dilation: int) -> View:
        """Returns the view with `axis` replaced by (count, size): overlapping windows, no data moved."""
        shape = (*self.shape[:axis], count, size, *self.shape[axis + 1 :])
        own = self.strides[axis]
        strides = (*self.strides[:axis], own * stride, own * dilation, *self.strides[axis + 1 :])
        return View(self.buffer, self.dtype, shape, strides, self.offset)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """Returns the view with another shape, None when its strides do not allow it without a copy."""
        shape = tuple(shape)
        if 0 in shape:
            return View(self.buffer, self.dtype, shape, contiguous_strides(shape), self.offset)
        old = [(e, s) for e, s in zip(self.shape, self.strides, strict=True) if e != 1]
        strides = [1] * len(shape)
        i = j = 0
        while i < len(old):
            first_i, first_j, have, need = i, j, old[i][0], shape[j]
            while have != need:
                if have < need:
                    i += 1
                    have *= old[i][0]
                else:
                    j += 1
                    need *= shape[j]
            if any(a[1] != b[1] * b[0] for a, b in zip(old[first_i:i], old[first_i + 1 : i + 1], strict=True)):
                return None
            step = old[i][1]
            for k in range(j, first_j - 1, -1):
                strides[k] = step
                step *= shape[k]
            i, j = i + 1, j + 1
        return View(self.buffer, self.dtype, shape, tuple(strides), self.offset)

    def is_same(self, other: View) -> bool:
        """Returns whether it is the same elements of the same buffer."""
        own = (self.buffer, self.dtype, self.shape, self.strides, self.offset)
        return own == (other.buffer, other.dtype, other.shape, other.strides, other.offset)

    def __bool__(self) -> bool:
        return self.buffer >= 0


ABSENT = View(-1, dtypes.bool_, (0,), (1,))
"""Stands for an optional input that was left out; falsy."""


def is_dense(view: View) -> bool:
    """Returns whether the elements are row-major without gaps, from the view's offset on."""
    expected = 1
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if extent != 1 and stride != expected:
            return 0 in view.shape
        expected *= extent
    return True


def coalesce(
    shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Returns extents and strides with neighbouring axes merged where all operands allow, padded to a rank class.

    Raises:
        LimitError: more than 8 axes remain.
    """
    if 0 in shape:  # nothing to visit, and the other extents' product may be beyond any number
        return (0,), [(0,)] * len(strides)
    columns: list[tuple[int, ...]] = []  # extent, then each operand's stride
    for column in zip(shape, *strides, strict=True):
        extent = column[0]
        if extent == 1:
            continue
        if columns:
            last = columns[-1]
            if last[1:] == tuple([stride * extent for stride in column[1:]]):
                columns[-1] = (last[0] * extent, *column[1:])
                continue
        columns.append(column)
    rank = len(columns)
    if rank > RANK_CLASSES[-1]:
        raise LimitError("rank after merging axes", rank, RANK_CLASSES[-1])
    pad = 1 - rank if rank <= 1 else 4 - rank if rank <= 4 else 8 - rank
    if not columns:
        return (1,), [(0,)] * len(strides)
    merged = list(zip(*columns, strict=True))
    return (1,) * pad + merged[0], [(0,) * pad + own for own in merged[1:]]
