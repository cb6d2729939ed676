"""Tensor: an array on a device, with DLPack; and what `Device.run` does around a submission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from umd_core.device.protocol import Binding, Buffer, Ticket
from umd_core.dtypes import DType, bfloat16
from umd_core.errors import DTypeError, InputCountError, ShapeError
from umd_core.ir import Array, TensorDesc

if TYPE_CHECKING:
    from umd_core.device import SequentialDevice
    from umd_core.device.program import Program


class Storage:
    """Owner of a buffer, shared by the tensors and host views on it. The buffer is freed with the last of them."""

    __slots__ = ("buffer", "device")

    device: SequentialDevice
    buffer: Buffer

    def __init__(self, device: SequentialDevice, buffer: Buffer) -> None:
        self.device, self.buffer = device, buffer

    def __del__(self) -> None:
        self.device.drop(self.buffer)


class _Host:
    """Bytes of a storage as NumPy sees them; every array made from it keeps the storage alive."""

    __slots__ = ("__array_interface__", "_storage", "_view")

    def __init__(self, storage: Storage, view: memoryview) -> None:
        self._storage, self._view = storage, view
        self.__array_interface__ = np.asarray(view).__array_interface__


class Tensor:
    """An array on a device.

    Attributes:
        desc: shape, element type and layout.
        storage: the buffer that it lies in.
    """

    __slots__ = ("desc", "storage")

    desc: TensorDesc
    storage: Storage

    def __init__(self, desc: TensorDesc, storage: Storage) -> None:
        self.desc, self.storage = desc, storage

    def __repr__(self) -> str:
        return f"Tensor({self.desc!r} on {self.storage.device.name})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents; () for a 0-d tensor."""
        return self.desc.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.desc.dtype

    @property
    def binding(self) -> Binding:
        """The tensor's bytes, ready for `submit`."""
        return Binding(self.storage.buffer, 0, self.desc.byte_size)

    def numpy(self, out: Array | None = None) -> Array:
        """Returns the elements as a host array: without a copy on a device with host-visible buffers.

        Args:
            out: an array of this shape and element type to be filled and returned; without a copy on the way when it,
                like the tensor, is contiguous.

        Raises:
            PoisonedError: the work that should have made them failed.
            ShapeError, DTypeError: `out` is another kind of array.
        """
        device, desc = self.storage.device, self.desc
        if out is not None:
            return self._fill(out)
        data = device.read(self.storage.buffer, 0, desc.byte_size)
        flat = np.asarray(_Host(self.storage, data)) if desc.byte_size else np.empty(0, np.uint8)
        return strided(flat, desc)

    def _fill(self, out: Array) -> Array:
        desc = self.desc
        if out.shape != desc.shape:
            raise ShapeError("numpy", f"has shape {list(out.shape)}, not {list(desc.shape)}", input="out")
        if out.dtype != desc.dtype.numpy:
            raise DTypeError("numpy", f"is {out.dtype}", input="out", got=str(out.dtype), allowed=(desc.dtype.name,))
        if desc.is_contiguous and out.flags.c_contiguous:
            self.storage.device.read_into(self.storage.buffer, 0, out)
        else:
            out[...] = self.numpy()
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        if self.desc.dtype is bfloat16:
            raise DTypeError("Tensor", "NumPy cannot pass bfloat16 by DLPack: use .numpy()", got="bfloat16")
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def as_bytes(data: Any) -> memoryview:
    """Returns the bytes of an array, or of anything that has the buffer protocol, in row-major order."""
    if isinstance(data, np.ndarray):
        array = np.ascontiguousarray(data)
        return array.reshape(-1).view(np.uint8).data
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def writable(out: Any) -> memoryview:
    """Returns the bytes of an array, or of anything that has the buffer protocol, to be filled.

    Raises:
        ShapeError: it has gaps, or is read-only.
    """
    if isinstance(out, np.ndarray):  # some element types are unknown to the buffer protocol
        readonly, contiguous = not out.flags.writeable, out.flags.c_contiguous
        view = out.reshape(-1).view(np.uint8).data if contiguous else memoryview(b"")
    else:
        view = memoryview(out)
        readonly, contiguous = view.readonly, view.c_contiguous
    if readonly or not contiguous:
        raise ShapeError("read", f"what is to be filled {'is read-only' if readonly else 'is not contiguous'}")
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def strided(flat: Array, desc: TensorDesc) -> Array:
    """Returns the elements that `desc` describes as a view of its buffer's bytes, (byte_size,) uint8."""
    if desc.element_count == 0:
        return np.empty(desc.shape, desc.dtype.numpy)
    elements = flat.view(desc.dtype.numpy)
    if desc.is_contiguous:
        return elements.reshape(desc.shape)
    size = desc.dtype.size
    steps = tuple(s * size for s in desc.strides)
    return np.lib.stride_tricks.as_strided(elements[desc.element_offset :], desc.shape, steps)


