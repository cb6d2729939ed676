"""Attention: scaled dot products of queries and keys, masked, through a softmax, times values.

Grouped queries, a cache of past keys and values, soft capping, causal and window masks, as ONNX defines them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from umd_core.attention import Scoring, attend
from umd_core.attributes import Attribute
from umd_core.dtypes import ALL, FLOATS, DType, bool_, int64
from umd_core.kernels.attention import UNBOUNDED
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, split_axis
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast
from umd_core.views import ABSENT, View

_Q, _K, _V, _MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = range(7)


_Operands = tuple[View, View, View, View]
"""q, k, v and y as (batch, heads, sequence, head size)."""


class _Sizes(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    queries: int
    past: int
    keys: int
    head: int
    v_head: int


def _split(call: Call, index: int, heads: int | None, name: str) -> tuple[int, int, int, int]:
    """Returns (batch, heads, sequence, head size) of Q, K or V."""
    shape, own = call.desc(index).shape, call.template.inputs[index].name
    if len(shape) == 4:
        if heads not in (None, shape[1]):
            raise call.bad_attribute(name, f"is {heads}, input {own!r} has {shape[1]} heads", "that, or none")
        return shape[0], shape[1], shape[2], shape[3]
    if len(shape) != 3:
        raise call.error(f"has shape {list(shape)}; three or four axes would be right", input=own)
    if not heads or heads < 0 or shape[2] % heads:
        raise call.bad_attribute(name, f"{heads} heads do not divide {shape[2]} of input {own!r}", "a divisor of it")
    return shape[0], heads, shape[1], shape[2] // heads


def _sizes(call: Call) -> _Sizes:
    """Returns the extents after checking every input against them."""
    q, k, v = (
        _split(call, index, call.attr(name), name)
        for index, name in ((_Q, "q_num_heads"), (_K, "kv_num_heads"), (_V, "kv_num_heads"))
    )
    if k[:3] != v[:3] or k[0] != q[0] or k[3] != q[3] or not k[1] or q[1] % k[1]:
        raise call.error(f"Q, K and V as (batch, heads, sequence, head) are {list(q)}, {list(k)} and {list(v)}")
    if call.has(_PAST_KEY) != call.has(_PAST_VALUE):
        raise call.error("past_key and past_value go together")
    past = call.desc(_PAST_KEY).shape[2] if call.has(_PAST_KEY) and call.desc(_PAST_KEY).rank == 4 else 0
    found = _Sizes(q[0], q[1], k[1], q[2], past, past + k[2], q[3], v[3])
    wanted: dict[int, Shape] = {
        _PAST_KEY: (found.batch, found.kv_heads, past, found.head),
        _PAST_VALUE: (found.batch, found.kv_heads, past, found.v_head),
        _LENGTHS: (found.batch,),
    }
    for index, shape in wanted.items():
        if call.has(index) and call.desc(index).shape != shape:
            name = call.template.inputs[index].name
            raise call.error(f"has shape {list(call.desc(index).shape)}; {list(shape)} would be right", input=name)
    if call.has(_LENGTHS) and call.has(_PAST_KEY):
        raise call.error("does not go together with past_key", input="nonpad_kv_seqlen")
    _check_mask(call, found)
    return found


def _check_mask(call: Call, sizes: _Sizes) -> None:
    if not call.has(_MASK):
        return
    shape, whole = call.desc(_MASK).shape, (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    padded = (*shape[:-1], sizes.keys) if shape and shape[-1] < sizes.keys else shape
    if broadcast(padded, whole) != whole:
        detail = f"has shape {list(shape)}, which does not broadcast to {list(whole)}; the last axis may be shorter"
        raise call.error(detail, input="attn_mask")


def _shape(call: Call) -> tuple[Shape, Shape, Shape, Shape]:
    sizes = _sizes(call)
    if (call.attr("scale") or 0) < 0:
        raise call.bad_attribute("scale", f"{call.attr('scale')} is negative", "0 or more")
    for name in ("left_window_size", "right_window_size"):
        if call.attr(name) < -1:
            raise call.bad_attribute(name, f"{call.attr(name)} is no size", "-1 (no bound), 0 or more")
    y: Shape = (sizes.batch, sizes.heads, sizes.queries, sizes.v_head)
    if call.desc(_Q).rank == 3:
        y = (sizes.batch, sizes.queries, sizes.heads * sizes.v_head)
    cache = (sizes.batch, sizes.kv_heads, sizes.keys)
    scores = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    return y, (*cache, sizes.head), (*cache, sizes.v_head), scores


def _by_head(view: View, heads: int) -> View:
    """Returns the view as (batch, heads, sequence, head size)."""
    return view if view.rank == 4 else split_axis(view, 2, heads).permute((0, 2, 1, 3))


def _present(recorder: Recorder, call: Call, output: int, past: View | None, fresh: View) -> View:
    """Returns the past followed by what is fresh."""
    if past is None:
        return fresh
    shape = (*fresh.shape[:2], past.shape[2] + fresh.shape[2], fresh.shape[3])
    out = recorder.out(call, output) if call.wants(output) else recorder.new(fresh.dtype, shape)
    recorder.copy(past, out.slice(2, 0, past.shape[2]))
    recorder.copy(fresh, out.slice(2, past.shape[2], fresh.shape[2]))
    return out


def _product(recorder: Recorder, a: View, b: View, kv_heads: int, out: View) -> View:
    """Records out = a · b, where each of b's heads serves a group of a's."""
    recorder.gemm(split_axis(a, 1, kv_heads), b.unsqueeze(2), split_axis(out, 1, kv_heads))
    return out


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View | None, ...]:
    sizes, dtype = _sizes(call), views[_Q].dtype
    q, k, v = (_by_head(x, h) for x, h in zip(views[:3], (sizes.heads, sizes.kv_heads, sizes.kv_heads), strict=True))
    past = [views[i] if call.has(i) else None for i in (_PAST_KEY, _PAST_VALUE)]
    k, v = _present(recorder, call, 1, past[0], k), _present(recorder, call, 2, past[1], v)
    values = v if v.dtype is dtype else recorder.copy(v, recorder.new(dtype, v.shape))
    y, shown = recorder.out(call), None
    operands = (q, k, values, _by_head(y, sizes.heads))
    if _is_fused(call, dtype):
        _attend(recorder, call, views, sizes, operands)
    else:
        shown = _written_out(recorder, call, views, sizes, operands)
    return tuple(view if call.wants(i) else None for i, view in enumerate((y, k, v, shown)))


def _is_fused(call: Call, dtype: DType) -> bool:
    """Returns whether one kernel computes it all: nobody sees the scores, and they are what it computes."""
    precision = call.attr("softmax_precision")
    return not call.wants(3) and call.attr("softcap") <= 0 and precision in (None, dtype, accumulator(dtype))


def _attend(recorder: Recorder, call: Call, views: tuple[View, ...], sizes: _Sizes, operands: _Operands) -> None:
    """Records the fused kernel over q, k, v and y by head."""
    by_length = call.has(_LENGTHS)  # then where a query stands is a number that the device knows
    bias = _bias(recorder, call, views, sizes, _windows(recorder, call, views, sizes) if by_length else [])
    left, right, past = call.attr("left_window_size"), call.attr("right_window_size"), sizes.past
    bounds = [past] * bool(call.attr("is_causal")) + [past + right] * (right >= 0)
    scoring = Scoring(
        _scale(call, sizes.head),
        past - left if left >= 0 and not by_length else -UNBOUNDED,
        min(bounds) if bounds and not by_length else UNBOUNDED,
        guarded=1,
    )
    q, k, v, y = operands
    q, y = (split_axis(x, 1, sizes.kv_heads) for x in (q, y))
    if bias is not None:
        bias = split_axis(bias.expand((sizes.batch, sizes.heads, sizes.queries, sizes.keys)), 1, sizes.kv_heads)
    lse = recorder.new(accumulator(q.dtype), y.shape[:-1])
    attend(recorder, scoring, q, k.unsqueeze(2), v.unsqueeze(2), ABSENT if bias is None else bias, y, lse)


def _written_out(recorder: Recorder, call: Call, views: tuple[View, ...], sizes: _Sizes, operands: _Operands) -> View:
    """Records it step by step over q, k, v and y by head; returns the scores that are to be seen."""
    q, k, v, y = operands
    scores = _scores(recorder, call, q, k)
    shown: list[View] = [scores]
    if call.attr("softcap") > 0:
        scores = _capped(recorder, scores, call.attr("softcap"))
    shown.append(scores)
    bias = _bias(recorder, call, views, sizes, _windows(recorder, call, views, sizes))
    if bias is not None:
        scores = recorder.expression("add", (scores, bias), recorder.like(scores))
    shown.append(scores)
    chances = _softmax(recorder, scores, call.attr("softmax_precision") or q.dtype)
    dead = None if bias is None else _dead(recorder, call, bias, sizes)
    if dead is not None:
        recorder.expression("select", (dead, recorder.scalar(0, q.dtype), chances), chances)
    shown.append(chances)
    _product(recorder, chances, v, sizes.kv_heads, y)
    mode: int = call.attr("qk_matmul_output_mode")
    return shown[mode]


def _scale(call: Call, head: int) -> float:
    scale: float | None = call.attr("scale")
    return 1 / math.sqrt(head) if scale is None else scale


def _scores(recorder: Recorder, call: Call, q: View, k: View) -> View:
    """Returns q · kᵀ, both times the root of the scale, so that 16-bit floats do not overflow."""
    root = recorder.scalar(math.sqrt(_scale(call, q.shape[3])), q.dtype)
    q, k = (recorder.expression("mul", (x, root), recorder.like(x)) for x in (q, k))
    out = recorder.new(q.dtype, (*q.shape[:3], k.shape[2]))
    return _product(recorder, q, k.permute((0, 1, 3, 2)), k.shape[1], out)


def _capped(recorder: Recorder, scores: View, cap: float) -> View:
    limit, out = recorder.scalar(cap, scores.dtype), recorder.like(scores)
    recorder.expression("tanh", (recorder.expression("div", (scores, limit), out),), out)
    return recorder.expression("mul", (out, limit), out)


def _softmax(recorder: Recorder, scores: View, dtype: DType) -> View:
    """Returns the softmax along the last axis, computed in `dtype`, as numbers of the scores' type."""
    wide = scores if scores.dtype is dtype else recorder.copy(scores, recorder.new(dtype, scores.shape))
    result = recorder.like(wide)
    extents = {"outer": wide.shape[:-1], "inner": wide.shape[-1:]}
    recorder.launch("softmax_kernel", extents, {"x": wide, "y": result})
    return result if wide is scores else recorder.copy(result, recorder.like(scores))


