"""OneHot, Hardmax and EyeLike: one value in a row that differs from the others."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL, FLOATS, NUMERIC, bool_, int64
from umd_core.recorder import Recorder
from umd_core.shaping import trailing
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View


def _numbered(recorder: Recorder, count: int) -> View:
    """Returns 0, 1, … as int64."""
    operands = {"start": recorder.scalar(0, int64), "step": recorder.scalar(1, int64)}
    out = recorder.new(int64, (count,))
    recorder.launch("iota_kernel", {"count": count}, {**operands, "out": out})
    return out


def _depth(call: Call) -> int:
    depth = call.static(1)
    if depth is None or depth.size != 1:
        raise call.error(f"has shape {list(call.desc(1).shape)}; one number would be right", input="depth")
    count = int(depth.reshape(-1)[0])
    if count < 1:
        raise call.error(f"is {count}; 1 or more would be right", input="depth")
    return count


def _one_hot_axis(call: Call) -> int:
    return normal_axis(call, call.attr("axis"), call.desc(0).rank + 1)


def _one_hot_shape(call: Call) -> tuple[Shape]:
    shape, axis = call.desc(0).shape, _one_hot_axis(call)
    if call.desc(2).shape != (2,):
        raise call.error(f"has shape {list(call.desc(2).shape)}; [2], off and on, would be right", input="values")
    return ((*shape[:axis], _depth(call), *shape[axis:]),)


def _emit_one_hot(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    index, _, values = views
    axis, count, out = _one_hot_axis(call), _depth(call), recorder.out(call)
    if index.dtype is not int64:
        index = recorder.copy(index, recorder.new(int64, index.shape))
    from_end = recorder.expression("add", (index, recorder.scalar(count, int64)), recorder.like(index))
    negative = recorder.expression("lt", (index, recorder.scalar(0, int64)), recorder.new(bool_, index.shape))
    index = recorder.expression("select", (negative, from_end, index), from_end).unsqueeze(axis)
    classes = trailing(_numbered(recorder, count), out.rank - 1 - axis)
    hit = recorder.expression("eq", (index, classes), recorder.new(bool_, out.shape))
    off, on = (values.slice(0, at, 1).squeeze(0) for at in (0, 1))
    return recorder.expression("select", (hit, on, off), out)


def _hardmax_shape(call: Call) -> tuple[Shape]:
    shape = call.desc(0).shape
    if not shape:
        raise call.error("is 0-d; one axis or more would be right", input="input")
    normal_axis(call, call.attr("axis"), len(shape))
    return (shape,)


def _emit_hardmax(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, out = views[0], recorder.out(call)
    if 0 in x.shape:
        return out
    axis = normal_axis(call, call.attr("axis"), x.rank)
    found = recorder.new(int64, (*x.shape[:axis], *x.shape[axis + 1 :]))
    recorder.arg_reduce("max", x, (axis,), found)
    places = trailing(_numbered(recorder, x.shape[axis]), x.rank - 1 - axis)
    hit = recorder.expression("eq", (found.unsqueeze(axis), places), recorder.new(bool_, x.shape))
    return recorder.copy(hit, out)


def _eye_shape(call: Call) -> tuple[Shape]:
    shape = call.desc(0).shape
    if len(shape) != 2:
        raise call.error(f"has shape {list(shape)}; a matrix would be right", input="input")
    call.types["T2"] = call.types["T1"] if call.attr("dtype") is None else call.attr("dtype")
    return (shape,)


def _emit_eye(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    out = recorder.fill(recorder.out(call), 0)
    (rows, columns), k = out.shape, call.attr("k")
    first = max(-k, 0)
    count = min(rows - first, columns - max(k, 0))
    if count > 0:
        at = out.offset + first * out.strides[0] + max(k, 0) * out.strides[1]
        recorder.fill(View(out.buffer, out.dtype, (count,), (sum(out.strides),), at), 1)
    return out


TEMPLATES = (
    OpTemplate(
        "OneHot",
        (Input("indices", "T1"), Input("depth", "T2", static=True), Input("values", "T3")),
        (Result("output", "T3"),),
        _one_hot_shape,
        _emit_one_hot,
        {"T1": NUMERIC, "T2": NUMERIC, "T3": ALL},
        (Attribute("axis", "int", -1),),
        flops=no_flops,
        doc="values[1] where the place along the new axis, of extent depth, is the index, else values[0]. Negative "
        "indices count from the end; those outside hit nothing.",
    ),
    OpTemplate(
        "Hardmax",
        (Input("input"),),
        (Result("output"),),
        _hardmax_shape,
        _emit_hardmax,
        {"T": FLOATS},
        (Attribute("axis", "int", -1),),
        doc="1 where the first largest element along axis is, else 0.",
    ),
    OpTemplate(
        "EyeLike",
        (Input("input", "T1"),),
        (Result("output", "T2"),),
        _eye_shape,
        _emit_eye,
        {"T1": ALL},
        (Attribute("dtype", "dtype"), Attribute("k", "int", 0)),
        flops=no_flops,
        doc="1 on the k-th diagonal of a matrix shaped like input, else 0.",
    ),
)
