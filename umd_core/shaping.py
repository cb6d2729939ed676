"""Steps that ops and decompositions share: axes split and added, outputs written in another shape, wide floats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from umd_core.dtypes import DType, bool_, float32, float64, int64
from umd_core.ir import contiguous_strides
from umd_core.recorder import Recorder
from umd_core.views import View


def split_axis(view: View, axis: int, outer: int) -> View:
    """Returns the view with `axis` replaced by (outer, extent // outer)."""
    extent, stride = view.shape[axis], view.strides[axis]
    inner = extent // outer if outer else 0
    shape = (*view.shape[:axis], outer, inner, *view.shape[axis + 1 :])
    strides = (*view.strides[:axis], stride * inner, stride, *view.strides[axis + 1 :])
    return View(view.buffer, view.dtype, shape, strides, view.offset)


def trailing(view: View, count: int) -> View:
    """Returns the view with `count` axes of extent 1 appended, so that it broadcasts over axes that follow."""
    shape, strides = view.shape + (1,) * count, view.strides + (0,) * count
    return View(view.buffer, view.dtype, shape, strides, view.offset)


def without_trailing(view: View, count: int) -> View:
    """Returns the view without its last `count` axes, which have extent 1."""
    kept = view.rank - count
    return View(view.buffer, view.dtype, view.shape[:kept], view.strides[:kept], view.offset)


def target(recorder: Recorder, out: View, shape: Sequence[int]) -> View:
    """Returns `out` in another shape, or a new buffer of that shape where its strides do not allow it.

    `settle` brings what was written there into `out`.
    """
    view = out.reshape(shape)
    return recorder.new(out.dtype, shape) if view is None else view


def settle(recorder: Recorder, written: View, out: View) -> View:
    """Copies what was written into a `target` to `out`, unless it is there already; returns `out`."""
    if written.buffer != out.buffer:
        recorder.copy(View(written.buffer, written.dtype, out.shape, contiguous_strides(out.shape)), out)
    return out


def take(recorder: Recorder, x: View, axis: int, index: View, out: View) -> View:
    """Records out[.., i, ..] = x[.., index[i], ..] along an axis; `index` has one axis. Returns `out`."""
    strides = (*x.strides[:axis], 0, *x.strides[axis + 1 :], x.strides[axis])
    source = View(x.buffer, x.dtype, (*out.shape, x.shape[axis]), strides, x.offset)
    lead, rest = (0,) * axis, (0,) * (out.rank - axis - 1)
    places = View(index.buffer, index.dtype, out.shape, (*lead, index.strides[0], *rest), index.offset)
    return recorder.gather(source, places, out, x.shape[axis])


def flat_index(recorder: Recorder, index: View, extents: Sequence[int]) -> View:
    """Returns the row-major position that each index tuple names, beyond the last one where one is out of range."""
    parts = [index.slice(index.rank - 1, at, 1).squeeze(index.rank - 1) for at in range(len(extents))]
    if len(parts) == 1:
        return parts[0]
    shape = index.shape[:-1]
    place, valid = recorder.fill(recorder.new(int64, shape), 0), recorder.fill(recorder.new(bool_, shape), True)
    truth = recorder.new(bool_, shape)
    for part, extent in zip(parts, extents, strict=True):
        size, zero = recorder.scalar(extent, int64), recorder.scalar(0, int64)
        k = recorder.copy(part, recorder.new(int64, shape))
        moved = recorder.expression("add", (k, size), recorder.new(int64, shape))
        recorder.expression("select", (recorder.expression("lt", (k, zero), truth), moved, k), k)
        for name, edge in (("ge", zero), ("lt", size)):
            recorder.expression("and", (valid, recorder.expression(name, (k, edge), truth)), valid)
        recorder.expression("multiply_add", (place, size, k), place)
    return recorder.expression("select", (valid, place, recorder.scalar(math.prod(extents), int64)), place)


def accumulator(dtype: DType) -> DType:
    """Returns the type in which sums of a float type are formed: float64 for float64, else float32."""
    return float64 if dtype is float64 else float32


def widen(recorder: Recorder, view: View, dtype: DType | None = None) -> View:
    """Returns the view in `dtype` (its accumulator type when not given), converted where it is of another type."""
    wide = dtype or accumulator(view.dtype)
    return view if view.dtype is wide else recorder.copy(view, recorder.new(wide, view.shape))


def compute(recorder: Recorder, name: str, inputs: Sequence[View], out: View) -> View:
    """Records an expression in the inputs' type, then a conversion where `out` is of another type; returns `out`."""
    dtype = inputs[-1].dtype
    if dtype is out.dtype:
        return recorder.expression(name, inputs, out)
    return recorder.copy(recorder.expression(name, inputs, recorder.new(dtype, out.shape)), out)