# masks


def _bias(recorder: Recorder, call: Call, views: tuple[View, ...], sizes: _Sizes, allowed: list[View]) -> View | None:
    """Returns what is added to the scores for the mask and for truths that say which are allowed; None for nothing."""
    dtype, bias = views[_Q].dtype, None
    if call.has(_MASK):
        mask = _padded(recorder, views[_MASK], sizes.keys)
        if mask.dtype is bool_:
            allowed = [*allowed, mask]
        else:
            bias = mask if mask.dtype is dtype else recorder.copy(mask, recorder.new(dtype, mask.shape))
    least = recorder.scalar(-math.inf, dtype)
    for mask in allowed:
        value = recorder.scalar(0, dtype) if bias is None else bias
        shape = broadcast(mask.shape, value.shape) or ()
        bias = recorder.expression("select", (mask, value, least), recorder.new(dtype, shape))
    return bias


def _dead(recorder: Recorder, call: Call, bias: View, sizes: _Sizes) -> View | None:
    """Returns which rows (…, queries, 1) the bias leaves no key to; None where that cannot be."""
    if not sizes.keys or not (call.has(_MASK) or call.has(_LENGTHS) or _leaves_none(call, sizes)):
        return None
    whole = bias if bias.shape[-1:] == (sizes.keys,) else bias.expand((*bias.shape[:-1], sizes.keys))
    best = recorder.reduce("max", whole, (whole.rank - 1,), recorder.new(bias.dtype, whole.shape[:-1]))
    least = recorder.scalar(-math.inf, bias.dtype)
    dead = recorder.expression("eq", (best, least), recorder.new(bool_, best.shape))
    return dead.unsqueeze(dead.rank)


