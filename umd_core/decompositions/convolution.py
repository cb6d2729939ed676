"""Convolutions as matrix products over windows copied into a matrix, a bounded part of the batch at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from umd_core.decompositions.sliding import Axis, axes_of, padded, reversed_axes, spread, windows
from umd_core.recorder import Recorder
from umd_core.shaping import settle, target
from umd_core.views import View

WORKSPACE_BYTES = 64 << 20
"""The window matrix is cut into parts of about this size, but never below one image or one channel."""


def conv(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records y = windows of the padded x, as a matrix, times w."""
    axes = axes_of(extents, fields)
    x, w, y = operands["x"], operands["w"], operands["y"]
    if 0 in w.shape:
        recorder.fill(y, 0)
        return
    _correlate(recorder, padded(recorder, x, axes, 0), w, y, axes)


def input_grad(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records dx = windows of dy spread out by the stride, times w with taps reversed and channels exchanged."""
    axes = axes_of(extents, fields)
    dy, w, dx = operands["dy"], operands["w"], operands["dx"]
    if 0 in w.shape or 0 in dy.shape:
        recorder.fill(dx, 0)
        return
    flipped = w.permute([0, 2, 1, *range(3, w.rank)])
    for axis in range(3, w.rank):
        flipped = flipped.slice(axis, flipped.shape[axis] - 1, flipped.shape[axis], -1)
    _correlate(recorder, spread(recorder, dy, axes), flipped, dx, reversed_axes(axes))


def weight_grad(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records dw = dy as a matrix (channels, batch and positions), times the windows of the padded x, transposed."""
    axes = axes_of(extents, fields)
    dy, x, dw = operands["dy"], operands["x"], operands["dw"]
    if 0 in dy.shape or 0 in x.shape:
        recorder.fill(dw, 0)
        return
    batch, groups, rows = dy.shape[:3]
    positions = batch * math.prod(dy.shape[3:])
    left = recorder.reshape(dy.permute([1, 2, 0, *range(3, dy.rank)]), (groups, rows, positions))
    rank = len(axes)
    taps = math.prod(a.kernel for a in axes)
    over = windows(padded(recorder, x, axes, 0), axes)  # batch, group, channel, output…, kernel…
    over = over.permute([1, 2, *range(3 + rank, 3 + 2 * rank), 0, *range(3, 3 + rank)])
    result = target(recorder, dw, (groups, rows, over.shape[1], taps))
    for first_group, group_count, first, count in _channel_parts(over, positions * taps * x.dtype.size):
        part = over.slice(0, first_group, group_count).slice(1, first, count)
        right = recorder.reshape(part, (group_count, count * taps, positions)).permute([0, 2, 1])
        out = result.slice(0, first_group, group_count).slice(2, first, count)
        product = target(recorder, out, (group_count, rows, count * taps))
        recorder.gemm(left.slice(0, first_group, group_count), right, product)
        settle(recorder, product, out)
    settle(recorder, result, dw)


def _correlate(recorder: Recorder, x: View, w: View, y: View, axes: Sequence[Axis]) -> None:
    """Records y[n, g, m, o] = sum over c, k of x[n, g, c, o · stride + k · dilation] · w[g, m, c, k]."""
    batch, groups, channels = x.shape[:3]
    rows = w.shape[1]
    depth, columns = channels * math.prod(w.shape[3:]), math.prod(y.shape[3:])
    rank = len(axes)
    weights = recorder.reshape(w, (groups, rows, depth))
    over = windows(x, axes)  # batch, group, channel, output…, kernel…
    over = over.permute([0, 1, 2, *range(3 + rank, 3 + 2 * rank), *range(3, 3 + rank)])
    result = target(recorder, y, (batch, groups, rows, columns))
    whole = over.reshape((batch, groups, depth, columns)) is not None  # a 1×1 kernel: the windows are the input
    parts = [(0, batch)] if whole else _parts(batch, groups * depth * columns * x.dtype.size)
    for first, count in parts:
        right = recorder.reshape(over.slice(0, first, count), (count, groups, depth, columns))
        recorder.gemm(weights, right, result.slice(0, first, count))
    settle(recorder, result, y)


def _parts(count: int, bytes_each: int) -> list[tuple[int, int]]:
    """Returns (first, count) of pieces that each fit into the workspace, of one element at least."""
    step = max(1, WORKSPACE_BYTES // max(bytes_each, 1))
    return [(first, min(step, count - first)) for first in range(0, count, step)]


def _channel_parts(over: View, bytes_each: int) -> list[tuple[int, int, int, int]]:
    """Returns (first group, groups, first channel, channels) of pieces: all at once, or one group at a time."""
    groups, channels = over.shape[:2]
    parts = _parts(channels, bytes_each)
    if groups * channels * bytes_each <= WORKSPACE_BYTES or groups == 1:
        return [(0, groups, first, count) for first, count in parts]
    return [(group, 1, first, count) for group in range(groups) for first, count in parts]
