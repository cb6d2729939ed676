"""Autocast: which ops run in the lower precision, which in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from umd_torch.eager.devices import NAME
from umd_torch.eager.torch_private import AUTOCAST_NAME, without_autocast
from umd_torch.torch_private import OpOverload, schema_of

aten = torch.ops.aten

LOWER = (
    aten.mm, aten.bmm, aten.mv, aten.addmm, aten.addmv, aten.baddbmm, aten.addbmm, aten.matmul, aten.linear,
    aten.convolution, aten.conv1d, aten.conv2d, aten.conv3d, aten.conv_transpose1d, aten.conv_transpose2d,
    aten.conv_transpose3d, aten.scaled_dot_product_attention, aten.einsum, aten.prelu,
)  # fmt: skip
"""What runs in the lower precision: products and convolutions."""
SINGLE = (
    aten.exp, aten.expm1, aten.log, aten.log2, aten.log10, aten.log1p, aten.pow, aten.rsqrt, aten.reciprocal,
    aten.softplus, aten.layer_norm, aten.group_norm, aten.softmax, aten.log_softmax, aten.cumsum, aten.cumprod,
    aten.prod, aten.sum, aten.norm, aten.nll_loss, aten.nll_loss2d, aten.mse_loss, aten.l1_loss, aten.smooth_l1_loss,
    aten.huber_loss, aten.kl_div, aten.cosine_embedding_loss, aten.binary_cross_entropy_with_logits,
)  # fmt: skip
"""What loses too much in it, and runs in float32, as torch has it for other accelerators."""


def _casting(op: OpOverload, wanted: Callable[[], torch.dtype]) -> Callable[..., Any]:
    """Returns an op whose floating-point tensors of the device are cast first."""

    def cast(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != NAME:
            return leaf
        return leaf.to(wanted()) if leaf.is_floating_point() and leaf.dtype is not torch.float64 else leaf

    def run(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            cast_args, cast_kwargs = pytree.tree_map(cast, (args, kwargs))
            return op(*cast_args, **cast_kwargs)

    return run


def register() -> tuple[torch.library.Library, ...]:
    """Registers autocast's kernels; the libraries live as long as what is returned."""
    rest, aten_library = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, AUTOCAST_NAME)
    for packets, wanted in ((LOWER, lambda: torch.get_autocast_dtype(NAME)), (SINGLE, lambda: torch.float32)):
        for packet in packets:
            for name in packet.overloads():
                op = getattr(packet, name)
                if not any(a.is_out for a in schema_of(op).arguments):
                    aten_library.impl(op, _casting(op, wanted), AUTOCAST_NAME)
    return rest, aten_library
