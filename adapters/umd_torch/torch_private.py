"""What the adapter uses of torch that torch does not promise to keep; for the version that pyproject.toml names."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import logging
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import _tensor_str
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo import trace_rules
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import UserError
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import CompileContext, TracingContext
from torch._prims import rng_prims
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import _get_qualified_name as qualified_name
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef, reduce_storage
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as register_python_backend

from umd_core.errors import UnsupportedError

OpOverload = torch._ops.OpOverload
VERSION = (2, 13)
UNDECIDED = (DataDependentOutputException, GuardOnDataDependentSymNode)
"""What tracing raises where Python code decides by what a tensor holds."""
DEPENDS_ON_DATA = (*UNDECIDED, DynamicOutputShapeException)
"""What tracing raises where a decision, or a shape, depends on what a tensor holds."""


def check_version() -> None:
    """Checks that this is the torch that the adapter was written for.

    Raises:
        UnsupportedError: it is another one; the message says how to get it.
    """
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if found != VERSION:
        wanted = ".".join(map(str, VERSION))
        raise UnsupportedError(f"torch {torch.__version__} is not {wanted}: pip install 'torch=={wanted}.*'")


def unroll_recurrent_layers() -> None:
    """Lets Dynamo trace LSTM and GRU layers; it asks before it calls the backend, so this holds for the process."""
    torch._dynamo.config.allow_rnn = True


def refresh_recurrent_layers(module: torch.nn.Module) -> None:
    """Makes LSTM and GRU layers look at their parameters again: they remember those that they were traced with."""
    for layer in module.modules():
        if isinstance(layer, torch.nn.RNNBase):
            layer._update_flat_weights()


@contextlib.contextmanager
def without_mkldnn() -> Generator[None]:
    """Within the block, CPU tensors get plain ATen ops."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns about GPUs
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def is_recompile() -> bool:
    """Returns whether the graph that is being compiled replaces one whose conditions did not hold any more."""
    found = CompileContext.current_compile_id()
    return bool(found and found.frame_compile_id)


def compiled_function() -> int:
    """Returns the number of the function that is being compiled: the same whenever it is compiled again."""
    found = CompileContext.current_compile_id()
    return -1 if found is None or found.frame_id is None else found.frame_id


def compiles_left() -> int:
    """Returns how often torch will compile the function again that is being compiled, before it leaves it to Python."""
    found = CompileContext.current_compile_id()
    return int(torch._dynamo.config.recompile_limit) - 1 - ((found and found.frame_compile_id) or 0)


def fail_at_the_limit() -> None:
    """Has torch raise, for the whole process, where it would leave a function to Python."""
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def compile_apart(function: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function compiled as `torch.compile` does, whatever others have compiled of it before."""
    compiled: Callable[..., Any] = torch._dynamo.optimize(backend, isolate_recompiles=True)(function)
    return compiled


def backward_at_once() -> Any:
    """Returns a context within which backward graphs are compiled together with their forward graphs."""
    return functorch_config.patch(force_non_lazy_backward_lowering=True)


def graph_breaks() -> dict[str, int]:
    """Returns why torch has split functions into several graphs so far, and how often."""
    return dict(torch._dynamo.utils.counters["graph_break"])


def list_ops() -> list[Any]:
    """Returns torch's ops on lists of tensors, `aten._foreach_add` and its kin, without those that change an input."""
    prefix = "aten::_foreach_"
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)}
    return [getattr(torch.ops.aten, n.removeprefix("aten::")) for n in sorted(names) if not n.endswith("_")]


@contextlib.contextmanager
def plain_gradients() -> Generator[None]:
    """Within the block, AOTAutograd takes the gradients of results in a plain layout.

    In the results' own layout it would copy them into overlapping memory where a result is an unfolded view.
    """
    with functorch_config.patch(guess_tangent_strides_as_outputs=False):
        yield


