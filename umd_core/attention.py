"""The launch of fused attention that several ops share."""

from __future__ import annotations

from typing import NamedTuple

from umd_core.kernels.attention import UNBOUNDED
from umd_core.recorder import Recorder
from umd_core.views import View


class Scoring(NamedTuple):
    """How queries and keys become scores.

    Attributes:
        scale: what products are multiplied by.
        low, high: query i sees the keys from i + low to i + high.
        guarded: 0: a query that no key is left to gives NaN. 1: it gives 0. 2: so does one with a score NaN or +inf.
    """

    scale: float
    low: int = -UNBOUNDED
    high: int = UNBOUNDED
    guarded: int = 0


def attend(recorder: Recorder, scoring: Scoring, q: View, k: View, v: View, bias: View, y: View, lse: View) -> None:
    """Records y = softmax(scale · q · kᵀ + bias) · v, and the log-sum-exp of the scores.

    q is (batch…, queries, depth), k (batch…, keys, depth), v (batch…, keys, width), bias (batch…, queries, keys) or
    absent; their batch axes broadcast to those of y (batch…, queries, width). lse is (batch…, queries).
    """
    operands = _read(recorder, q, k, v, bias, y.shape[:-2])
    _launch(recorder, "attention_kernel", scoring, {**operands, "y": y, "lse": lse})


def attend_grad(
    recorder: Recorder,
    scoring: Scoring,
    read: tuple[View, View, View, View],
    y: View,
    dy: View,
    lse: View,
    grads: tuple[View, View, View],
) -> None:
    """Records the gradients of what `attend` records; `read` is q, k, v and bias.

    `grads`, of q, k and v, have the batch axes of y, each whole.
    """
    operands = _read(recorder, *read, y.shape[:-2])
    operands |= {"y": y, "dy": dy, "lse": lse, **dict(zip(("dq", "dk", "dv"), grads, strict=True))}
    _launch(recorder, "attention_grad_kernel", scoring, operands)


def _read(recorder: Recorder, q: View, k: View, v: View, bias: View, batch: tuple[int, ...]) -> dict[str, View]:
    scores = (q.shape[-2], k.shape[-2])
    added = (bias if bias else recorder.scalar(0, q.dtype)).expand((*batch, *scores))
    whole = {name: x.expand((*batch, *x.shape[-2:])) for name, x in (("q", q), ("k", k), ("v", v))}
    return {**whole, "bias": added}


def _launch(recorder: Recorder, kernel: str, scoring: Scoring, operands: dict[str, View]) -> None:
    q, k, y = operands["q"], operands["k"], operands["y"]
    extents: dict[str, int | tuple[int, ...]] = {
        "outer": y.shape[:-2], "queries": q.shape[-2], "keys": k.shape[-2], "depth": q.shape[-1], "width": y.shape[-1],
    }  # fmt: skip
    fields = {"scale": scoring.scale, "low": scoring.low, "high": scoring.high, "guarded": scoring.guarded}
    recorder.launch(kernel, extents, operands, fields)
