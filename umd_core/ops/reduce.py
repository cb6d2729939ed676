"""ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd: a reduction over some axes, or all."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.attributes import Attribute
from umd_core.builders import input_flops
from umd_core.dtypes import ALL, FLOATS, NUMERIC, DType
from umd_core.recorder import Recorder
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
    _reduce("ReduceProd", _reduction("prod"), NUMERIC, "Product over axes; 1 over nothing. Integers wrap."),
)