@contextlib.contextmanager
def without_own_parts(*ops: OpOverload) -> Generator[None]:
    """Within the block torch does not take ops apart before it looks at gradients, so that tables of parts are asked.

    What it would make of `multilabel_margin_loss_forward` counts classes after the first -1.
    """
    key = torch._C.DispatchKey.Autograd
    before = {op: op.py_kernels.pop(key) for op in ops if key in op.py_kernels}
    for op in before:
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernel in before.items():
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def storage_key(tensor: torch.Tensor) -> int:
    """Returns a number that belongs to a tensor's storage as long as it, or a weak reference to it, lives."""
    return int(tensor.untyped_storage()._cdata)


def weak_storage(tensor: torch.Tensor) -> Any:
    """Returns a weak reference to a tensor's storage, whose `expired()` says whether it is gone."""
    return StorageWeakRef(tensor.untyped_storage())


@contextlib.contextmanager
def compiling() -> Generator[None]:
    """Within the block torch's Python code goes the ways that it has for compilers: nothing is read off tensors."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def plain_step(optimizer: torch.optim.Optimizer) -> None:
    """Runs an optimizer's own step, without profiling and hooks around it."""
    inspect.unwrap(type(optimizer).step)(optimizer)


def step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether something is to run before or after an optimizer's step."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def initial_state(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], parameter: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Returns the state that an optimizer starts with for a parameter like this one, as it makes it itself."""
    shadow: Any = object.__new__(type(optimizer))
    shadow.__dict__.update(optimizer.__dict__)
    own = parameter.detach().requires_grad_()
    own.grad = torch.zeros_like(own)
    shadow.state = defaultdict(dict)
    places = len(inspect.signature(shadow._init_group).parameters) - 1
    shadow._init_group({**group, "params": [own], "capturable": False}, *([] for _ in range(places)))
    state = dict(shadow.state.get(own, {}))
    if isinstance(optimizer, torch.optim.SGD) and group["momentum"]:
        state["momentum_buffer"] = torch.zeros_like(parameter)
    return state


def note_optimizer_step(optimizer: torch.optim.Optimizer) -> None:
    """Tells learning-rate schedules that the optimizer has stepped; they warn otherwise."""
    optimizer._opt_called = True  # type: ignore[attr-defined]  # torch's own, undeclared


# the eager device: torch's third-party backend slot ("PrivateUse1"), filled from Python

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


def schema_of(op: OpOverload) -> Any:
    """Returns what an overload takes, writes and returns."""
    return op._schema


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
    "DEPENDS_ON_DATA",
    "DEVICE_TYPE",
    "DISPATCH_NAME",
    "DRAFTING",
    "META_KEY",
    "UNDECIDED",
    "UNKNOWN_RESULT",
    "DeviceGuard",
    "FakeTensorMode",
    "IncludeKey",
    "OpOverload",
    "TracingContext",
    "UserError",
    "all_overloads",
    "aot_autograd",
    "aot_export_joint_with_descriptors",
    "backward_at_once",
    "check_version",
    "compiling",
    "construct_storage",
    "core_aten_decompositions",
    "create_tensor_on",
    "descriptors",
    "draw_as_cpu",
    "get_decompositions",
    "graph_breaks",
    "has_kernel",
    "initial_state",
    "is_recompile",
    "is_wrapped_number",
    "leave_to_python",
    "list_ops",
    "make_fx",
    "map_aggregate",
    "note_optimizer_step",
    "own_kernel",
    "plain_step",
    "qualified_name",
    "refresh_recurrent_layers",
    "register_python_backend",
    "replace_backward",
    "replace_module_mover",
    "replace_storage_maker",
    "replace_storage_method",
    "replace_storage_sender",
    "replace_text_maker",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "schema_of",
    "step_hooks",
    "storage_key",
    "unroll_recurrent_layers",
    "unset_fake_temporarily",
    "weak_storage",
    "without_autocast",
    "without_mkldnn",
    "without_own_parts",
]
