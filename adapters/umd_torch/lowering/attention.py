"""Fused attention: the op that torch has for CPU tensors, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import torch

from umd_core.dtypes import bool_
from umd_torch.builder import Builder, Value
from umd_torch.lowering.common import Table

aten = torch.ops.aten


def _attributes(query: Value, is_causal: bool, scale: float | None) -> dict[str, Any]:
    """Returns the attributes of umd.Attention; a query that no key is left to gives 0, as in torch."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    return {"scale": factor, "is_causal": int(is_causal), "guarded": 1}


def _bias(b: Builder, query: Value, mask: Value | None) -> Value | None:
    """Returns what is added to the scores: a mask of bools is -inf where it is False."""
    if mask is None or mask.dtype is not bool_:
        return None if mask is None else b.cast(mask, query.dtype)
    kept, lost = b.scalar(0, query.dtype), b.scalar(-math.inf, query.dtype)
    return b.op("Where", mask, kept, lost)


def _check(b: Builder, dropout_p: float) -> None:
    if dropout_p:
        raise b.unsupported("attention with dropout inside the fused op")


class _Heads:
    """Queries, keys, values and mask with an axis for the heads that share keys and values, where several do."""

    def __init__(self, b: Builder, query: Value, key: Value, value: Value, mask: Value | None) -> None:
        self._b, self._shared = b, query.shape[1] // key.shape[1]
        self._kept = key.shape[1]
        self.query, self.key, self.value = self.split(query), self.split(key), self.split(value)
        bias = _bias(b, query, mask)
        self.bias = bias if bias is None or bias.rank < 4 else self.split(bias)

    def split(self, x: Value) -> Value:
        """Returns (batch, head, …) as (batch, head of keys, head that shares it, …)."""
        if self._shared == 1:
            return x
        heads = (self._kept, self._shared) if x.shape[1] > self._kept else (x.shape[1], 1)
        return self._b.reshape(x, (x.shape[0], *heads, *x.shape[2:]))

    def join(self, x: Value) -> Value:
        """Returns what `split` was given."""
        return x if self._shared == 1 else self._b.reshape(x, (x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:]))


def _attention(
    b: Builder, query: Value, key: Value, value: Value, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Value | None = None, scale: float | None = None,
) -> tuple[Value, Value]:  # fmt: skip
    """Returns softmax(scale · query · keyᵀ + mask) · value, and the log-sum-exp of each query's scores."""
    _check(b, dropout_p)
    heads = _Heads(b, query, key, value, attn_mask)
    inputs = (heads.query, heads.key, heads.value, heads.bias)
    y, lse = b.ops("umd.Attention", inputs, (True, True), _attributes(query, is_causal, scale))
    return heads.join(y), b.cast(heads.join(lse), b.promises[1].dtype)


def _attention_grad(
    b: Builder, grad: Value, query: Value, key: Value, value: Value, out: Value, logsumexp: Value,
    dropout_p: float, is_causal: bool, *, attn_mask: Value | None = None, scale: float | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    """Returns the gradients for query, key and value."""
    _check(b, dropout_p)
    heads = _Heads(b, query, key, value, attn_mask)
    inputs = (
        heads.split(grad), heads.query, heads.key, heads.value, heads.split(out), heads.split(logsumexp), heads.bias,
    )  # fmt: skip
    found = b.ops("umd.AttentionGrad", inputs, (True, True, True), _attributes(query, is_causal, scale))
    return tuple(heads.join(gradient) for gradient in found)


TABLE: Table = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_grad,
}
