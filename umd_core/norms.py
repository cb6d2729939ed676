"""What the normalising ops share: rows brought to mean 0 and variance 1, scale and bias, statistics."""

from __future__ import annotations

from collections.abc import Sequence

from umd_core.attributes import Attribute
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, compute, widen
from umd_core.template import Call
from umd_core.views import ABSENT, View

EPSILON = Attribute("epsilon", "float", 1e-5)


def normalized(
    recorder: Recorder, x: View, axes: Sequence[int], epsilon: float, y: View, mean: View = ABSENT, rstd: View = ABSENT
) -> tuple[View, View]:
    """Records y = (x - mean) · rstd over `axes`; returns mean and rstd, shaped like the other axes.

    They are written into `mean` and `rstd`, or into new tensors of x's accumulator type where those are absent.
    Statistics of nothing are NaN.
    """
    kept = [a for a in range(x.rank) if a not in axes]
    outer = tuple(x.shape[a] for a in kept)
    wide = accumulator(x.dtype)
    mean, rstd = mean or recorder.new(wide, outer), rstd or recorder.new(wide, outer)
    order = [*kept, *axes]
    operands = {"x": x.permute(order), "y": y.permute(order), "mean": mean, "rstd": rstd}
    extents = {"outer": outer, "inner": tuple(x.shape[a] for a in axes)}
    recorder.launch("normalize_kernel", extents, operands, {"epsilon": epsilon})
    return mean, rstd


def affine(recorder: Recorder, value: View, scale: View, bias: View, out: View) -> View:
    """Records out = value · scale + bias in value's type, either possibly absent; returns `out`."""
    factors = [widen(recorder, v, value.dtype) for v in (scale, bias) if v]
    if scale and bias:
        return compute(recorder, "multiply_add", (value, *factors), out)
    if factors:
        return compute(recorder, "mul" if scale else "add", (value, *factors), out)
    return out if value is out else recorder.copy(value, out)


def variance(recorder: Recorder, rstd: View, epsilon: float) -> View:
    """Returns the variance that rstd = 1 / sqrt(variance + epsilon) came from, never below 0, as a new tensor."""
    result = recorder.expression("mul", (rstd, rstd), recorder.like(rstd))
    recorder.expression("reciprocal", (result,), result)
    recorder.expression("sub", (result, recorder.scalar(epsilon, result.dtype)), result)
    return recorder.expression("relu", (result,), result)


def check_channels(call: Call, first: int, count: int) -> None:
    """Checks that inputs from `first` on hold one number for each of `count` channels.

    Raises:
        ShapeError: one does not.
    """
    for index in range(first, len(call.inputs)):
        if call.has(index) and call.desc(index).shape != (count,):
            detail = f"has shape {list(call.desc(index).shape)}; [{count}], one number a channel, would be right"
            raise call.error(detail, input=call.template.input_spec(index).name)