def _padded(recorder: Recorder, mask: View, keys: int) -> View:
    """Returns the mask with its last axis as long as the keys; what is added masks."""
    if not mask.rank or mask.shape[-1] >= keys:
        return mask
    out = recorder.new(mask.dtype, (*mask.shape[:-1], keys))
    recorder.fill(out, False if mask.dtype is bool_ else -math.inf)
    recorder.copy(mask, out.slice(mask.rank - 1, 0, mask.shape[-1]))
    return out


def _leaves_none(call: Call, sizes: _Sizes) -> bool:
    """Returns whether causality and windows, at a known offset, leave some query without a key."""
    left: int = call.attr("left_window_size")
    right: int = 0 if call.attr("is_causal") else call.attr("right_window_size")
    for place in range(sizes.past, sizes.past + sizes.queries):
        first = max(place - left, 0) if left >= 0 else 0
        last = min(sizes.keys - 1, place + right) if right >= 0 else sizes.keys - 1
        if last < first:
            return True
    return False


def _windows(recorder: Recorder, call: Call, views: tuple[View, ...], sizes: _Sizes) -> list[View]:
    """Returns masks of the keys that causality, windows and the number of valid keys allow."""
    left, right = call.attr("left_window_size"), call.attr("right_window_size")
    lengths = views[_LENGTHS].reshape((sizes.batch, 1, 1, 1)) if call.has(_LENGTHS) else None
    allowed: list[View] = []
    if lengths is None and not call.attr("is_causal") and left < 0 and right < 0:
        return allowed
    keys = _numbered(recorder, 0, sizes.keys)
    if call.attr("is_causal") or left >= 0 or right >= 0:
        queries = _numbered(recorder, sizes.past, sizes.queries).unsqueeze(1)
        ahead = recorder.expression("sub", (queries, keys), recorder.new(int64, (sizes.queries, sizes.keys)))
        if lengths is not None:
            shift = recorder.expression(
                "sub", (lengths, recorder.scalar(sizes.queries, int64)), recorder.new(int64, lengths.shape)
            )
            shape = (sizes.batch, 1, sizes.queries, sizes.keys)
            ahead = recorder.expression("add", (ahead, shift), recorder.new(int64, shape))
        bounds = [("ge", 0)] * bool(call.attr("is_causal"))
        bounds += [("le", left)] * (left >= 0) + [("ge", -right)] * (right >= 0)
        for name, bound in bounds:
            allowed.append(_compared(recorder, name, ahead, recorder.scalar(bound, int64)))
    if lengths is not None:
        allowed.append(_compared(recorder, "lt", keys, lengths))
    return allowed


