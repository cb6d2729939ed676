"""Max, Min, Sum, Mean of any number of tensors that broadcast: a chain of binary launches."""

from __future__ import annotations

from umd_core.dtypes import FLOATS, NUMERIC, DType
from umd_core.recorder import Recorder
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape, broadcast_shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    for index in range(len(call.inputs)):
        call.desc(index)  # none may be left out
    return broadcast_shape(call)


def _flops(call: Call) -> int:
    return call.outputs[0].element_count * max(len(call.inputs) - 1, 1)


def _chain(kernel: str) -> Emit:
    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        if len(views) == 1:
            return views[0]
        out = recorder.expression(kernel, views[:2], recorder.out(call))
        for view in views[2:]:
            recorder.expression(kernel, (out, view), out)
        return out

    return emit


def _emit_mean(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    total = _chain("add")(recorder, call, views)
    if not isinstance(total, View) or len(views) == 1:
        return views[0]
    return recorder.expression("div", (total, recorder.scalar(len(views), total.dtype)), total)


def _variadic(name: str, emit: Emit, types: tuple[DType, ...], doc: str) -> OpTemplate:
    inputs = (Input("data", variadic=True),)
    return OpTemplate(name, inputs, (Result(name.lower()),), _shape, emit, {"T": types}, flops=_flops, doc=doc)


TEMPLATES = (
    _variadic("Max", _chain("max"), NUMERIC, "Largest of the inputs, elementwise; NaN wins."),
    _variadic("Min", _chain("min"), NUMERIC, "Smallest of the inputs, elementwise; NaN wins."),
    _variadic("Sum", _chain("add"), NUMERIC, "Sum of the inputs, elementwise, from first to last."),
    _variadic("Mean", _emit_mean, FLOATS, "Sum of the inputs, elementwise, divided by their number."),
)
