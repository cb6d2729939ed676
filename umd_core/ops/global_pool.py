"""GlobalAveragePool and GlobalMaxPool: one number a plane."""

from __future__ import annotations

from umd_core.builders import input_flops
from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.shaping import without_trailing
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    shape = call.desc(0).shape
    if len(shape) < 3:
        raise call.error(f"has shape {list(shape)}; (N, C, …) with one spatial axis or more would be right", input="X")
    return (shape[:2] + (1,) * (len(shape) - 2),)


def _reduction(name: str) -> Emit:
    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        y, rank = recorder.out(call), views[0].rank
        recorder.reduce(name, views[0], range(2, rank), without_trailing(y, rank - 2))
        return y

    return emit


def _template(name: str, reduction: str, doc: str) -> OpTemplate:
    emit, types = _reduction(reduction), {"T": FLOATS}
    return OpTemplate(name, (Input("X"),), (Result("Y"),), _shape, emit, types, flops=input_flops, doc=doc)


TEMPLATES = (
    _template("GlobalAveragePool", "mean", "Mean of each plane of X (N, C, …)."),
    _template("GlobalMaxPool", "max", "Largest element of each plane of X (N, C, …). NaN wins."),
)
