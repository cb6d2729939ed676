"""Storages as torch.save, torch.load and copy.deepcopy make and read them; tensors as print shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from umd_torch.eager.devices import NAME, device_of
from umd_torch.eager.tensors import new_storage, slab_of
from umd_torch.eager.transfers import to_host
from umd_torch.torch_private import replace_storage_maker, replace_text_maker

PRINTED = 1 << 20
"""Bytes up to which a tensor is read whole to be printed."""
PRIORITY = 5
"""Before torch's own entries for other devices, which ask for none of ours."""


def _location(storage: Any) -> str | None:
    """Returns what a file says of where a storage was."""
    device = storage.device
    return f"{NAME}:{device.index or 0}" if device.type == NAME else None


def _restore(storage: Any, location: str) -> Any:
    """Returns a storage on the device with the bytes of one that was read from a file."""
    if location.partition(":")[0] != NAME:
        return None
    home = device_of(torch.device(location))
    plain = storage.untyped() if hasattr(storage, "untyped") else storage
    restored, size = new_storage(home, plain.nbytes()), plain.nbytes()
    if size:
        data = torch.empty(0, dtype=torch.uint8).set_(plain).numpy()
        with home.session.lock:
            home.session.write(slab_of(restored), 0, data)
    return restored


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what makes storages, those of the device too: torch would ask an allocator that Python cannot give it."""

    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == NAME:
            return new_storage(device_of(torch.device(device)), int(args[0]) if args else 0)
        return original(cls, *args, **kwargs)

    return make


def _written(original: Callable[..., str]) -> Callable[..., str]:
    """Returns what writes elements as text. Torch asks the tensor a dozen times; here it is read once, if small."""

    def write(tensor: torch.Tensor, indent: int) -> str:
        small = tensor.device.type == NAME and tensor.numel() * tensor.itemsize <= PRINTED
        return original(to_host(tensor.detach()) if small else tensor, indent)

    return write


def register() -> None:
    """Tells torch's serialization of the device, and what makes storages and text."""
    torch.serialization.register_package(PRIORITY, _location, _restore)
    replace_storage_maker(_made)
    replace_text_maker(_written)
