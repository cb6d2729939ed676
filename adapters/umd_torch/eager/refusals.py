"""Tensors that the device does not have, and memory that it has no use for: refused where they would come about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from umd_core.errors import UnsupportedError
from umd_torch.eager.torch_private import DISPATCH_NAME, all_overloads, has_kernel
from umd_torch.torch_private import OpOverload, schema_of

aten = torch.ops.aten
_LACKING = {
    "Sparse": "sparse tensors are not there on the device; to_dense() gives one that is",
    "SparseCsr": "compressed sparse tensors are not there on the device; to_dense() gives one that is",
    "Quantized": "quantised tensors are not there on the device; dequantize() gives one that is",
    "NestedTensor": "nested tensors are not there on the device; torch.nested.to_padded_tensor() gives one that is",
}
"""Kind of tensor, as torch's dispatch keys name it → why there is none."""
PINNED = "pinned memory is not there: a device of umd copies from plain memory"


def _any_op(why: str) -> Callable[..., NoReturn]:
    """Returns what refuses any op that has no kernel of torch's for every device."""

    def refuse(op: OpOverload, *_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError(why, op=str(op))

    return refuse


def _one_op(why: str, op: OpOverload) -> Callable[..., NoReturn]:
    """Returns what refuses an op."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError(why, op=str(op))

    return refuse


def _pinned(*_: Any, **__: Any) -> NoReturn:
    """Refuses to pin memory of the CPU: torch asks the accelerator for it, which is this device."""
    raise UnsupportedError(f"{PINNED}; leave out pin_memory() and pin_memory=True")


def register() -> tuple[torch.library.Library, ...]:
    """Registers the refusals; they hold as long as what is returned lives."""
    every, own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    makers = [op for op in all_overloads() if any(a.name == "layout" for a in schema_of(op).arguments)]
    for kind, why in _LACKING.items():
        every.fallback(_any_op(why), kind + DISPATCH_NAME)
        for op in makers:  # torch's kernels for every device make sparse tensors without asking the device
            if not has_kernel(op, "CompositeImplicitAutograd"):
                own.impl(op, _one_op(why, op), kind + DISPATCH_NAME)
    nested = aten._nested_tensor_from_tensor_list.default
    own.impl(nested, _one_op(_LACKING["NestedTensor"], nested), DISPATCH_NAME)
    own.impl(aten._pin_memory.default, _pinned, "CPU")
    return every, own


__all__ = ["PINNED", "register"]
