"""LayerNormalization, umd.LayerNorm (torch's native_layer_norm) and its gradient."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.norms import EPSILON, affine, normalized
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, compute, widen, without_trailing
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast, normal_axis
from umd_core.views import ABSENT, View


def _axis(call: Call, x: Shape) -> int:
    if not x:
        raise call.error("is 0-d; one axis or more would be right", input="X")
    return normal_axis(call, call.attr("axis"), len(x))


def _shape(call: Call) -> tuple[Shape, Shape, Shape]:
    x = call.desc(0).shape
    axis = _axis(call, x)
    call.types["S"] = accumulator(call.types["T"])
    for index in (1, 2):
        if call.has(index) and broadcast(call.desc(index).shape, x[axis:]) != x[axis:]:
            detail = f"has shape {list(call.desc(index).shape)}; one that broadcasts to {list(x[axis:])} would be right"
            raise call.error(detail, input=call.template.inputs[index].name)
    outer = x[:axis] + (1,) * (len(x) - axis)
    return (x, outer, outer)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, View | None, View | None]:
    x, y = views[0], recorder.out(call)
    scale, bias = (*views[1:3], ABSENT, ABSENT)[:2]
    axis = _axis(call, x.shape)
    wide = accumulator(x.dtype)
    mixed = any(v and v.dtype is not x.dtype for v in (scale, bias))
    source, value = (widen(recorder, x), recorder.new(wide, x.shape)) if mixed else (x, y)
    outs = [recorder.out(call, i) if call.wants(i) else None for i in (1, 2)]
    targets = [ABSENT if out is None or out.dtype is not wide else without_trailing(out, x.rank - axis) for out in outs]
    written = normalized(recorder, source, range(axis, x.rank), call.attr("epsilon"), value, *targets)
    for out, target, statistic in zip(outs, targets, written, strict=True):
        if out is not None and not target:
            recorder.copy(statistic, without_trailing(out, x.rank - axis))
    affine(recorder, value, scale, bias, y)
    return y, outs[0], outs[1]


def _grad_shape(call: Call) -> tuple[Shape, Shape, Shape]:
    dy, x = call.desc(0).shape, call.desc(1).shape
    if dy != x:
        raise call.error(f"has shape {list(x)}, dY has {list(dy)}; equal shapes would be right", input="X")
    axis = _axis(call, x)
    call.types.setdefault("U", call.types["T"])
    outer = x[:axis] + (1,) * (len(x) - axis)
    for index, expected in ((2, outer), (3, outer), (4, x[axis:])):
        if call.has(index) and call.desc(index).shape != expected:
            detail = f"has shape {list(call.desc(index).shape)}; {list(expected)} would be right"
            raise call.error(detail, input=call.template.inputs[index].name)
    return (x, x[axis:], x[axis:])


def _emit_grad(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View | None, ...]:
    """With h = (x - mean) · rstd and g = dy · scale: dx = rstd · (g - mean of g - h · mean of g · h)."""
    wide = accumulator(views[0].dtype)
    dy, x, mean, rstd = (widen(recorder, v, wide) for v in views[:4])
    axis = _axis(call, x.shape)
    outer = range(axis)
    h = recorder.expression("sub", (x, mean), recorder.like(x))
    recorder.expression("mul", (h, rstd), h)
    work = recorder.expression("mul", (dy, h), recorder.like(x))
    outs = [recorder.out(call, i) if call.wants(i) else None for i in range(3)]
    for out, source in ((outs[1], work), (outs[2], dy)):
        if out is not None:
            total = out if out.dtype is wide else recorder.new(wide, out.shape)
            recorder.reduce("sum", source, outer, total)
            if total is not out:
                recorder.copy(total, out)
    if outs[0] is not None:
        if len(views) > 4 and views[4]:
            scale = widen(recorder, views[4], wide)
            recorder.expression("mul", (work, scale), work)
            dy = recorder.expression("mul", (dy, scale), recorder.like(x))
        _emit_input_grad(recorder, axis, (dy, h, work), rstd, outs[0])
    return tuple(outs)


def _emit_input_grad(recorder: Recorder, axis: int, parts: tuple[View, View, View], rstd: View, dx: View) -> None:
    """Records dx = rstd · (g - mean of g - h · mean of g · h) from g, h and g · h, spoiling h."""
    g, h, product = parts
    inner = range(axis, g.rank)
    means = []
    for source in (g, product):
        mean = recorder.new(g.dtype, g.shape[:axis] + (1,) * len(inner))
        recorder.reduce("mean", source, inner, without_trailing(mean, len(inner)))
        means.append(mean)
    recorder.expression("mul", (h, means[1]), h)
    recorder.expression("sub", (g, h), h)
    recorder.expression("sub", (h, means[0]), h)
    compute(recorder, "mul", (h, rstd), dx)


_AXIS = Attribute("axis", "int", -1)
_T = {"T": FLOATS}
TEMPLATES = (
    OpTemplate(
        "LayerNormalization",
        (Input("X"), Input("Scale"), Input("B", optional=True)),
        (Result("Y"), Result("Mean", "@stash_type", optional=True), Result("InvStdDev", "@stash_type", optional=True)),
        _shape,
        _emit,
        _T,
        (_AXIS, EPSILON, Attribute("stash_type", "dtype", "float32")),
        flops=lambda call: 8 * call.desc(0).element_count,
        doc="X brought to mean 0 and variance 1 over the axes from `axis` on, then · Scale + B.",
    ),
    OpTemplate(
        "umd.LayerNorm",
        (Input("X"), Input("Scale", "U", optional=True), Input("B", "U", optional=True)),
        (Result("Y"), Result("mean", "S"), Result("rstd", "S")),
        _shape,
        _emit,
        {"T": FLOATS, "U": FLOATS},
        (_AXIS, EPSILON),
        flops=lambda call: 8 * call.desc(0).element_count,
        doc="As LayerNormalization; mean and rstd = 1 / sqrt(variance + epsilon) are float32, or float64 for float64.",
    ),
    OpTemplate(
        "umd.LayerNormGrad",
        (Input("dY"), Input("X"), Input("mean", "S"), Input("rstd", "S"), Input("Scale", "U", optional=True)),
        (Result("dX"), Result("dScale", "U", optional=True), Result("dB", "U", optional=True)),
        _grad_shape,
        _emit_grad,
        {"T": FLOATS, "S": FLOATS, "U": FLOATS},
        (_AXIS,),
        flops=lambda call: 12 * call.desc(0).element_count,
        doc="Gradients of umd.LayerNorm for X, Scale and B.",
    ),
)
