"""Attention and its gradients by matrix products, reductions and elementwise steps over all scores at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from umd_core.dtypes import bool_, int64
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, compute, trailing, widen
from umd_core.views import View


def attention(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records s = scale · q · kᵀ + bias; y = softmax(s) · v; lse = max s + log(sum of exp(s - max s))."""
    y, lse = operands["y"], operands["lse"]
    if not extents["keys"]:
        recorder.fill(y, 0)
        recorder.fill(lse, -math.inf)
        return
    step = _Step(recorder, extents, operands, fields)
    scores = step.scores()
    most = step.by_query("max", scores)
    dead = None
    if fields["guarded"]:
        dead = recorder.expression("eq", (most, step.number(-math.inf)), recorder.new(bool_, most.shape))
        recorder.expression("select", (dead, step.number(0), most), most)
    recorder.expression("exp", (recorder.expression("sub", (scores, most), scores),), scores)
    total = step.by_query("sum", scores)
    if dead is not None and fields["guarded"] == 2:
        broken = recorder.expression("isnan", (total,), recorder.new(bool_, total.shape))
        recorder.expression("or", (dead, broken), dead)
    found = recorder.new(step.dtype, y.shape)
    recorder.gemm(scores, step.wide["v"], found)
    logarithm = recorder.expression("log", (total,), recorder.like(total))
    recorder.expression("div", (found, total), found)
    recorder.expression("add", (logarithm, most), logarithm)
    if dead is not None:
        recorder.expression("select", (dead, step.number(0), found), found)
        recorder.expression("select", (dead, step.number(-math.inf), logarithm), logarithm)
    recorder.copy(found, y)
    recorder.copy(logarithm.squeeze(logarithm.rank - 1), lse)


def attention_grad(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records p = exp(s - lse); ds = p · (dy · vᵀ - sum of dy · y); dv = pᵀ · dy, dq = scale · ds · k, dk likewise."""
    step = _Step(recorder, extents, operands, fields)
    lse, dy = trailing(step.wide["lse"], 1), step.wide["dy"]
    chances = step.scores()
    recorder.expression("exp", (recorder.expression("sub", (chances, lse), chances),), chances)
    if fields["guarded"]:
        dead = recorder.expression("eq", (lse, step.number(-math.inf)), recorder.new(bool_, lse.shape))
        recorder.expression("select", (dead, step.number(0), chances), chances)
    slopes = recorder.like(chances)
    recorder.gemm(dy, _transposed(step.wide["v"]), slopes)
    moved = recorder.expression("mul", (dy, step.wide["y"]), recorder.new(step.dtype, dy.shape))
    recorder.expression("sub", (slopes, step.by_query("sum", moved)), slopes)
    recorder.expression("mul", (slopes, chances), slopes)
    scale = step.number(fields["scale"])
    for name, left, right in (
        ("dq", slopes, step.wide["k"]),
        ("dk", _transposed(slopes), step.wide["q"]),
        ("dv", _transposed(chances), dy),
    ):
        out = operands[name]
        found = recorder.gemm(left, right, recorder.new(step.dtype, out.shape))
        if name == "dv":
            recorder.copy(found, out)
        else:
            compute(recorder, "mul", (found, scale), out)


class _Step:
    """One call: operands in the type that is computed in, and steps over its scores.

    Attributes:
        dtype: that type.
        wide: the operands that are read, by name.
    """

    def __init__(
        self, recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
    ) -> None:
        self._recorder, self._extents, self._fields = recorder, extents, fields
        self.dtype = accumulator(operands["q"].dtype)
        names = ("q", "k", "v", "bias", "y", "dy", "lse") if "dq" in operands else ("q", "k", "v", "bias")
        self.wide = {name: widen(recorder, operands[name], self.dtype) for name in names}

    def number(self, value: float) -> View:
        """Returns a 0-d constant."""
        return self._recorder.scalar(value, self.dtype)

    def by_query(self, name: str, x: View) -> View:
        """Returns a reduction over the last axis, which has extent 1 afterwards."""
        return trailing(self._recorder.reduce(name, x, (x.rank - 1,), self._recorder.new(x.dtype, x.shape[:-1])), 1)

    def scores(self) -> View:
        """Returns (batch…, queries, keys) scores, -inf where a key is left out, as a new tensor."""
        recorder, q, k = self._recorder, self.wide["q"], self.wide["k"]
        scores = recorder.gemm(q, _transposed(k), recorder.new(self.dtype, (*q.shape[:-1], k.shape[-2])))
        scale = self.number(self._fields["scale"])
        recorder.expression("multiply_add", (scores, scale, self.wide["bias"]), scores)
        for hidden in self._hidden():
            recorder.expression("select", (hidden, self.number(-math.inf), scores), scores)
        return scores

    def _hidden(self) -> list[View]:
        """Returns (queries, keys) truths: beyond the lower bound, and beyond the upper one, where there are such."""
        recorder, queries, keys = self._recorder, self._extents["queries"], self._extents["keys"]
        low, high = (min(max(self._fields[name], -queries), keys) for name in ("low", "high"))
        bounds = [("lt", low)] * (low + queries > 1) + [("gt", high)] * (high + 1 < keys)
        if not bounds:
            return []
        rows, columns = (self._counted(count) for count in (queries, keys))
        ahead = recorder.expression("sub", (columns, trailing(rows, 1)), recorder.new(int64, (queries, keys)))
        return [
            recorder.expression(name, (ahead, recorder.scalar(bound, int64)), recorder.new(bool_, ahead.shape))
            for name, bound in bounds
        ]

    def _counted(self, count: int) -> View:
        """Returns 0, 1, … as int64."""
        out = self._recorder.new(int64, (count,))
        operands = {"start": self._recorder.scalar(0, int64), "step": self._recorder.scalar(1, int64), "out": out}
        self._recorder.launch("iota_kernel", {"count": count}, operands)
        return out


def _transposed(view: View) -> View:
    return view.permute((*range(view.rank - 2), view.rank - 1, view.rank - 2))
