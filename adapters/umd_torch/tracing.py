"""How torch's graphs are traced: which ops are taken apart, and what is switched off meanwhile."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from umd_torch import attention, foreach
from umd_torch.decompositions import DECOMPOSITIONS as OURS
from umd_torch.torch_private import (
    core_aten_decompositions,
    get_decompositions,
    plain_gradients,
    without_mkldnn,
    without_own_parts,
)

aten = torch.ops.aten

KEPT: tuple[Any, ...] = (
    aten._log_softmax_backward_data, aten._softmax_backward_data, aten.embedding_dense_backward, aten.gelu_backward,
    aten.native_batch_norm_backward, aten.native_layer_norm_backward, aten.sigmoid_backward, aten.tanh_backward,
    aten.threshold_backward, aten.avg_pool2d_backward, aten.bernoulli, aten.detach,
    aten._scaled_dot_product_flash_attention_for_cpu,
)  # fmt: skip
"""What the core decompositions would take apart although there is one op for it; of the flash attention the
decomposition gives wrong gradients besides."""

KEPT_OVERLOADS = tuple(getattr(packet, name) for packet in KEPT for name in packet.overloads())

MORE = (
    aten.linalg_vector_norm, aten._native_batch_norm_legit, aten.native_batch_norm, aten._batch_norm_with_update,
    aten._batch_norm_with_update_functional, aten.cauchy, aten.dist, aten.grid_sampler_2d, aten.ldexp,
    aten.narrow_copy, aten.tril_indices, aten.triu_indices, aten.unbind_copy,
)  # fmt: skip
"""What the core decompositions leave whole, and would be a lowering of many ops here."""


@functools.cache
def decompositions() -> dict[Any, Any]:
    """Returns torch's core decompositions without those in KEPT, those of MORE, and those of fused attention layers."""
    table: dict[Any, Any] = {**get_decompositions(MORE), **core_aten_decompositions()}
    for overload in KEPT_OVERLOADS:
        table.pop(overload, None)
    return {**table, **attention.DECOMPOSITIONS, **foreach.DECOMPOSITIONS, **OURS}


@contextlib.contextmanager
def tracing() -> Generator[None]:
    """While tracing, plain ATen ops are what CPU tensors get: no mkldnn, no fused attention layers.

    Attention alone is one op where torch has it for CPU tensors, else products and a softmax.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            without_mkldnn(),
            plain_gradients(),
            without_own_parts(aten.multilabel_margin_loss_forward.default),
            sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
