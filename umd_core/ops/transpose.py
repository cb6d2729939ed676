"""Transpose: the axes in another order."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axes
from umd_core.views import View


def _permutation(call: Call) -> tuple[int, ...]:
    rank, perm = call.desc(0).rank, call.attr("perm")
    if perm is None:
        return tuple(reversed(range(rank)))
    if len(perm) != rank:
        raise call.bad_attribute("perm", f"{list(perm)} names {len(perm)} of {rank} axes", f"all of 0 to {rank - 1}")
    return normal_axes(call, perm, rank, "perm")


def _shape(call: Call) -> tuple[Shape]:
    shape = call.desc(0).shape
    return (tuple(shape[axis] for axis in _permutation(call)),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return views[0].permute(_permutation(call))


TEMPLATES = (
    OpTemplate(
        "Transpose",
        (Input("data"),),
        (Result("transposed"),),
        _shape,
        _emit,
        {"T": ALL},
        (Attribute("perm", "ints"),),
        flops=no_flops,
        doc="The axes in the order perm, reversed by default; no data moves.",
    ),
)
