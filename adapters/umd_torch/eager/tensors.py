"""Torch tensors over device bytes: real storages with true strides, whose pointer is a number that nobody reads."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence

import torch

from umd_core.device import Binding
from umd_core.errors import UnsupportedError
from umd_core.ir import contiguous_strides
from umd_torch.builder import from_torch
from umd_torch.eager.devices import EagerDevice, device_at
from umd_torch.eager.torch_private import META_KEY, IncludeKey, construct_storage, create_tensor_on
from umd_torch.memory import Slab

_STEP, _FEW = 1 << 12, 1 << 12
_ADDRESSES = itertools.count(1 << 52, _STEP)
"""No processor maps these: a kernel of torch's that read one would fault at once, not read something else."""
_EMPTY, _ONE = (0,), (1,)


class _Places:
    """Which slab is behind an address. Torch makes storages of its own over an address that one of ours has.

    It does so where it writes a storage into a file (`pickle`, old files of `torch.save`), reads it from one, slices
    it, or takes a DLPack capsule.

    Attributes:
        slabs: by address.
        room: how many addresses there may be before those are looked for whose slabs are gone.
    """

    def __init__(self) -> None:
        self.slabs: dict[int, weakref.ref[Slab]] = {}
        self.room = _FEW
        self._lock = threading.Lock()
        self._next = 1 << 56

    def long(self, size: int) -> int:
        """Returns a new address for more bytes than lie between two of _ADDRESSES."""
        with self._lock:
            address = self._next
            self._next += -(-size // _STEP) * _STEP
        return address

    def forget(self) -> None:
        """Lets go of addresses whose slabs are gone; now and then, for that costs less than one by one."""
        with self._lock:
            for address, slab in list(self.slabs.items()):
                if slab() is None:
                    del self.slabs[address]
            self.room = max(_FEW, 2 * len(self.slabs))


_PLACES = _Places()
_slabs = _PLACES.slabs


def new_storage(home: EagerDevice, size: int) -> torch.UntypedStorage:
    """Returns a storage of `size` bytes on a device. Its slab goes back when torch lets go of the storage.

    Its address is one that no other has, and so is what lies between it and the end of its bytes.
    """
    slab = home.session.slab(size)
    address = next(_ADDRESSES) if size <= _STEP else _PLACES.long(size)
    storage: torch.UntypedStorage = construct_storage(address, home.device, size)
    storage._umd = slab  # type: ignore[attr-defined]  # found again by `slab_of`
    _slabs[address] = weakref.ref(slab)
    if len(_slabs) > _PLACES.room:
        _PLACES.forget()
    return storage


def slab_of(storage: torch.UntypedStorage) -> Slab:
    """Returns the device bytes behind a storage.

    Raises:
        UnsupportedError: torch made it over bytes in the middle of another one.
    """
    try:
        return storage._umd  # type: ignore[attr-defined,no-any-return]  # set by `new_storage`
    except AttributeError:
        storage._umd = slab = _behind(storage)  # type: ignore[attr-defined]  # see above
        return slab


def _behind(storage: torch.UntypedStorage) -> Slab:
    """Returns the device bytes of a storage that torch made by itself: another one's, or, at no address, new ones."""
    address, size = storage.data_ptr(), storage.nbytes()
    if not address or not size:
        return device_at(storage.device.index or 0).session.slab(size)
    known = _slabs.get(address)
    found = None if known is None else known()
    if found is None or size > found.size:
        raise UnsupportedError(
            f"torch made this storage of {size} bytes over a part of another one, whose bytes are not at hand; clone() "
            "a tensor before it is handed on (DLPack), and take parts of tensors rather than of storages"
        )
    return found


def over(
    storage: torch.UntypedStorage, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, offset: int = 0
) -> torch.Tensor:
    """Returns a tensor over a storage. Torch's kernels for metadata do it, which look at no bytes."""
    tensor = create_tensor_on(storage.device.index, dtype)
    with IncludeKey(META_KEY):
        tensor.set_(storage, 0, _EMPTY, _ONE)
        tensor.as_strided_(shape, strides, offset)
    return tensor


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the elements from the first to the last, gaps counted."""
    reach = 1
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0
        reach += (size - 1) * stride
    return reach


def allocate(
    home: EagerDevice, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None
) -> torch.Tensor:
    """Returns a tensor with a storage of its own, its elements undefined.

    Raises:
        DTypeError: umd has no such element type (complex, quantised).
        OutOfMemoryError: the device has no room for it.
    """
    from_torch(dtype)
    steps = contiguous_strides(shape) if strides is None else strides
    return over(new_storage(home, extent(shape, steps) * dtype.itemsize), shape, steps, dtype)


def binding_of(tensor: torch.Tensor) -> Binding:
    """Returns the bytes from a tensor's first element to its last."""
    size = extent(tensor.shape, tensor.stride()) * tensor.itemsize
    return Binding(slab_of(tensor.untyped_storage()).buffer, offset_of(tensor) * tensor.itemsize, size)


def offset_of(tensor: torch.Tensor) -> int:
    """Returns where a tensor's first element lies in its storage, in elements."""
    return int(tensor.storage_offset())


def home_of(tensor: torch.Tensor) -> EagerDevice:
    """Returns the device that a tensor lies on."""
    return device_at(tensor.get_device())


def replace_storage(tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
    """Puts a tensor on another storage; it has no elements until its shape is set."""
    with IncludeKey(META_KEY):
        tensor.set_(storage, 0, _EMPTY, _ONE)


def restride(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> None:
    """Sets a tensor's shape, strides and offset in place."""
    with IncludeKey(META_KEY):
        tensor.as_strided_(shape, strides, offset)


def grow(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int] | None = None) -> None:
    """Gives a tensor another shape, and a larger storage where it needs one; bytes that it has are kept."""
    steps = contiguous_strides(shape) if strides is None else strides
    offset, storage = offset_of(tensor), tensor.untyped_storage()
    size = (offset + extent(shape, steps)) * tensor.itemsize
    if size > storage.nbytes():
        replace_storage(tensor, enlarged(storage, size))
    restride(tensor, shape, steps, offset)


def enlarged(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """Returns a larger storage that begins with the same bytes."""
    home = device_at(storage.device.index or 0)
    larger, kept = new_storage(home, size), storage.nbytes()
    if kept:
        with home.session.lock:
            data = home.session.read(slab_of(storage), 0, kept)
            home.session.write(slab_of(larger), 0, data)
    return larger
