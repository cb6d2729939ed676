"""Pow: the base's dtype is the result's; the exponent may have another."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.dtypes import NUMERIC, DType
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, broadcast_shape
from umd_core.views import View


def _computed_in(base: DType, exponent: DType) -> DType:
    """Returns the dtype to compute in: integers wrap alike in 64 bits, and float64 holds every int32 base."""
    if base is exponent:
        return base
    if base.is_float:
        return dtypes.float64 if base is dtypes.float64 else dtypes.float32
    if exponent.is_float:
        return dtypes.float64
    return dtypes.uint64 if exponent.kind == "u" else dtypes.int64


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    base, exponent = views
    out = recorder.out(call)
    common = _computed_in(base.dtype, exponent.dtype)
    sides = [v if v.dtype is common else recorder.copy(v, recorder.new(common, v.shape)) for v in views]
    if common is out.dtype:
        return recorder.expression("pow", sides, out)
    return recorder.copy(recorder.expression("pow", sides, recorder.new(common, out.shape)), out)


TEMPLATES = (
    OpTemplate(
        "Pow",
        (Input("X"), Input("Y", "T1")),
        (Result("Z"),),
        broadcast_shape,
        _emit,
        {"T": NUMERIC, "T1": NUMERIC},
        doc="Z = X to the power of Y, in X's dtype; integers wrap, and truncate where Y is negative.",
    ),
)
