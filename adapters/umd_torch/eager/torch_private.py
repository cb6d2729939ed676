"""What the device `umd` uses of torch that torch does not promise to keep: its slot for devices from elsewhere.

The slot is named "PrivateUse1", and filled from Python.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import ctypes
import functools
import logging
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import _tensor_str
from torch._dynamo import trace_rules
from torch._prims import rng_prims
from torch._subclasses import fake_tensor
from torch.multiprocessing.reductions import reduce_storage
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as register_python_backend

from umd_torch.torch_private import OpOverload

_C: Any = torch._C  # much of it is undeclared
DeviceGuard: Any = _C._acc.DeviceGuard
DISPATCH_NAME = "PrivateUse1"
"""The dispatch key of the device's kernels; AUTOCAST_NAME that of its autocast."""
AUTOCAST_NAME = "AutocastPrivateUse1"
DEVICE_TYPE: Any = _C._autograd.DeviceType.PrivateUse1
META_KEY = torch._C.DispatchKey.Meta
IncludeKey: Any = torch._C._IncludeDispatchKeyGuard
"""Within `IncludeKey(META_KEY)` torch's own kernels for metadata serve tensors of the device."""
UNKNOWN_RESULT = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
    NotImplementedError,
)
"""What torch raises where it cannot say, without the elements, what an op returns."""
construct_storage: Any = torch._C._construct_storage_from_data_pointer


DRAFTING = "umd-draft"
"""Name of the threads that try calls out on tensors without elements."""


def _is_no_draft(record: logging.LogRecord) -> bool:
    return record.threadName != DRAFTING


fake_tensor.log.addFilter(_is_no_draft)  # what a user's call does wrong is raised; torch would log it as well


def without_autocast() -> Any:
    """Returns a context in which the device's autocast does nothing."""
    key: Any = getattr(torch._C.DispatchKey, AUTOCAST_NAME)  # undeclared
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))


class _DlTensor(ctypes.Structure):
    """A tensor as DLPack describes it. Source: dlpack.h 1.0, `DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


_DL_EXTENSION, _DL_UNSIGNED = 12, 1
_NO_ELEMENTS, _ONE_STEP = (ctypes.c_int64 * 1)(0), (ctypes.c_int64 * 1)(1)
_kept: list[_DlTensor] = []
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


@functools.cache
def _blank(ordinal: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor without elements. `create_tensor` knows the first device only; DLPack knows all."""
    shape, strides = ctypes.addressof(_NO_ELEMENTS), ctypes.addressof(_ONE_STEP)
    described = _DlTensor(None, _DL_EXTENSION, ordinal, 1, _DL_UNSIGNED, 8, 1, shape, strides, 0, None, None)
    _kept.append(described)
    blank: torch.Tensor = torch._C._from_dlpack(_capsule(ctypes.addressof(described), b"dltensor", None))
    return blank.view(dtype)


def create_tensor_on(ordinal: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a new tensor without elements on a device; it gets its storage next."""
    if not ordinal:
        blank: torch.Tensor = _C._acc.create_empty_tensor((0,), dtype)
        return blank
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_VIEWS), IncludeKey(META_KEY):
        return _blank(ordinal, dtype).as_strided((0,), (1,))


_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def has_kernel(op: OpOverload, key: str) -> bool:
    """Returns whether torch has a kernel of an overload under a dispatch key's very name."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def all_overloads() -> list[torch._ops.OpOverload]:
    """Returns every overload of torch's own ops."""
    found = []
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if namespace == "aten":
            packet = getattr(torch.ops.aten, name, None)
            op = getattr(packet, overload or "default", None)
            if isinstance(op, torch._ops.OpOverload):
                found.append(op)
    return found


def replace_backward(wrap: Any) -> None:
    """Puts `wrap(original)` in the place of the function that every backward pass of torch goes through."""
    wrapped = wrap(torch.autograd.graph._engine_run_backward)
    torch.autograd.graph._engine_run_backward = wrapped
    torch.autograd._engine_run_backward = wrapped  # type: ignore[attr-defined]  # imported there by name


def replace_module_mover(wrap: Any) -> None:
    """Puts `wrap(original)` in the place of what moves and casts a module's tensors: (module, function, recurse)."""
    torch.nn.Module._apply = wrap(torch.nn.Module._apply)  # type: ignore[method-assign]  # on purpose


def replace_text_maker(wrap: Any) -> None:
    """Puts `wrap(original)` in the place of what writes a tensor's elements as text: (tensor, indent) -> str."""
    _tensor_str._tensor_str = wrap(_tensor_str._tensor_str)


def replace_storage_maker(wrap: Any) -> None:
    """Puts `wrap(original)` in the place of what makes a storage when Python asks for one."""
    torch.UntypedStorage.__new__ = wrap(torch.UntypedStorage.__new__)  # type: ignore[method-assign]  # on purpose


def replace_storage_method(name: str, wrap: Any) -> None:
    """Puts `wrap(original)` in the place of a method of storages."""
    setattr(torch.UntypedStorage, name, wrap(getattr(torch.UntypedStorage, name)))


def replace_storage_sender(wrap: Any) -> None:
    """Puts `wrap(original)` in the place of what takes a storage apart that goes to another process."""
    ForkingPickler.register(torch.UntypedStorage, wrap(reduce_storage))


def own_kernel(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Returns what torch's own kernel gives that it has of an op for every device."""
    return op.redispatch(_ANY_DEVICE, *args, **kwargs)


_ANY_DEVICE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""Where such kernels are found, among other places."""


def leave_to_python(*modules: str) -> None:
    """Tells Dynamo to run the frames of modules and packages as they are, where it would look into them."""
    for module in modules:
        trace_rules.add(module)


def draw_as_cpu(device_type: str) -> None:
    """Has ops on a device draw by the CPU's generator where backward computes again what forward has drawn.

    Torch saves the state of the generator that belongs to an op's arguments, and knows none for other devices.
    """
    original: Any = rng_prims.get_device  # undeclared

    def device_of(args: Any, kwargs: Any) -> Any:
        found = original(args, kwargs)
        return "cpu" if found == device_type else found

    rng_prims.get_device = device_of


def is_wrapped_number(tensor: torch.Tensor) -> bool:
    """Returns whether a 0-d CPU tensor stands for a Python number, which has no say in type promotion."""
    if tensor.dtype is torch.float64:
        return torch.result_type(_FLOAT, tensor) is torch.float32
    return tensor.dtype is torch.int64 and torch.result_type(_INT, tensor) is torch.int32


_FLOAT, _INT = torch.empty((), dtype=torch.float32), torch.empty((), dtype=torch.int32)


__all__ = [
    "AUTOCAST_NAME",
    "DEVICE_TYPE",
    "DISPATCH_NAME",
    "DRAFTING",
    "META_KEY",
    "UNKNOWN_RESULT",
    "DeviceGuard",
    "IncludeKey",
    "all_overloads",
    "construct_storage",
    "create_tensor_on",
    "draw_as_cpu",
    "has_kernel",
    "is_wrapped_number",
    "leave_to_python",
    "own_kernel",
    "register_python_backend",
    "replace_backward",
    "replace_module_mover",
    "replace_storage_maker",
    "replace_storage_method",
    "replace_storage_sender",
    "replace_text_maker",
    "without_autocast",
]
