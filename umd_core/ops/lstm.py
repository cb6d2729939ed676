"""LSTM: a layer with input, output and forget gates, unrolled over time."""

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
from umd_core.shaping import widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View

_NAMES = ("Sigmoid", "Tanh", "Tanh")
_INPUT, _OUTPUT, _FORGET, _CELL = range(4)


def _shape(call: Call) -> list[Shape]:
    found = sizes(call, 4, 2)
    activations(call, _NAMES)
    wanted = (found.directions, 3 * found.hidden)
    if call.has(7) and call.desc(7).shape != wanted:
        raise call.error(f"has shape {list(call.desc(7).shape)}; {list(wanted)} would be right", input="P")
    return output_shapes(call, found, 2)


def _cell(recorder: Recorder, call: Call, views: Sequence[View]) -> Cell:
    peepholes = widen(recorder, views[7]) if call.has(7) else None

    def cell(lane: Lane) -> tuple[View | None, Step]:
        own = None if peepholes is None else peepholes.slice(0, lane.direction, 1).squeeze(0)

        def peek(gates: View, gate: int, place: int, state: View) -> View:
            """Returns a gate's sum with its peephole's part of the cell state."""
            part = lane.gate(gates, gate)
            if own is not None:
                recorder.expression("multiply_add", (lane.gate(own, place), state, part), part)
            return part

        def step(projected: View, states: Sequence[View], row: View) -> list[View]:
            state, memory = states
            gates = lane.recurrent(state, 0, 4)
            recorder.expression("add", (gates, projected), gates)
            _open_gates(lane, gates, memory)
            fresh = lane.activate(1, lane.gate(gates, _CELL))
            kept = recorder.expression("mul", (lane.gate(gates, _FORGET), memory), recorder.new(row.dtype, row.shape))
            recorder.expression("multiply_add", (lane.gate(gates, _INPUT), fresh, kept), kept)
            if own is not None:
                lane.activate(0, peek(gates, _OUTPUT, 1, kept))
            lane.activations[2](recorder, kept, row)
            recorder.expression("mul", (row, lane.gate(gates, _OUTPUT)), row)
            return [row, kept]

        def _open_gates(lane: Lane, gates: View, memory: View) -> None:
            """Activates the gates; with peepholes the output gate waits for the new cell state."""
            if own is None and not call.attr("input_forget"):
                lane.activate(0, lane.gate(gates, _INPUT, 3))
                return
            lane.activate(0, peek(gates, _INPUT, 0, memory))
            forget = lane.gate(gates, _FORGET)
            if call.attr("input_forget"):
                one = recorder.scalar(1, forget.dtype)
                recorder.expression("sub", (one, lane.gate(gates, _INPUT)), forget)
            else:
                lane.activate(0, peek(gates, _FORGET, 2, memory))
            if own is None:
                lane.activate(0, lane.gate(gates, _OUTPUT))

        return lane.biases(), step

    return cell


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> list[View | None]:
    return unroll(recorder, call, views, 4, _cell(recorder, call, views), _NAMES, 2)


TEMPLATES = (
    OpTemplate(
        "LSTM",
        (*INPUTS, Input("initial_c", optional=True), Input("P", optional=True)),
        (*RESULTS, Result("Y_c", optional=True)),
        _shape,
        _emit,
        {"T": FLOATS},
        (*ATTRIBUTES, Attribute("input_forget", "bool", False)),
        flops=lambda call: flops(call, 4, 2),
        doc="Long short-term memory over the steps of X: every state Y, and the last hidden and cell states.",
        source="Hochreiter and Schmidhuber, Long short-term memory, 1997; ONNX, operator LSTM",
    ),
)
