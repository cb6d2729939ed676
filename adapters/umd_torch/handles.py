"""Tensors that stayed on the device: what the backward graph gets instead of the bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from umd_core.device import Binding
from umd_torch.counters import counters
from umd_torch.host import Bytes, copy_to
from umd_torch.layouts import Layout
from umd_torch.memory import Slab


class DeviceTensor(torch.Tensor):
    """A tensor whose bytes lie in a slab.

    Programs bind it as it is. Anything else that touches it reads the bytes and works on a CPU tensor.
    """

    held: Slab
    at: int
    size_in_bytes: int
    lies: Layout

    @staticmethod
    def __new__(cls: type[DeviceTensor], slab: Slab, offset: int, size: int, layout: Layout) -> DeviceTensor:
        handle: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, layout.shape, strides=layout.strides, dtype=layout.dtype, device=torch.device("cpu")
        )
        handle.held, handle.at, handle.size_in_bytes, handle.lies = slab, offset, size, layout
        counters.handles += 1
        return handle

    def __init__(self, slab: Slab, offset: int, size: int, layout: Layout) -> None:
        pass

    @property
    def binding(self) -> Binding:
        """The bytes, ready for a submission."""
        return Binding(self.held.buffer, self.at, self.size_in_bytes)

    def materialise(self) -> torch.Tensor:
        """Returns the elements as a CPU tensor: one round trip."""
        counters.materialised += 1
        return from_bytes(self.held.session.read(self.held, self.at, self.size_in_bytes), 0, self.lies)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no types
        return f"DeviceTensor({list(self.lies.shape)}, {self.lies.dtype}, on {self.held.session.name})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own idiom

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own stub lacks the class and the function
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            original = args[0]
            return cls(original.held, original.at, original.size_in_bytes, original.lies)
        plain: Any = pytree.tree_map_only(DeviceTensor, DeviceTensor.materialise, (tuple(args), dict(kwargs or {})))
        return func(*plain[0], **plain[1])


def from_bytes(source: Bytes, offset: int, layout: Layout) -> torch.Tensor:
    """Returns a new CPU tensor with torch's own strides, from bytes in the layout that programs use."""
    if layout.dense:
        tensor = torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype)
        copy_to(tensor, source, offset)
        return tensor
    packed = torch.empty(layout.shape, dtype=layout.dtype)
    copy_to(packed, source, offset)
    repeated = [s == 0 and e > 1 for e, s in zip(layout.shape, layout.strides, strict=True)]
    own = [1 if r else e for e, r in zip(layout.shape, repeated, strict=True)]
    tensor = torch.empty_strided(own, layout.strides, dtype=layout.dtype)
    tensor.copy_(packed[tuple(slice(0, 1) if r else slice(None) for r in repeated)])
    return tensor.expand(layout.shape)
