"""Trilu: the upper or lower triangle of matrices, 0 elsewhere."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    shape, diagonal = call.desc(0).shape, call.static(1)
    if len(shape) < 2:
        raise call.error(f"has shape {list(shape)}; two axes or more would be right", input="input")
    if diagonal is not None and diagonal.size != 1:
        raise call.error(f"has shape {list(diagonal.shape)}; a 0-d tensor would be right", input="k")
    return (shape,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Keeps (row, column) where row + k <= column for the upper triangle, >= for the lower."""
    x, out = views[0], recorder.out(call)
    rows, columns = x.shape[-2:]
    (k,) = call.ints(1) or (0,)
    k = max(-rows - 1, min(k, columns + 1))
    row = _count(recorder, k, rows).unsqueeze(1)
    kernel = "le" if call.attr("upper") else "ge"
    kept = recorder.expression(kernel, (row, _count(recorder, 0, columns)), recorder.new(dtypes.bool_, (rows, columns)))
    return recorder.expression("select", (kept, x, recorder.scalar(0, x.dtype)), out)


def _count(recorder: Recorder, start: int, count: int) -> View:
    """Returns the numbers from `start` on."""
    out = recorder.new(dtypes.int64, (count,))
    operands = {"start": recorder.scalar(start, out.dtype), "step": recorder.scalar(1, out.dtype), "out": out}
    recorder.launch("iota_kernel", {"count": count}, operands)
    return out


TEMPLATES = (
    OpTemplate(
        "Trilu",
        (Input("input"), Input("k", "int64", optional=True, static=True)),
        (Result("output"),),
        _shape,
        _emit,
        {"T": ALL},
        (Attribute("upper", "bool", True),),
        flops=no_flops,
        doc="input where it lies on or above diagonal k (below, unless upper) of its last two axes, 0 elsewhere.",
    ),
)
