"""RNN: a layer whose state is an activation of the input and the last state, unrolled over time."""

from __future__ import annotations

from collections.abc import Sequence

from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.recurrence import (
    ATTRIBUTES,
    INPUTS,
    RESULTS,
    Lane,
    Step,
    activations,
    flops,
    output_shapes,
    sizes,
    unroll,
)
from umd_core.template import Call, OpTemplate, Shape
from umd_core.views import View

_NAMES = ("Tanh",)


def _shape(call: Call) -> list[Shape]:
    activations(call, _NAMES)
    return output_shapes(call, sizes(call, 1, 1), 1)


def _cell(lane: Lane) -> tuple[View | None, Step]:
    def step(projected: View, states: Sequence[View], row: View) -> list[View]:
        total = lane.recurrent(states[0], 0, 1)
        lane.recorder.expression("add", (total, projected), total)
        return [lane.activate(0, total, row)]

    return lane.biases(), step


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> list[View | None]:
    return unroll(recorder, call, views, 1, _cell, _NAMES, 1)


TEMPLATES = (
    OpTemplate(
        "RNN",
        INPUTS,
        RESULTS,
        _shape,
        _emit,
        {"T": FLOATS},
        ATTRIBUTES,
        flops=lambda call: flops(call, 1, 1),
        doc="H = activation of X · Wᵀ + H · Rᵀ + B over the steps of X: every state Y, and the last one.",
    ),
)
