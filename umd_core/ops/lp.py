"""LpNormalization and LpPool: norms of rows and of windows."""

from __future__ import annotations

import math

from umd_core.attributes import Attribute
from umd_core.decompositions.sliding import axes_of, padded
from umd_core.decompositions.sliding import windows as over_windows
from umd_core.dtypes import FLOATS, bool_
from umd_core.recorder import Recorder
from umd_core.shaping import widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View
from umd_core.windows import AUTO_PAD, CEIL_MODE, KERNEL_SHAPE, WINDOW, pool_windows


def _powers(recorder: Recorder, x: View, p: int) -> View:
    """Returns |x| to the power of p."""
    out = recorder.like(x)
    if p == 2:
        return recorder.expression("mul", (x, x), out)
    recorder.expression("abs", (x,), out)
    return out if p == 1 else recorder.expression("pow", (out, recorder.scalar(p, x.dtype)), out)


def _root(recorder: Recorder, total: View, p: int) -> View:
    """Records the p-th root of a sum in place."""
    if p == 1:
        return total
    if p == 2:
        return recorder.expression("sqrt", (total,), total)
    return recorder.expression("pow", (total, recorder.scalar(1 / p, total.dtype)), total)


def _normal_shape(call: Call) -> tuple[Shape]:
    shape = call.desc(0).shape
    if not shape:
        raise call.error("is 0-d; one axis or more would be right", input="input")
    normal_axis(call, call.attr("axis"), len(shape))
    return (shape,)


def _emit_normal(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, p = widen(recorder, views[0]), call.attr("p")
    axis = normal_axis(call, call.attr("axis"), x.rank)
    norm = recorder.new(x.dtype, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    recorder.reduce("sum", _powers(recorder, x, p), (axis,), norm.squeeze(axis))
    _root(recorder, norm, p)
    none = recorder.expression("eq", (norm, recorder.scalar(0, x.dtype)), recorder.new(bool_, norm.shape))
    recorder.expression("select", (none, recorder.scalar(math.inf, x.dtype), norm), norm)
    return recorder.copy(recorder.expression("div", (x, norm), recorder.like(x)), recorder.out(call))


def _pool_shape(call: Call) -> tuple[Shape]:
    if call.attr("p") < 1:
        raise call.bad_attribute("p", f"{call.attr('p')} makes no norm", "1 or more")
    lead, over = pool_windows(call)
    return (lead + over.output,)


def _emit_pool(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Sums over strided views of the windows of the padded input; no data moves for them."""
    x, p, out = widen(recorder, views[0]), call.attr("p"), recorder.out(call)
    lead, over = pool_windows(call)
    axes = axes_of(over.extents, over.fields)
    rows = over_windows(padded(recorder, _powers(recorder, x, p), axes, 0), axes)
    total = recorder.new(x.dtype, out.shape)
    first = len(lead) + len(axes)
    recorder.reduce("sum", rows, range(first, rows.rank), total)
    return recorder.copy(_root(recorder, total, p), out)


TEMPLATES = (
    OpTemplate(
        "LpNormalization",
        (Input("input"),),
        (Result("output"),),
        _normal_shape,
        _emit_normal,
        {"T": FLOATS},
        (Attribute("axis", "int", -1), Attribute("p", "int", 2, choices=(1, 2))),
        flops=lambda call: 3 * call.desc(0).element_count,
        doc="input divided by its p-norm along axis; 0 where that is 0.",
    ),
    OpTemplate(
        "LpPool",
        (Input("X"),),
        (Result("Y"),),
        _pool_shape,
        _emit_pool,
        {"T": FLOATS},
        (AUTO_PAD, CEIL_MODE, KERNEL_SHAPE, Attribute("p", "int", 2), *WINDOW),
        flops=lambda call: 2 * call.outputs[0].element_count * pool_windows(call)[1].kernel_size,
        doc="p-norm of each window of X (N, C, …); padding counts as 0.",
    ),
)
