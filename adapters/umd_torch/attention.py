"""Torch's fused inference kernels of attention layers, as the plain ops that they stand for.

Dynamo decides for them before it asks the backend, so they are taken apart here rather than switched off.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

ATTENTION, PADDING = 0, 1
"""Kinds of mask: (query, key), the same for all; (batch, key). The third is (batch, head, query, key)."""


def _masked(scores: torch.Tensor, mask: torch.Tensor | None, kind: int | None) -> torch.Tensor:
    """Returns (batch, head, query, key) scores with -inf where the mask is set."""
    if mask is None:
        return scores
    mask = mask.to(torch.bool)
    if kind == ATTENTION:
        mask = mask[None, None]
    elif kind == PADDING:
        mask = mask[:, None, None]
    return scores.masked_fill(mask, -math.inf)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim: int, num_head: int,
    qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, proj_weight: torch.Tensor, proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Returns the attended values (batch, query, embed_dim), and the weights where they are wanted.

    Source: `at::native::native_multi_head_attention_cpu` of PyTorch 2.13.
    """
    batch, length, _ = query.shape
    heads = []
    pieces = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    for x, weight, bias in pieces:
        projected = functional.linear(x, weight, bias).view(batch, x.shape[1], num_head, embed_dim // num_head)
        heads.append(projected.transpose(1, 2))
    q, k, v = heads
    scores = torch.matmul(q / math.sqrt(embed_dim // num_head), k.transpose(-2, -1))
    weights = torch.softmax(_masked(scores, mask, mask_type), -1)
    attended = torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, embed_dim)
    result = functional.linear(attended, proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    src: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor, ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns what a transformer encoder layer makes of (batch, length, embed_dim).

    Source: `at::native::transformer_encoder_layer_forward` of PyTorch 2.13.
    """

    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    def first(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        attended = src + attend(first(src))
        return attended + feed(second(attended))
    attended = first(src + attend(src))
    return second(attended + feed(attended))


DECOMPOSITIONS = {
    torch.ops.aten._native_multi_head_attention.default: attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
