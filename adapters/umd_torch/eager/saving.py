"""Storages as files, pickles, copies and other processes make and read them; tensors as print shows them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from umd_core.errors import UmdError, UnsupportedError
from umd_torch.eager.devices import NAME, device_of
from umd_torch.eager.tensors import new_storage, slab_of
from umd_torch.eager.torch_private import (
    replace_storage_maker,
    replace_storage_method,
    replace_storage_sender,
    replace_text_maker,
)
from umd_torch.eager.transfers import to_host

PRINTED = 1 << 20
"""Bytes up to which a tensor is read whole to be printed."""
PRIORITY = 5
"""Before torch's own entries for other devices, which ask for none of ours."""
REFUSED = {
    "_byteswap": "swapping bytes needs memory of the CPU: x.cpu().untyped_storage()",
    "resize_": "a storage of the device keeps its size; resize_() of a tensor gives it another storage",
    "share_memory_": "memory of the device is not shared; through a queue, or to a process, goes a copy",
}
"""Methods of storages that would use memory of the CPU, or an allocator that Python cannot give → what to say."""


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
        if device is None or torch.device(device).type != NAME:
            return original(cls, *args, **kwargs)
        if args and not isinstance(args[0], int):  # its bytes, one by one
            return _restore(original(cls, *args), str(torch.device(device)))
        return new_storage(device_of(torch.device(device)), args[0] if args else 0)

    return make


def _written(original: Callable[..., str]) -> Callable[..., str]:
    """Returns what writes elements as text. Torch asks the tensor a dozen times; here it is read once, if small."""

    def write(tensor: torch.Tensor, indent: int) -> str:
        small = tensor.device.type == NAME and tensor.numel() * tensor.itemsize <= PRINTED
        return original(to_host(tensor.detach()) if small else tensor, indent)

    return write


def _sent(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns what takes a storage apart that goes to another process: of one on the device its bytes go."""

    def take_apart(storage: Any) -> Any:
        location = _location(storage)
        if location is None:
            return original(storage)
        try:
            return _restore, (storage.cpu(), location)
        except UmdError as error:  # a queue's own thread, which asks for this, would lose it, and the other end wait
            return _not_sent, (str(error),)

    return take_apart


def _not_sent(why: str) -> NoReturn:
    """Raises, in the process that something should come to, what kept it from being sent."""
    raise UnsupportedError(why)


def _refusing(why: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns what makes a storage's method one that storages of the device do not have."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(storage: Any, *args: Any, **kwargs: Any) -> Any:
            if storage.device.type == NAME:
                raise UnsupportedError(why)
            return original(storage, *args, **kwargs)

        return method

    return wrap


def _instead(give: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns what makes a storage's method one that gives something else for storages of the device."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(storage: Any, *args: Any, **kwargs: Any) -> Any:
            return give(storage) if storage.device.type == NAME else original(storage, *args, **kwargs)

        return method

    return wrap


def register() -> None:
    """Tells torch's serialization of the device, and what makes, sends and changes storages, and makes text."""
    torch.serialization.register_package(PRIORITY, _location, _restore)
    replace_storage_maker(_made)
    replace_storage_sender(_sent)
    replace_storage_method("new", _instead(lambda storage: new_storage(device_of(storage.device), 0)))
    replace_storage_method("is_shared", _instead(lambda _: False))
    for name, why in REFUSED.items():
        replace_storage_method(name, _refusing(why))
    replace_text_maker(_written)
