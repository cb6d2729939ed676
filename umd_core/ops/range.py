"""Range: numbers from start up to limit, delta apart."""

from __future__ import annotations

import math
from typing import Any

from umd_core.attributes import Attribute
from umd_core.dtypes import NUMERIC
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View

_NAMES = ("start", "limit", "delta")


def _numbers(call: Call) -> list[Any]:
    numbers = []
    for index, name in enumerate(_NAMES):
        value = call.static(index)
        if value is None or value.size != 1:
            raise call.error(f"has shape {list(call.desc(index).shape)}; a 0-d tensor would be right", input=name)
        item = value.reshape(()).item()
        numbers.append(item if isinstance(item, int) else float(item))
    return numbers


def _shape(call: Call) -> tuple[Shape]:
    start, limit, delta = _numbers(call)
    if delta == 0 or not all(map(math.isfinite, (start, limit, delta))):
        raise call.error(f"{start} to {limit} by {delta} never ends; a finite delta other than 0 would be right")
    if isinstance(start, int):
        return ((max(-((start - limit) // delta), 0),),)
    count = limit / delta - start / delta if math.isinf(limit - start) else (limit - start) / delta
    return ((max(math.ceil(min(count, 2.0**63)), 0),),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    start, _, delta = _numbers(call)
    out = recorder.out(call)
    operands = {"start": recorder.scalar(start, out.dtype), "step": recorder.scalar(delta, out.dtype), "out": out}
    recorder.launch("iota_kernel", {"count": out.shape[0]}, operands)
    return out


TEMPLATES = (
    OpTemplate(
        "Range",
        tuple(Input(name, static=True) for name in _NAMES),
        (Result("output"),),
        _shape,
        _emit,
        {"T": NUMERIC},
        (Attribute("stash_type", "int", 1, choices=(1,)),),
        doc="start + i · delta for every such number before limit; 16-bit floats are computed in float32.",
    ),
)
