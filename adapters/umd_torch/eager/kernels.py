"""Kernels that are not programs: factories, views, storages, transfers, values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from umd_core.errors import UnsupportedError
from umd_core.ir import contiguous_strides
from umd_torch.builder import from_torch
from umd_torch.eager.calls import call
from umd_torch.eager.devices import NAME, device_at, device_of
from umd_torch.eager.fallback import run as run_on_cpu
from umd_torch.eager.refusals import PINNED
from umd_torch.eager.signatures import signature_of
from umd_torch.eager.tensors import allocate, grow, offset_of, replace_storage, restride
from umd_torch.eager.torch_private import META_KEY, IncludeKey, own_kernel
from umd_torch.eager.transfers import copy, to_device, to_host, value_of
from umd_torch.layouts import is_dense
from umd_torch.torch_private import OpOverload

aten = torch.ops.aten
Ints = Sequence[int]
_STRIDED = (None, torch.strided)
_KEEPS_NO_FORMAT = (None, torch.contiguous_format, torch.preserve_format)


# factories


def _check(layout: torch.layout | None, pin_memory: bool | None) -> None:
    if layout not in (None, torch.strided):
        raise UnsupportedError(f"{layout} tensors are not there")
    if pin_memory:
        raise UnsupportedError(PINNED)


def _empty(
    size: Ints, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    device: torch.device | None = None, pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:  # fmt: skip
    _check(layout, pin_memory)
    strides = None
    if memory_format not in _KEEPS_NO_FORMAT:
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return allocate(device_of(device), size, dtype or torch.get_default_dtype(), strides)


def _empty_strided(
    size: Ints, stride: Ints, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    device: torch.device | None = None, pin_memory: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    _check(layout, pin_memory)
    return allocate(device_of(device), size, dtype or torch.get_default_dtype(), stride)


# views: torch's own kernels for metadata make them


def _as_strided(x: torch.Tensor, size: Ints, stride: Ints, storage_offset: int | None = None) -> torch.Tensor:
    with IncludeKey(META_KEY):
        return x.as_strided(size, stride, storage_offset)


def _view(x: torch.Tensor, size: Ints) -> torch.Tensor:
    with IncludeKey(META_KEY):
        return x.view(size)


def view_kernel(op: OpOverload) -> Callable[..., Any]:
    """Returns the kernel of an op that returns a view."""

    def view(*args: Any, **kwargs: Any) -> Any:
        with IncludeKey(META_KEY):
            result = op(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            from_torch(result.dtype)  # which refuses complex numbers
        return result

    return view


# storages


def _resize(x: torch.Tensor, size: Ints, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    grow(x, size)
    return x


def _restride(x: torch.Tensor, size: Ints, stride: Ints, storage_offset: int | None = None) -> torch.Tensor:
    restride(x, size, stride, offset_of(x) if storage_offset is None else storage_offset)
    return x


def _set_storage(x: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    return _set_range(x, storage, 0, (storage.nbytes() // x.itemsize,), (1,))


def _set_range(
    x: torch.Tensor, storage: torch.UntypedStorage, offset: int, size: Ints, stride: Ints = ()
) -> torch.Tensor:
    replace_storage(x, storage)
    restride(x, size, stride or contiguous_strides(size), offset)
    return x


def _set_tensor(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return _set_range(x, source.untyped_storage(), offset_of(source), source.size(), source.stride())


def _set_nothing(x: torch.Tensor) -> torch.Tensor:
    restride(x, (0,), (1,), 0)
    return x


# transfers and values


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    copy(source, target)
    return target


def _copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if source.shape != target.shape:
        grow(target, tuple(source.shape))
    copy(source, target)
    return target


def _to_copy(
    x: torch.Tensor, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    device: torch.device | None = None, pin_memory: bool | None = None, non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:  # fmt: skip
    """Returns a copy of another element type or on another device, which nothing waits for, or everything does.

    Torch would pin the memory that a read is to fill meanwhile; reads are waited for, so there is nothing to pin.
    """
    plain = memory_format is None and not pin_memory and layout in _STRIDED and x.layout is torch.strided
    if plain and (x.is_contiguous() or is_dense(tuple(x.shape), x.stride())):
        here = x.get_device()
        if here >= 0 and device is not None and device.type == "cpu":
            found = to_host(x)
            return found if dtype is None or dtype is found.dtype else found.to(dtype)
        if here >= 0 and (device is None or device == x.device):
            copied = allocate(device_at(here), x.shape, dtype or x.dtype, x.stride())
            copy(x, copied)
            return copied
        if x.is_cpu and device is not None and device.type == NAME:
            return to_device(x.to(dtype or x.dtype), device_of(device))
    return own_kernel(
        aten._to_copy.default, x, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory,
        memory_format=memory_format,
    )  # fmt: skip


def _equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and bool((x == y).all())


def _nonzero(x: torch.Tensor) -> torch.Tensor:
    """Returns the places of what is not zero: the mask is read, since their number is a shape."""
    return run_on_cpu(signature_of(aten.nonzero.default), (x,), {}, "")  # type: ignore[no-any-return]  # a tensor


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    return x[mask]


def _expanded(indices: Sequence[torch.Tensor | None], x: torch.Tensor) -> list[torch.Tensor | None]:
    """Returns index tensors on x's device, masks as the places of what they let through."""
    result: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.get_device() < 0:
            index = index.to(x.device)
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            result += index.nonzero().unbind(1)
        else:
            result.append(index)
    return result


def _index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    return call(signature_of(aten.index.Tensor), (x, _expanded(indices, x)), {})


def _index_put(op: OpOverload) -> Callable[..., Any]:
    def put(
        x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False,
        unsafe: bool = False,
    ) -> Any:  # fmt: skip
        if values.get_device() < 0:
            values = values.to(x.device)
        first = indices[0]
        single = len(indices) == 1 and first is not None and first.dtype is torch.bool and values.numel() == 1
        given = indices if single and not accumulate else _expanded(indices, x)
        return call(signature_of(op), (x, given, values, accumulate), {})

    return put


def _histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Returns counts; of whole numbers too, as torch has it for other accelerators."""
    signature = signature_of(aten.histc.default)
    if x.is_floating_point():
        return call(signature, (x, bins, min, max), {})
    return call(signature, (x.to(torch.float64), bins, min, max), {}).to(x.dtype)


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.empty.memory_format: _empty,
    aten.empty_strided.default: _empty_strided,
    aten.as_strided.default: _as_strided,
    aten.view.default: _view,
    aten.resize_.default: _resize,
    aten.as_strided_.default: _restride,
    aten.set_.default: _set_nothing,
    aten.set_.source_Storage: _set_storage,
    aten.set_.source_Storage_storage_offset: _set_range,
    aten.set_.source_Tensor: _set_tensor,
    aten._copy_from.default: _copy_from,
    aten._copy_from_and_resize.default: _copy_from_and_resize,
    aten._to_copy.default: _to_copy,
    aten._local_scalar_dense.default: value_of,
    aten.equal.default: _equal,
    aten.nonzero.default: _nonzero,
    aten.histc.default: _histc,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put(aten.index_put.default),
    aten.index_put_.default: _index_put(aten.index_put_.default),
    aten._index_put_impl_.default: _index_put(aten.index_put_.default),
}
"""Overload → kernel."""