def span(array: Array) -> Array:
    """Returns the bytes that an array's elements lie in, gaps included, as a view: (byte_size,) uint8."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    size = sum((extent - 1) * abs(step) for extent, step in zip(array.shape, array.strides, strict=True))
    lowest = array[tuple(slice(-1, None) if step < 0 else slice(0, 1) for step in array.strides)]
    return np.lib.stride_tricks.as_strided(lowest.reshape(1).view(np.uint8), (size + array.itemsize,), (1,))


def packed(array: Array, desc: TensorDesc) -> Array:
    """Returns a copy of the elements in the layout of `desc`: (byte_size,) uint8."""
    flat = np.zeros(desc.byte_size, np.uint8)
    if desc.element_count:
        strided(flat, desc)[...] = array
    return flat


def upload(device: SequentialDevice, value: Any, desc: TensorDesc | None = None) -> Tensor:
    """Returns a copy of a host array on the device, in the layout of `desc` (row-major when None)."""
    array = np.asarray(value)
    wanted = desc or TensorDesc(array.dtype, array.shape)
    storage = Storage(device, device.allocate(wanted.byte_size))
    device.write(storage.buffer, 0, packed(array, wanted))
    return Tensor(wanted, storage)


class Argument(NamedTuple):
    """What `run` needs to know about one argument."""

    desc: TensorDesc
    size: int
    contiguous: bool
    alias: int | None


class Signature:
    """The arguments of a program, prepared for `run`.

    Attributes:
        inputs: `alias` is the output that replaces the input in place.
        outputs: `alias` is the input that the output replaces.
    """

    __slots__ = ("inputs", "outputs")

    def __init__(
        self,
        inputs: Sequence[TensorDesc],
        outputs: Sequence[TensorDesc],
        aliases: Sequence[tuple[int, int]],
        argument_count: int,
    ) -> None:
        replaced = dict(aliases)
        replacing = {source: output for output, source in aliases}
        self.inputs: list[Argument] = [_prepared(desc, replacing.get(i)) for i, desc in enumerate(inputs)]
        self.outputs: list[Argument] = [_prepared(desc, replaced.get(i)) for i, desc in enumerate(outputs)]
        given, count = len(self.inputs) + len(self.outputs), argument_count
        if given != count:
            raise InputCountError("run", given, count, count, "descriptions of arguments: load a CommandBuffer")


def _prepared(desc: TensorDesc, alias: int | None) -> Argument:
    return Argument(desc, desc.byte_size, desc.is_contiguous, alias)


def run(device: SequentialDevice, program: Program, inputs: Sequence[Any]) -> list[Tensor]:
    """Returns the outputs of a program that has run over host arrays or tensors of the device.

    An input that an output replaces in place is overwritten when it is a tensor, and copied first when it is a host
    array.

    Raises:
        InputCountError, ShapeError, DTypeError: the inputs do not fit the program.
        UmdError: what went wrong in the work.
    """
    results, ticket = start(device, program, inputs)
    ticket.wait()
    return results


def start(device: Any, program: Any, inputs: Sequence[Any]) -> tuple[list[Tensor], Ticket]:
    """Returns what `run` returns, and the ticket of the submission that makes it, without waiting for the work."""
    signature = program.signature
    if len(inputs) != len(signature.inputs):
        count = len(signature.inputs)
        raise InputCountError("run", len(inputs), count, count)
    arguments = [
        _argument(device, i, value, wanted)
        for i, (value, wanted) in enumerate(zip(inputs, signature.inputs, strict=True))
    ]
    results = [
        Tensor(desc, Storage(device, device.allocate(size)) if alias is None else arguments[alias].storage)
        for desc, size, _, alias in signature.outputs
    ]
    bindings = [
        Binding(tensor.storage.buffer, 0, a.size) for tensor, a in zip(arguments, signature.inputs, strict=True)
    ]
    bindings += [
        Binding(tensor.storage.buffer, 0, a.size) for tensor, a in zip(results, signature.outputs, strict=True)
    ]
    return results, device.submit(program, bindings)


def _argument(device: SequentialDevice, index: int, value: Any, wanted: Argument) -> Tensor:
    desc = wanted.desc
    given: Any
    if isinstance(value, Tensor):
        if value.desc is desc and value.storage.device is device:
            return value
        given, shape, dtype = value, value.desc.shape, value.desc.dtype.numpy
    else:
        given = np.asarray(value)
        shape, dtype = given.shape, given.dtype
    if shape != desc.shape:
        detail = f"has shape {list(shape)}, the program takes {list(desc.shape)}"
        raise ShapeError("run", detail, input=str(index), shapes=[shape, desc.shape])
    if dtype != desc.dtype.numpy:
        raise DTypeError("run", f"is {dtype}", input=str(index), got=str(dtype), allowed=(desc.dtype.name,))
    if isinstance(value, Tensor):
        if value.storage.device is device and value.desc == desc:
            return value
        return upload(device, value.numpy(), desc)
    if device.maps and wanted.alias is None and _fits(given, wanted):
        return Tensor(desc, Storage(device, device.wrap(given)))
    return upload(device, given, desc)


def _fits(array: Array, wanted: Argument) -> bool:
    """Returns whether the array's own bytes have the wanted layout."""
    flags = array.flags
    if not (wanted.size and flags.aligned):
        return False
    if wanted.contiguous:
        return flags.c_contiguous
    return TensorDesc.of(array) == wanted.desc and all(step % array.itemsize == 0 for step in array.strides)
