"""umd.Attention, which keeps what its gradient needs, and umd.AttentionGrad."""

from __future__ import annotations

import math

from umd_core.attention import Scoring, attend, attend_grad
from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS, DType, float32, float64
from umd_core.kernels.attention import UNBOUNDED
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast
from umd_core.views import ABSENT, View

_Q, _K, _V, _BIAS = range(4)
_DY, _Y, _LSE, _GRAD_BIAS = 0, 4, 5, 6


def _sizes(call: Call, first: int, bias: int) -> tuple[Shape, Shape, Shape]:
    """Returns the shapes of the result, of the log-sum-exp and of the scores; `first` is the position of Q."""
    names = [call.template.inputs[first + at].name for at in range(3)]
    q, k, v = (call.desc(first + at).shape for at in range(3))
    for name, shape in zip(names, (q, k, v), strict=True):
        if len(shape) < 2:
            raise call.error(f"has shape {list(shape)}; two axes or more would be right", input=name)
    if q[-1] != k[-1]:
        raise call.error(f"has vectors of {k[-1]} numbers, those of input {names[0]!r} have {q[-1]}", input=names[1])
    if k[-2] != v[-2]:
        raise call.error(f"has {v[-2]} rows, input {names[1]!r} has {k[-2]}", input=names[2])
    batch = broadcast(q[:-2], k[:-2], v[:-2])
    if batch is None:
        raise call.error(f"leading axes {list(q[:-2])}, {list(k[:-2])} and {list(v[:-2])} do not broadcast")
    scores = (*batch, q[-2], k[-2])
    if call.has(bias) and broadcast(call.desc(bias).shape, scores) != scores:
        detail = f"has shape {list(call.desc(bias).shape)}, which does not broadcast to {list(scores)}"
        raise call.error(detail, input=call.template.inputs[bias].name)
    return (*batch, q[-2], v[-1]), (*batch, q[-2]), scores


def _shape(call: Call) -> tuple[Shape, Shape]:
    y, lse, _ = _sizes(call, _Q, _BIAS)
    call.types["S"] = _log_sums(call.desc(_Q).dtype)
    return y, lse


def _log_sums(dtype: DType) -> DType:
    """Returns the type of the log-sum-exp: its rounding errors would be those of all probabilities of a query."""
    return float32 if dtype.size == 2 else float64


def _grad_shape(call: Call) -> tuple[Shape, Shape, Shape]:
    y, lse, _ = _sizes(call, 1, _GRAD_BIAS)
    for index, wanted in ((_DY, y), (_Y, y), (_LSE, lse)):
        if call.desc(index).shape != wanted:
            name = call.template.inputs[index].name
            raise call.error(f"has shape {list(call.desc(index).shape)}; {list(wanted)} would be right", input=name)
    return call.desc(1).shape, call.desc(2).shape, call.desc(3).shape


def _scoring(call: Call) -> Scoring:
    high = 0 if call.attr("is_causal") else UNBOUNDED
    return Scoring(call.attr("scale"), high=high, guarded=call.attr("guarded"))


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, View | None]:
    q, k, v = views[:3]
    y = recorder.out(call)
    kept = recorder.out(call, 1) if call.wants(1) else recorder.new(_log_sums(q.dtype), y.shape[:-1])
    attend(recorder, _scoring(call), q, k, v, views[_BIAS] if call.has(_BIAS) else ABSENT, y, kept)
    return y, kept if call.wants(1) else None


def _emit_grad(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View | None, ...]:
    bias = views[_GRAD_BIAS] if call.has(_GRAD_BIAS) else ABSENT
    batch = views[_Y].shape[:-2]
    outs = [recorder.out(call, at) if call.wants(at) else recorder.like(views[1 + at]) for at in range(3)]
    whole = [out if out.shape[:-2] == batch else recorder.new(out.dtype, (*batch, *out.shape[-2:])) for out in outs]
    attend_grad(
        recorder,
        _scoring(call),
        (views[1], views[2], views[3], bias),
        views[_Y],
        views[_DY],
        views[_LSE],
        (whole[0], whole[1], whole[2]),
    )
    for out, grad in zip(outs, whole, strict=True):
        if grad is not out:
            _gather(recorder, grad, out)
    return tuple(out if call.wants(at) else None for at, out in enumerate(outs))


def _gather(recorder: Recorder, grad: View, out: View) -> None:
    """Adds a gradient up over the axes that its tensor broadcasts along."""
    lead = grad.rank - out.rank
    repeated = [at for at, extent in enumerate(out.shape) if extent != grad.shape[lead + at]]
    for at in reversed(repeated):
        out = out.squeeze(at)
    recorder.reduce("sum", grad, [*range(lead), *(lead + at for at in repeated)], out)


def _multiplications(call: Call, first: int, bias: int) -> tuple[int, int]:
    """Returns how many a product over the head size takes, and one over the values' size."""
    y, _, scores = _sizes(call, first, bias)
    pairs = math.prod(scores)
    return pairs * call.desc(first).shape[-1], pairs * y[-1]


def _flops(call: Call) -> int:
    by_depth, by_width = _multiplications(call, _Q, _BIAS)
    return 2 * (by_depth + by_width)


def _grad_flops(call: Call) -> int:
    by_depth, by_width = _multiplications(call, 1, _GRAD_BIAS)
    return 2 * (3 * by_depth + 2 * by_width)


_ATTRIBUTES = (
    Attribute("scale", "float", 1.0),
    Attribute("guarded", "int", 0, choices=(0, 1, 2)),
    Attribute("is_causal", "int", 0, choices=(0, 1)),
)
_SOURCE = "Dao, Fu, Ermon, Rudra and Ré, FlashAttention, arXiv:2205.14135"
TEMPLATES = (
    OpTemplate(
        "umd.Attention",
        (Input("Q"), Input("K"), Input("V"), Input("bias", optional=True)),
        (Result("Y"), Result("lse", "S")),
        _shape,
        _emit,
        {"T": FLOATS},
        _ATTRIBUTES,
        flops=_flops,
        doc="Y = softmax(scale · Q · Kᵀ + bias) · V over (…, queries, head) matrices whose leading axes broadcast; lse "
        "is the logarithm of each query's sum of exponentials, float64, or float32 for 16-bit floats. A query whose "
        "scores are all -inf gives NaN as Softmax does, with guarded 1 or 2 it gives 0; with 2 so does one with a "
        "score NaN or +inf. With is_causal a query sees the keys up to its own number.",
        source=_SOURCE,
    ),
    OpTemplate(
        "umd.AttentionGrad",
        (
            Input("dY"),
            Input("Q"),
            Input("K"),
            Input("V"),
            Input("Y"),
            Input("lse", "S"),
            Input("bias", optional=True),
        ),
        (Result("dQ"), Result("dK", optional=True), Result("dV", optional=True)),
        _grad_shape,
        _emit_grad,
        {"T": FLOATS, "S": (float32, float64)},
        _ATTRIBUTES,
        flops=_grad_flops,
        doc="Gradients of umd.Attention for Q, K and V; the probabilities are made anew from lse, so that nobody has "
        "to keep them.",
        source=_SOURCE,
    ),
)
