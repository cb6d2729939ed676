"""Scaled dot product attention: one launch forward, one backward, torch's numbers and strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from umd_torch import explain

Attend = Callable[..., torch.Tensor]
OPTIONS: dict[str, Any] = {"device": "sim:0", "strict": True}


def _beside(attend: Attend, *operands: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Asserts that results, gradients and strides are torch's."""
    compiled: Any = torch.compile(attend, backend="umd", options=OPTIONS)
    mine, theirs = ([x.detach().clone().requires_grad_() for x in operands] for _ in range(2))
    result, wanted = compiled(*mine), attend(*theirs)
    torch.testing.assert_close(result, wanted, rtol=rtol, atol=atol)
    assert result.stride() == wanted.stride()
    slope = torch.randn_like(wanted)
    result.backward(slope)
    wanted.backward(slope)
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=rtol, atol=atol)


@settings(max_examples=12)
@given(data=st.data())
def test_beside_torch(data: st.DataObject) -> None:
    torch._dynamo.reset()
    batch, heads, queries, keys, size = (data.draw(st.integers(1, most)) for most in (2, 3, 7, 7, 5))
    shared = data.draw(st.sampled_from((1, 2)), label="heads that share keys")
    kind = data.draw(st.sampled_from(("none", "causal", "bool", "float", "per head", "dead")))
    scale = data.draw(st.sampled_from((None, 0.25)))
    mask: torch.Tensor | None = None
    if kind in ("bool", "dead"):
        mask = torch.rand(batch, 1, queries, keys) < (0 if kind == "dead" else 0.7)
    elif kind in ("float", "per head"):
        mask = torch.randn(*((1, heads * shared) if kind == "per head" else ()), queries, keys)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=kind == "causal", scale=scale, enable_gqa=shared > 1
        )

    k, v = (torch.randn(batch, heads, keys, size) for _ in range(2))
    _beside(attend, torch.randn(batch, heads * shared, queries, size), k, v)


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"),
    [(torch.float64, 1e-12, 1e-12), (torch.bfloat16, 2e-2, 4e-2), (torch.float16, 4e-3, 4e-3)],
)
def test_element_types(dtype: torch.dtype, rtol: float, atol: float) -> None:
    operands = [torch.randn(2, 3, 9, 8, dtype=dtype) for _ in range(3)]
    attend = functional.scaled_dot_product_attention
    _beside(lambda q, k, v: attend(q, k, v, is_causal=True), *operands, rtol=rtol, atol=atol)


def test_strided_heads() -> None:
    """Heads as a projection leaves them: (batch, sequence, head, size) seen the other way round."""
    _beside(
        lambda x: functional.scaled_dot_product_attention(*x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)),
        torch.randn(2, 6, 24),
    )


def test_one_launch_each_way() -> None:
    operands = [torch.randn(2, 2, 16, 8, requires_grad=True) for _ in range(3)]
    attend = functional.scaled_dot_product_attention
    found = explain(lambda q, k, v: attend(q, k, v, is_causal=True), *operands, device="sim:0")
    forward, backward = (graph.kernels for graph in found.graphs)
    assert forward["attention_kernel"] == 1
    assert set(forward) <= {"attention_kernel", "elementwise_cast_kernel"}
    assert backward == {"attention_grad_kernel": 1}


def test_a_trained_mask_and_dropout_are_written_out() -> None:
    operands = [torch.randn(2, 2, 6, 4) for _ in range(3)]
    _beside(
        lambda q, k, v, mask: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        *operands, torch.randn(6, 6),
    )  # fmt: skip

    def drop(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    dropped: Any = torch.compile(drop, backend="umd", options=OPTIONS)
    torch.manual_seed(3)
    first = dropped(*operands)
    assert not torch.equal(first, dropped(*operands))
    torch.manual_seed(3)
    assert torch.equal(first, dropped(*operands))
