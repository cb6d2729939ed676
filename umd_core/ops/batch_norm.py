"""BatchNormalization, umd.BatchNormTrain (torch's functional batch norm) and its gradient."""

from __future__ import annotations

import math

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.norms import EPSILON, affine, check_channels, normalized, variance
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, compute, trailing, widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import ABSENT, View


def _channels(call: Call, x: Shape, first: int) -> int:
    """Returns the channels of x (N, C, …) after checking the inputs from `first` on against them."""
    if len(x) < 2:
        raise call.error(f"has shape {list(x)}; (N, C, …) would be right", input="X")
    check_channels(call, first, x[1])
    return x[1]


def _shape(call: Call) -> tuple[Shape, ...]:
    x = call.desc(0).shape
    channels = _channels(call, x, 1)
    return (x, (channels,), (channels,)) if call.attr("training_mode") else (x,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View | None, ...]:
    if not call.attr("training_mode"):
        return (_emit_inference(recorder, call, views),)
    kept = call.attr("momentum")
    y, mean, rstd = _emit_normalized(recorder, call, views[0], views[1], views[2])
    fresh = (mean, variance(recorder, rstd, call.attr("epsilon"))) if call.wants(1) or call.wants(2) else ()
    running = [
        _blend(recorder, old, new, kept, recorder.out(call, i)) if call.wants(i) else None
        for i, (old, new) in enumerate(zip(views[3:5], fresh, strict=False), 1)
    ]
    return (y, *running)


