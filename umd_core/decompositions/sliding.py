"""Windows over padded or spread-out inputs, as strided views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from umd_core.dtypes import DType
from umd_core.recorder import Recorder
from umd_core.views import View


class Axis(NamedTuple):
    """One spatial axis: element k of window o is at input position i = o · stride - pad + k · dilation."""

    input: int
    kernel: int
    output: int
    stride: int
    dilation: int
    pad: int

    @property
    def reach(self) -> int:
        """How many positions all windows together cover, gaps included."""
        return (self.output - 1) * self.stride + (self.kernel - 1) * self.dilation + 1


def axes_of(extents: Mapping[str, Any], fields: Mapping[str, Any]) -> list[Axis]:
    """Returns the spatial axes of a windowed kernel's launch."""
    names = ("input", "kernel", "output")
    columns = [*(extents[n] for n in names), fields["window_strides"], fields["dilations"], fields["pads"]]
    return [Axis(*numbers) for numbers in zip(*columns, strict=True)]


def padded(recorder: Recorder, x: View, axes: Sequence[Axis], value: object, dtype: DType | None = None) -> View:
    """Returns x with its last axes cut and filled up to what the windows cover, in `dtype` when given.

    Position 0 of a padded axis is position -pad of the input. No data moves where nothing needs to be added.
    """
    lead = x.rank - len(axes)
    spans = []
    for axis in axes:
        low, high = max(0, -axis.pad), min(axis.input, axis.reach - axis.pad)
        spans.append((low, max(high - low, 0), low + axis.pad))
    inside = x
    for i, (low, count, _) in enumerate(spans):
        inside = inside.slice(lead + i, low, count)
    shape = (*x.shape[:lead], *(axis.reach for axis in axes))
    if inside.shape == shape and dtype in (None, x.dtype):
        return inside
    result = recorder.new(dtype or x.dtype, shape)
    if inside.shape != shape:
        recorder.fill(result, value)
    place = result
    for i, (_, count, at) in enumerate(spans):
        place = place.slice(lead + i, at, count)
    recorder.copy(inside, place)
    return result


def spread(recorder: Recorder, dy: View, axes: Sequence[Axis]) -> View:
    """Returns dy with zeros between and around, so that plain windows over it visit what each input position fed.

    Window i, tap t (both from 0, taps `dilation` apart) of an axis holds dy[o] where input position i is element
    kernel - 1 - t of window o, and zero where there is no such o.
    """
    lead = dy.rank - len(axes)
    spans = []
    for axis in axes:
        first = (axis.kernel - 1) * axis.dilation - axis.pad  # where dy[0] lies
        length = axis.input + (axis.kernel - 1) * axis.dilation
        low = max(0, -(first // axis.stride))
        high = min(axis.output, -((first - length) // axis.stride))
        spans.append((low, max(high - low, 0), first + low * axis.stride, axis.stride, length))
    inside = dy
    for i, (low, count, *_) in enumerate(spans):
        inside = inside.slice(lead + i, low, count)
    shape = (*dy.shape[:lead], *(length for *_, length in spans))
    if inside.shape == shape:
        return inside
    result = recorder.new(dy.dtype, shape)
    recorder.fill(result, 0)
    place = result
    for i, (_, count, at, step, _) in enumerate(spans):
        place = place.slice(lead + i, at, count, step)
    recorder.copy(inside, place)
    return result


def windows(x: View, axes: Sequence[Axis]) -> View:
    """Returns x with its last axes replaced by (output extents…, kernel extents…): overlapping windows."""
    rank, lead = len(axes), x.rank - len(axes)
    for i in reversed(range(rank)):
        axis = axes[i]
        x = x.windows(lead + i, axis.output, axis.stride, axis.kernel, axis.dilation)
    order = [*range(lead), *range(lead, lead + 2 * rank, 2), *range(lead + 1, lead + 2 * rank, 2)]
    return x.permute(order)


def reversed_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Returns the windows over a `spread` gradient: one per input position, at stride 1."""
    return [Axis(a.output, a.kernel, a.input, 1, a.dilation, 0) for a in axes]