def _compared(recorder: Recorder, name: str, a: View, b: View) -> View:
    return recorder.expression(name, (a, b), recorder.new(bool_, broadcast(a.shape, b.shape) or ()))


def _numbered(recorder: Recorder, first: int, count: int) -> View:
    """Returns first, first + 1, … as int64."""
    out = recorder.new(int64, (count,))
    operands = {"start": recorder.scalar(first, int64), "step": recorder.scalar(1, int64), "out": out}
    recorder.launch("iota_kernel", {"count": count}, operands)
    return out


def _flops(call: Call) -> int:
    sizes = _sizes(call)
    return 2 * sizes.batch * sizes.heads * sizes.queries * sizes.keys * (sizes.head + sizes.v_head)


TEMPLATES = (
    OpTemplate(
        "Attention",
        (
            Input("Q", "T1"),
            Input("K", "T1"),
            Input("V", "T2"),
            Input("attn_mask", "U", optional=True),
            Input("past_key", "T1", optional=True),
            Input("past_value", "T2", optional=True),
            Input("nonpad_kv_seqlen", "int64", optional=True),
        ),
        (
            Result("Y", "T1"),
            Result("present_key", "T1", optional=True),
            Result("present_value", "T2", optional=True),
            Result("qk_matmul_output", "T1", optional=True),
        ),
        _shape,
        _emit,
        {"T1": FLOATS, "T2": FLOATS, "U": ALL},
        (
            Attribute("is_causal", "bool", False),
            Attribute("kv_num_heads", "int"),
            Attribute("left_window_size", "int", -1),
            Attribute("q_num_heads", "int"),
            Attribute("qk_matmul_output_mode", "int", 0, choices=(0, 1, 2, 3)),
            Attribute("right_window_size", "int", -1),
            Attribute("scale", "float"),
            Attribute("softcap", "float", 0.0),
            Attribute("softmax_precision", "dtype"),
        ),
        flops=_flops,
        doc="Y = softmax(scale · Q · Kᵀ, capped, plus masks) · V for each head, K and V after those of the past. A "
        "query that no key is left to gives 0.",
        source="Vaswani et al., Attention is all you need, arXiv:1706.03762; ONNX, operator Attention",
    ),
)