def _emit_inference(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Records y = x · a + b with a = scale / sqrt(variance + epsilon) and b = bias - mean · a."""
    x = widen(recorder, views[0])
    scale, bias, mean, var = (widen(recorder, v, x.dtype) for v in views[1:5])
    a = recorder.expression("add", (var, recorder.scalar(call.attr("epsilon"), x.dtype)), recorder.like(var))
    recorder.expression("rsqrt", (a,), a)
    recorder.expression("mul", (a, scale), a)
    b = recorder.expression("mul", (mean, a), recorder.like(mean))
    recorder.expression("sub", (bias, b), b)
    rest = x.rank - 2
    return compute(recorder, "multiply_add", (x, trailing(a, rest), trailing(b, rest)), recorder.out(call))


def _emit_normalized(
    recorder: Recorder, call: Call, x: View, scale: View, bias: View, mean: View = ABSENT, rstd: View = ABSENT
) -> tuple[View, View, View]:
    """Records y from the batch's own statistics; returns y, mean and rstd."""
    y = recorder.out(call)
    source, value = x, y
    if x.dtype is not accumulator(x.dtype):
        source, value = widen(recorder, x), recorder.new(accumulator(x.dtype), x.shape)
    axes = [0, *range(2, x.rank)]
    mean, rstd = normalized(recorder, source, axes, call.attr("epsilon"), value, mean, rstd)
    scale, bias = (trailing(v, x.rank - 2) if v else v for v in (scale, bias))
    affine(recorder, value, scale, bias, y)
    return y, mean, rstd


def _blend(recorder: Recorder, old: View, new: View, kept: float, out: View) -> View:
    """Records out = old · kept + new · (1 - kept), in new's type."""
    before = recorder.expression(
        "mul", (widen(recorder, old, new.dtype), recorder.scalar(kept, new.dtype)), recorder.like(new)
    )
    return compute(recorder, "multiply_add", (new, recorder.scalar(1.0 - kept, new.dtype), before), out)


def _train_shape(call: Call) -> tuple[Shape, ...]:
    x = call.desc(0).shape
    channels = _channels(call, x, 1)
    call.types["S"] = accumulator(call.types["T"])
    if call.has(3) != call.has(4):
        raise call.error("running_mean and running_var are given together or not at all")
    return (x, *((channels,),) * (4 if call.has(3) else 2))


def _emit_train(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View | None, ...]:
    x = views[0]
    scale, bias, running_mean, running_var = (*views[1:], ABSENT, ABSENT, ABSENT, ABSENT)[:4]
    saved = [recorder.out(call, i) if call.wants(i) else ABSENT for i in (1, 2)]
    y, mean, rstd = _emit_normalized(recorder, call, x, scale, bias, *saved)
    outputs: list[View | None] = [y, saved[0] or None, saved[1] or None]
    if not running_mean:
        return tuple(outputs)
    kept = 1.0 - call.attr("momentum")
    outputs.append(_blend(recorder, running_mean, mean, kept, recorder.out(call, 3)) if call.wants(3) else None)
    outputs.append(None)
    if call.wants(4):
        count = math.prod(x.shape) // max(x.shape[1], 1)
        unbiased = variance(recorder, rstd, call.attr("epsilon"))
        factor = recorder.scalar(count / (count - 1) if count > 1 else math.inf, unbiased.dtype)
        recorder.expression("mul", (unbiased, factor), unbiased)
        outputs[4] = _blend(recorder, running_var, unbiased, kept, recorder.out(call, 4))
    return tuple(outputs)


def _grad_shape(call: Call) -> tuple[Shape, Shape, Shape]:
    dy, x = call.desc(0).shape, call.desc(1).shape
    if dy != x:
        raise call.error(f"has shape {list(x)}, dY has {list(dy)}; equal shapes would be right", input="X")
    channels = _channels(call, x, 2)
    call.types.setdefault("U", call.types["T"])
    return (x, (channels,), (channels,))


def _emit_grad(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View | None, ...]:
    """With h = (x - mean) · rstd: dscale = sum of dy · h, dbias = sum of dy; dx as `_emit_input_grad` says."""
    wide = accumulator(views[0].dtype)
    dy, x, mean, rstd = (widen(recorder, v, wide) for v in views[:4])
    rest, axes = x.rank - 2, [0, *range(2, x.rank)]
    h = recorder.expression("sub", (x, trailing(mean, rest)), recorder.like(x))
    recorder.expression("mul", (h, trailing(rstd, rest)), h)
    product = recorder.expression("mul", (dy, h), recorder.like(x))
    sums = [recorder.reduce("sum", v, axes, recorder.new(wide, mean.shape)) for v in (product, dy)]
    outs = [recorder.out(call, i) if call.wants(i) else None for i in range(3)]
    for out, total in zip(outs[1:], sums, strict=True):
        if out is not None:
            recorder.copy(total, out)
    if outs[0] is not None:
        gain = rstd
        if len(views) > 4 and views[4]:
            gain = recorder.expression("mul", (rstd, widen(recorder, views[4], wide)), recorder.like(rstd))
        _emit_input_grad(recorder, call, (dy, h), gain, sums, outs[0])
    return tuple(outs)


def _emit_input_grad(
    recorder: Recorder, call: Call, parts: tuple[View, View], gain: View, sums: list[View], dx: View
) -> None:
    """Records dx = gain · (dy - (dbias + h · dscale) / count); without training_mode dx = gain · dy."""
    dy, h = parts
    rest = dy.rank - 2
    if call.attr("training_mode"):
        count = recorder.scalar(max(math.prod(dy.shape) // max(dy.shape[1], 1), 1), dy.dtype)
        means = [trailing(recorder.expression("div", (s, count), recorder.like(s)), rest) for s in sums]
        recorder.expression("multiply_add", (h, *means), h)
        dy = recorder.expression("sub", (dy, h), h)
    compute(recorder, "mul", (dy, trailing(gain, rest)), dx)


_TRAINING = Attribute("training_mode", "bool", False)
TEMPLATES = (
    OpTemplate(
        "BatchNormalization",
        (Input("X"), Input("scale", "T1"), Input("B", "T1"), Input("input_mean", "T2"), Input("input_var", "T2")),
        (Result("Y"), Result("running_mean", "T2", optional=True), Result("running_var", "T2", optional=True)),
        _shape,
        _emit,
        {"T": FLOATS, "T1": FLOATS, "T2": FLOATS},
        (EPSILON, Attribute("momentum", "float", 0.9), _TRAINING),
        flops=lambda call: 2 * call.desc(0).element_count,
        doc="(X - mean) / sqrt(variance + epsilon) · scale + B per channel of X (N, C, …); with training_mode by the "
        "batch's own statistics, and running = input · momentum + batch · (1 - momentum).",
    ),
    OpTemplate(
        "umd.BatchNormTrain",
        (
            Input("X"),
            Input("scale", "U", optional=True),
            Input("B", "U", optional=True),
            Input("running_mean", "V", optional=True),
            Input("running_var", "V", optional=True),
        ),
        (
            Result("Y"),
            Result("mean", "S"),
            Result("rstd", "S"),
            Result("new_running_mean", "V", optional=True),
            Result("new_running_var", "V", optional=True),
        ),
        _train_shape,
        _emit_train,
        {"T": FLOATS, "U": FLOATS, "V": FLOATS},
        (EPSILON, Attribute("momentum", "float", 0.1)),
        flops=lambda call: 8 * call.desc(0).element_count,
        doc="Batch normalisation by the batch's own statistics, which are float32, or float64 for float64. "
        "new_running = running · (1 - momentum) + batch · momentum, the variance there being the unbiased one.",
    ),
    OpTemplate(
        "umd.BatchNormGrad",
        (Input("dY"), Input("X"), Input("mean", "S"), Input("rstd", "S"), Input("scale", "U", optional=True)),
        (Result("dX"), Result("dScale", "U", optional=True), Result("dB", "U", optional=True)),
        _grad_shape,
        _emit_grad,
        {"T": FLOATS, "S": FLOATS, "U": FLOATS},
        (Attribute("training_mode", "bool", True),),
        flops=lambda call: 10 * call.desc(0).element_count,
        doc="Gradients of umd.BatchNormTrain for X, scale and B; without training_mode mean and rstd are constants.",
    ),
)
