"""TensorScatter: new rows written into a cache, from each batch's own position on."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL, int64
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View


def _axis(call: Call) -> int:
    axis = normal_axis(call, call.attr("axis"), call.desc(0).rank)
    if not axis:
        raise call.bad_attribute("axis", "is the batch axis, 0", "another axis")
    return axis


def _shape(call: Call) -> tuple[Shape]:
    cache, update, axis = call.desc(0).shape, call.desc(1).shape, _axis(call)
    if len(update) != len(cache) or any(
        u > c if a == axis else u != c for a, (u, c) in enumerate(zip(update, cache, strict=True))
    ):
        detail = (
            f"has shape {list(update)}; that of past_cache, {list(cache)}, no longer in axis {axis}, would be right"
        )
        raise call.error(detail, input="update")
    if call.has(2) and call.desc(2).shape != cache[:1]:
        raise call.error(
            f"has shape {list(call.desc(2).shape)}; {list(cache[:1])} would be right", input="write_indices"
        )
    return (cache,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    cache, update = views[:2]
    axis, out = _axis(call), recorder.mutable(cache)
    if 0 in update.shape:
        return out
    if not call.has(2):
        recorder.copy(update, out.slice(axis, 0, update.shape[axis]))
        return out
    at = _places(recorder, call, views[2], update.shape[axis], out.shape[axis])
    steps = [0] * update.rank
    steps[0], steps[axis] = at.strides
    places = View(at.buffer, at.dtype, update.shape, tuple(steps), at.offset)
    strides = (*(0 if a == axis else s for a, s in enumerate(out.strides)), out.strides[axis])
    target = View(out.buffer, out.dtype, (*update.shape, out.shape[axis]), strides, out.offset)
    recorder.scatter(update, places, target, out.shape[axis])
    return out


def _places(recorder: Recorder, call: Call, first: View, count: int, extent: int) -> View:
    """Returns (batch, count) int64: where each row goes, around the end of a circular cache."""
    step = recorder.new(int64, (count,))
    operands = {"start": recorder.scalar(0, int64), "step": recorder.scalar(1, int64), "out": step}
    recorder.launch("iota_kernel", {"count": count}, operands)
    at = recorder.expression("add", (first.unsqueeze(1), step), recorder.new(int64, (first.shape[0], count)))
    if call.attr("mode") == "circular":
        recorder.expression("mod", (at, recorder.scalar(extent, int64)), at)
    return at


TEMPLATES = (
    OpTemplate(
        "TensorScatter",
        (Input("past_cache"), Input("update"), Input("write_indices", "int64", optional=True)),
        (Result("present_cache"),),
        _shape,
        _emit,
        {"T": ALL},
        (Attribute("axis", "int", -2), Attribute("mode", "string", "linear", choices=("linear", "circular"))),
        flops=no_flops,
        doc="past_cache with update written along axis, in each batch from write_indices (0) on; a circular cache goes "
        "on at its beginning. A place outside a linear one is an error when the program runs.",
    ),
)
