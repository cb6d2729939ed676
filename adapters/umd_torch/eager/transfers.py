"""Elements from the host to a device, back, and between devices. Reading waits; nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from umd_core.errors import UnsupportedError
from umd_torch.builder import from_torch
from umd_torch.eager.calls import call
from umd_torch.eager.devices import EagerDevice
from umd_torch.eager.signatures import signature_of
from umd_torch.eager.slots import meets_itself
from umd_torch.eager.tensors import allocate, binding_of, home_of, slab_of
from umd_torch.handles import from_bytes
from umd_torch.host import Bytes, byte_count, copy_from
from umd_torch.layouts import Layout
from umd_torch.overlaps import MEETS_ITSELF, lies_twice

_COPY = signature_of(torch.ops.aten.copy_.default)


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copies elements, broadcast and cast, between any two tensors of which one at least is on a device."""
    here, there = source.get_device(), target.get_device()
    if here >= 0 and there >= 0:
        if here == there:
            call(_COPY, (target, source), {})
        else:
            write(to_host(source), target)
    elif here >= 0:
        with torch.no_grad():
            target.copy_(to_host(source))
    else:
        write(source, target)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a CPU tensor of the same elements and strides: one round trip.

    Raises:
        UmdError: what went wrong in the work that they come from.
    """
    layout = Layout(tensor.dtype, tuple(tensor.shape), tensor.stride())
    if not layout.dense:
        return to_host(tensor.contiguous())
    if not tensor.numel():
        return torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype)
    session = home_of(tensor).session
    _, offset, size = binding_of(tensor)
    with session.lock:
        data = session.read(slab_of(tensor.untyped_storage()), offset, size)
        return from_bytes(data, 0, layout)


def to_device(tensor: torch.Tensor, home: EagerDevice) -> torch.Tensor:
    """Returns a copy of a CPU tensor on a device; nothing is waited for."""
    if tensor.layout is not torch.strided:
        raise UnsupportedError(f"{tensor.layout} tensors are not there")
    strides = tensor.stride() if Layout(tensor.dtype, tuple(tensor.shape), tensor.stride()).dense else None
    result = allocate(home, tuple(tensor.shape), tensor.dtype, strides)
    write(tensor, result)
    return result


def write(source: torch.Tensor, target: torch.Tensor) -> None:
    """Writes a CPU tensor's elements into a tensor of a device.

    Raises:
        UnsupportedError: they are none that the device has.
        RuntimeError: elements of the target share memory.
    """
    if source.layout is not torch.strided:
        raise UnsupportedError(f"{source.layout} tensors are not there")
    from_torch(source.dtype)
    home, layout = home_of(target), Layout(target.dtype, tuple(target.shape), target.stride())
    if not layout.dense:
        if lies_twice(layout.shape, layout.strides):
            raise RuntimeError(MEETS_ITSELF)
        if meets_itself(layout.shape, layout.strides):
            _write_among(source, target)
        else:
            call(_COPY, (target, to_device(source.to(target.dtype), home)), {})
        return
    packed = torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype)
    packed.copy_(source.detach())
    size = byte_count(packed)
    if size:
        data: Bytes = np.empty(size, np.uint8)
        copy_from(packed, data, 0)
        with home.session.lock:
            home.session.write(slab_of(target.untyped_storage()), binding_of(target).offset, data)


def _write_among(source: torch.Tensor, target: torch.Tensor) -> None:
    """Writes elements whose axes cross, which no program may write: all around them is read first, one round trip."""
    session, slab, place = home_of(target).session, slab_of(target.untyped_storage()), binding_of(target)
    with session.lock:
        data = session.read(slab, place.offset, place.size).copy()
        around = torch.from_numpy(data).view(target.dtype)
        around.as_strided(target.shape, target.stride()).copy_(source.detach())
        session.write(slab, place.offset, data)


def value_of(tensor: torch.Tensor) -> Any:
    """Returns the one element of a tensor as a Python number: one round trip."""
    return to_host(tensor).item()
