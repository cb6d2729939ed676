"""Slice: every step-th element from start up to end, along some axes."""

from __future__ import annotations

from umd_core.builders import no_flops
from umd_core.dtypes import ALL, INDEX
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axes
from umd_core.views import View


def _ranges(call: Call) -> dict[int, range]:
    """Returns the positions that remain of each axis that is sliced."""
    shape = call.desc(0).shape
    starts, ends = call.ints(1) or (), call.ints(2) or ()
    given, steps = call.ints(3), call.ints(4) or (1,) * len(starts)
    if given is None and len(starts) > len(shape):
        raise call.error(f"has {len(starts)} entries for rank {len(shape)}", input="starts")
    axes = tuple(range(len(starts))) if given is None else normal_axes(call, given, len(shape))
    for name, values in (("ends", ends), ("axes", axes), ("steps", steps)):
        if len(values) != len(starts):
            raise call.error(f"has {len(values)} entries, starts has {len(starts)}", input=name)
    if axes and not shape:
        raise call.error("is 0-d and has no axis to slice", input="data")
    if 0 in steps:
        raise call.error(f"{list(steps)} holds 0; a positive or negative step would be right", input="steps")
    return {
        axis: range(*slice(start, end, step).indices(shape[axis]))
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


def _shape(call: Call) -> tuple[Shape]:
    ranges = _ranges(call)
    return (tuple(len(ranges[a]) if a in ranges else extent for a, extent in enumerate(call.desc(0).shape)),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    view = views[0]
    for axis, positions in _ranges(call).items():
        view = view.slice(axis, positions.start, len(positions), positions.step)
    return view


TEMPLATES = (
    OpTemplate(
        "Slice",
        (
            Input("data"),
            Input("starts", "Tind", static=True),
            Input("ends", "Tind", static=True),
            Input("axes", "Tind", optional=True, static=True),
            Input("steps", "Tind", optional=True, static=True),
        ),
        (Result("output"),),
        _shape,
        _emit,
        {"T": ALL, "Tind": INDEX},
        flops=no_flops,
        doc="Elements from starts up to ends (exclusive), steps apart, along axes; negative positions count from the "
        "end, and all are clamped. No data moves.",
    ),
)
