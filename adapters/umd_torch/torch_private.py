"""What the adapter uses of torch that torch does not promise to keep; for the version that pyproject.toml names."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import UserError
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import CompileContext, TracingContext
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
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
from torch.multiprocessing.reductions import StorageWeakRef

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


def schema_of(op: OpOverload) -> Any:
    """Returns what an overload takes, writes and returns."""
    return op._schema


__all__ = [
    "DEPENDS_ON_DATA",
    "UNDECIDED",
    "FakeTensorMode",
    "OpOverload",
    "TracingContext",
    "UserError",
    "aot_autograd",
    "aot_export_joint_with_descriptors",
    "backward_at_once",
    "check_version",
    "compiling",
    "core_aten_decompositions",
    "descriptors",
    "get_decompositions",
    "graph_breaks",
    "initial_state",
    "is_recompile",
    "list_ops",
    "make_fx",
    "map_aggregate",
    "note_optimizer_step",
    "plain_step",
    "qualified_name",
    "refresh_recurrent_layers",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "schema_of",
    "step_hooks",
    "storage_key",
    "unroll_recurrent_layers",
    "unset_fake_temporarily",
    "weak_storage",
    "without_mkldnn",
    "without_own_parts",
]
