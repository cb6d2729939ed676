"""Tile: a tensor repeated whole along its axes."""

from __future__ import annotations

from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.ir import MAX_RANK
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    shape, repeats = call.desc(0).shape, call.ints(1) or ()
    if len(repeats) != len(shape):
        raise call.error(f"has {len(repeats)} entries; one per axis of {list(shape)} would be right", input="repeats")
    if min(repeats, default=0) < 0:
        raise call.error(f"{list(repeats)} has a negative entry", input="repeats")
    return (tuple(extent * count for extent, count in zip(shape, repeats, strict=True)),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """One copy where the rank allows it, else one per axis, which merge to three axes each."""
    x, shape = views[0], call.outputs[0].shape
    repeats = [(axis, count) for axis, count in enumerate(call.ints(1) or ()) if count != 1]
    if not repeats:
        return x
    if 0 in shape or x.rank + len(repeats) <= MAX_RANK:
        return _repeat(recorder, x, recorder.out(call), repeats)
    x = recorder.contiguous(x)
    for axis, count in repeats:
        longer = (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :])
        x = _repeat(recorder, x, recorder.new(x.dtype, longer), [(axis, count)])
    return x


def _repeat(recorder: Recorder, x: View, out: View, repeats: list[tuple[int, int]]) -> View:
    """Copies onto `out` with each repeated axis cut in two; the source stands still along the first half."""
    target = out
    for axis, count in reversed(repeats):
        extent, stride = x.shape[axis], target.strides[axis]
        shape = (*target.shape[:axis], count, extent, *target.shape[axis + 1 :])
        strides = (*target.strides[:axis], stride * extent, stride, *target.strides[axis + 1 :])
        target = View(target.buffer, target.dtype, shape, strides, target.offset)
    for axis, _ in reversed(repeats):
        x = x.unsqueeze(axis)
    recorder.copy(x, target)
    return out


TEMPLATES = (
    OpTemplate(
        "Tile",
        (Input("input"), Input("repeats", "int64", static=True)),
        (Result("output"),),
        _shape,
        _emit,
        {"T": ALL},
        flops=no_flops,
        doc="input repeated as often as repeats says along each axis.",
    ),
)
