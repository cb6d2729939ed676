"""GRU: a layer with update and reset gates, unrolled over time."""

from __future__ import annotations

from collections.abc import Sequence

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.recurrence import (
    ATTRIBUTES,
    INPUTS,
    RESULTS,
    Cell,
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

_NAMES = ("Sigmoid", "Tanh")
_UPDATE, _RESET, _HIDDEN = range(3)


def _shape(call: Call) -> list[Shape]:
    activations(call, _NAMES)
    return output_shapes(call, sizes(call, 3, 1), 1)


def _cell(recorder: Recorder, *, linear_before_reset: bool) -> Cell:
    def bias_of(lane: Lane) -> View | None:
        """Returns both biases added, without the hidden gate's recurrent one where the reset gate scales it."""
        if lane.w_bias is None or lane.r_bias is None or not linear_before_reset:
            return lane.biases()
        total = recorder.copy(lane.w_bias, recorder.like(lane.w_bias))
        first = lane.gate(total, _UPDATE, 2)
        recorder.expression("add", (first, lane.gate(lane.r_bias, _UPDATE, 2)), first)
        return total

    def cell(lane: Lane) -> tuple[View | None, Step]:
        def linear(state: View, reset: View) -> View:
            """Returns what the last state adds to the hidden gate."""
            if not linear_before_reset:
                return lane.recurrent(recorder.expression("mul", (reset, state), reset), _HIDDEN, 1)
            part = lane.recurrent(state, _HIDDEN, 1)
            if lane.r_bias is not None:
                recorder.expression("add", (part, lane.gate(lane.r_bias, _HIDDEN)), part)
            return recorder.expression("mul", (reset, part), part)

        def step(projected: View, states: Sequence[View], row: View) -> list[View]:
            (state,) = states
            gates = lane.recurrent(state, _UPDATE, 2)
            recorder.expression("add", (gates, lane.gate(projected, _UPDATE, 2)), gates)
            lane.activate(0, gates)
            hidden = linear(state, lane.gate(gates, _RESET))
            recorder.expression("add", (hidden, lane.gate(projected, _HIDDEN)), hidden)
            lane.activate(1, hidden)
            change = recorder.expression("sub", (state, hidden), recorder.like(hidden))
            recorder.expression("multiply_add", (lane.gate(gates, _UPDATE), change, hidden), row)
            return [row]

        return bias_of(lane), step

    return cell


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> list[View | None]:
    cell = _cell(recorder, linear_before_reset=call.attr("linear_before_reset"))
    return unroll(recorder, call, views, 3, cell, _NAMES, 1)


TEMPLATES = (
    OpTemplate(
        "GRU",
        INPUTS,
        RESULTS,
        _shape,
        _emit,
        {"T": FLOATS},
        (*ATTRIBUTES, Attribute("linear_before_reset", "bool", False)),
        flops=lambda call: flops(call, 3, 1),
        doc="Gated recurrent units over the steps of X: every state Y, and the last one.",
        source="Cho et al., Learning phrase representations, arXiv:1406.1078; ONNX, operator GRU",
    ),
)
