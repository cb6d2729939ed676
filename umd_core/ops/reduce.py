"""ReduceSum, Mean, Max, Min, Prod, and norms and logarithms of sums: a reduction over some axes, or all."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.attributes import Attribute
from umd_core.builders import input_flops
from umd_core.dtypes import ALL, FLOATS, NUMERIC, DType
from umd_core.recorder import Recorder
from umd_core.shaping import widen
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape, element_count, normal_axes
from umd_core.views import View


def _axes(call: Call) -> tuple[int, ...]:
    given, rank = call.ints(1), call.desc(0).rank
    if given:
        return normal_axes(call, given, rank) if rank else ()
    return () if call.attr("noop_with_empty_axes") else tuple(range(rank))


def _shape(call: Call) -> tuple[Shape]:
    axes, shape = _axes(call), call.desc(0).shape
    if call.attr("keepdims"):
        return (tuple(1 if axis in axes else extent for axis, extent in enumerate(shape)),)
    return (tuple(extent for axis, extent in enumerate(shape) if axis not in axes),)


def _without(view: View, axes: tuple[int, ...], keepdims: bool) -> View:
    """Returns the output's view without the axes that were reduced."""
    for axis in sorted(axes, reverse=True) if keepdims else ():
        view = view.squeeze(axis)
    return view


def _reduction(kernel: str) -> Emit:
    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        x, axes = views[0], _axes(call)
        if all(x.shape[axis] == 1 for axis in axes):
            return recorder.reshape(x, call.outputs[0].shape)
        out = recorder.out(call)
        target = _without(out, axes, call.attr("keepdims"))
        if x.dtype is not dtypes.bool_:
            recorder.reduce(kernel, x, axes, target)
            return out
        numbers = recorder.copy(x, recorder.new(dtypes.uint8, x.shape))
        recorder.copy(recorder.reduce(kernel, numbers, axes, recorder.new(dtypes.uint8, target.shape)), target)
        return out

    return emit


def _emit_mean(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x = views[0]
    if x.dtype.is_float:
        result = _reduction("mean")(recorder, call, views)
        return result if isinstance(result, View) else x
    axes, out = _axes(call), recorder.out(call)
    recorder.reduce("sum", x, axes, _without(out, axes, call.attr("keepdims")))
    count = element_count([x.shape[axis] for axis in axes])
    return recorder.expression("div", (out, recorder.scalar(count, out.dtype)), out)


def _wide(recorder: Recorder, x: View) -> View:
    """Returns x as the float type that functions of it are summed in."""
    return widen(recorder, x) if x.dtype.is_float else recorder.copy(x, recorder.new(dtypes.float64, x.shape))


def _sum_of(inner: str, outer: str) -> Emit:
    """Returns an emit function: `outer` of the sum of `inner` of each element, either possibly none."""

    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        x, axes, out = _wide(recorder, views[0]), _axes(call), recorder.out(call)
        if inner:
            x = recorder.expression(inner, (x, x) if inner == "mul" else (x,), recorder.like(x))
        total = recorder.new(x.dtype, out.shape)
        recorder.reduce("sum", x, axes, _without(total, axes, call.attr("keepdims")))
        if outer:
            recorder.expression(outer, (total,), total)
        return recorder.copy(total, out)

    return emit


def _emit_log_sum_exp(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Subtracts the largest element first, unless it is infinite, so that exp does not overflow."""
    x, axes, out = _wide(recorder, views[0]), _axes(call), recorder.out(call)
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.shape))
    largest, total = recorder.new(x.dtype, kept), recorder.new(x.dtype, kept)
    recorder.reduce("max", x, axes, _without(largest, axes, True))
    infinite = recorder.expression("isinf", (largest,), recorder.new(dtypes.bool_, kept))
    recorder.expression("select", (infinite, recorder.scalar(0, x.dtype), largest), largest)
    shifted = recorder.expression("sub", (x, largest), recorder.like(x))
    recorder.expression("exp", (shifted,), shifted)
    recorder.reduce("sum", shifted, axes, _without(total, axes, True))
    recorder.expression("log", (total,), total)
    recorder.expression("add", (total, largest), total)
    return recorder.copy(recorder.reshape(total, out.shape), out)


def _reduce(name: str, emit: Emit, types: tuple[DType, ...], doc: str) -> OpTemplate:
    return OpTemplate(
        name,
        (Input("data"), Input("axes", "int64", optional=True, static=True)),
        (Result("reduced"),),
        _shape,
        emit,
        {"T": types},
        (Attribute("keepdims", "bool", True), Attribute("noop_with_empty_axes", "bool", False)),
        flops=input_flops,
        doc=doc,
    )


_MEAN = (*FLOATS, dtypes.int32, dtypes.int64, dtypes.uint32, dtypes.uint64)
TEMPLATES = (
    _reduce("ReduceSum", _reduction("sum"), NUMERIC, "Sum over axes; 0 over nothing. Integers wrap."),
    _reduce("ReduceMean", _emit_mean, _MEAN, "Mean over axes; NaN over nothing. Integers truncate."),
    _reduce("ReduceMax", _reduction("max"), ALL, "Largest over axes; the least value over nothing. NaN wins."),
    _reduce("ReduceMin", _reduction("min"), ALL, "Smallest over axes; the greatest value over nothing. NaN wins."),
    _reduce("ReduceL1", _sum_of("abs", ""), _MEAN, "Sum of absolute values over axes."),
    _reduce("ReduceL2", _sum_of("mul", "sqrt"), _MEAN, "Root of the sum of squares over axes; integers truncate."),
    _reduce("ReduceSumSquare", _sum_of("mul", ""), _MEAN, "Sum of squares over axes."),
    _reduce("ReduceLogSum", _sum_of("", "log"), _MEAN, "Logarithm of the sum over axes; integers truncate."),
    _reduce("ReduceLogSumExp", _emit_log_sum_exp, _MEAN, "Logarithm of the sum of exponentials over axes."),
    _reduce("ReduceProd", _reduction("prod"), NUMERIC, "Product over axes; 1 over nothing. Integers wrap."),
)
