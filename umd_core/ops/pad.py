"""Pad: more elements, or with negative pads fewer, at both ends of some axes."""

from __future__ import annotations

from typing import NamedTuple

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL, INDEX
from umd_core.errors import LimitError
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axes
from umd_core.views import ABSENT, View

MAX_PERIODS = 256
"""How often a mode other than constant may repeat the tensor along an axis."""


class Run(NamedTuple):
    """`length` elements of the padded axis from `at` on, taken from `source` on, `step` apart."""

    at: int
    source: int
    length: int
    step: int


def _pads(call: Call) -> list[tuple[int, int]]:
    """Returns (before, after) of each axis."""
    rank, pads, given = call.desc(0).rank, call.ints(1) or (), call.ints(3)
    axes = tuple(range(rank)) if given is None else normal_axes(call, given, rank)
    if len(pads) != 2 * len(axes):
        raise call.error(f"has {len(pads)} entries; two for each of {len(axes)} axes would be right", input="pads")
    result = [(0, 0)] * rank
    for number, axis in enumerate(axes):
        result[axis] = (pads[number], pads[number + len(axes)])
    return result


def _shape(call: Call) -> tuple[Shape]:
    shape = []
    if call.has(2) and call.desc(2).element_count != 1:
        raise call.error(f"has shape {list(call.desc(2).shape)}; a 0-d tensor would be right", input="constant_value")
    for axis, (extent, (before, after)) in enumerate(zip(call.desc(0).shape, _pads(call), strict=True)):
        kept = extent + min(before, 0) + min(after, 0)
        if kept < 0:
            raise call.error(f"{before} and {after} take more from axis {axis} than its {extent}", input="pads")
        _check_mode(call, axis, kept, max(before, 0) + max(after, 0))
        shape.append(kept + max(before, 0) + max(after, 0))
    return (tuple(shape),)


def _check_mode(call: Call, axis: int, extent: int, more: int) -> None:
    mode = call.attr("mode")
    if mode == "constant" or not more:
        return
    if not extent:
        raise call.error(f"axis {axis} is empty, so that mode {mode!r} has nothing to repeat", input="data")
    if mode != "edge" and more // max(extent - 1, 1) > MAX_PERIODS:
        raise LimitError(f"pads per element of axis {axis}", more // max(extent - 1, 1), MAX_PERIODS, op=call.op)


def _runs(mode: str, extent: int, before: int, after: int) -> list[Run]:
    """Returns the padded axis as pieces of the axis itself."""
    if mode == "edge" or (mode == "reflect" and extent == 1):
        return [Run(0, 0, before, 0), Run(before, 0, extent, 1), Run(before + extent, extent - 1, after, 0)]
    runs, at, total = [], 0, before + extent + after
    period = extent if mode == "wrap" else 2 * (extent - 1)
    while at < total:
        phase = (at - before) % period
        if phase < extent:
            run = Run(at, phase, min(extent - phase, total - at), 1)
        else:
            run = Run(at, period - phase, min(period - phase, total - at), -1)
        runs.append(run)
        at += run.length
    return runs


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, pads = views[0], _pads(call)
    for axis, (before, after) in enumerate(pads):
        x = x.slice(axis, max(-before, 0), x.shape[axis] + min(before, 0) + min(after, 0))
    pads = [(max(before, 0), max(after, 0)) for before, after in pads]
    padded = [axis for axis, pad in enumerate(pads) if any(pad)]
    if not padded:
        return x
    if call.attr("mode") == "constant":
        return _constant(recorder, call, x, views[2] if len(views) > 2 else ABSENT, pads)
    for axis in padded:
        before, after = pads[axis]
        shape = (*x.shape[:axis], before + x.shape[axis] + after, *x.shape[axis + 1 :])
        out = recorder.out(call) if axis == padded[-1] else recorder.new(x.dtype, shape)
        for at, source, length, step in _runs(call.attr("mode"), x.shape[axis], before, after):
            recorder.copy(x.slice(axis, source, length, step), out.slice(axis, at, length))
        x = out
    return x


def _constant(recorder: Recorder, call: Call, x: View, value: View, pads: list[tuple[int, int]]) -> View:
    out = inner = recorder.out(call)
    if value:
        recorder.copy(recorder.reshape(value, ()), out)
    else:
        recorder.fill(out, 0)
    for axis, (before, _) in enumerate(pads):
        inner = inner.slice(axis, before, x.shape[axis])
    recorder.copy(x, inner)
    return out


TEMPLATES = (
    OpTemplate(
        "Pad",
        (
            Input("data"),
            Input("pads", "int64", static=True),
            Input("constant_value", optional=True),
            Input("axes", "Tind", optional=True, static=True),
        ),
        (Result("output"),),
        _shape,
        _emit,
        {"T": ALL, "Tind": INDEX},
        (Attribute("mode", "string", "constant", choices=("constant", "reflect", "edge", "wrap")),),
        flops=no_flops,
        doc="data with pads (all begins, then all ends) elements more at both ends of axes: constant_value or 0, or as "
        "mode says its reflection, its edge or itself again. Negative pads take elements away first.",
    ),
)
