"""Registers the device type `umd` with torch. Importing this module does it, once a process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

from umd_torch import compiled
from umd_torch.eager import autocast, devices, modules, refusals, saving
from umd_torch.eager.calls import any_kernel, kernel
from umd_torch.eager.compiled import OnDevice
from umd_torch.eager.kernels import KERNELS, view_kernel
from umd_torch.eager.torch_private import (
    DEVICE_TYPE,
    DISPATCH_NAME,
    DeviceGuard,
    all_overloads,
    draw_as_cpu,
    has_kernel,
    leave_to_python,
    register_python_backend,
    replace_backward,
    replace_module_mover,
)
from umd_torch.lowering import LOWERINGS
from umd_torch.torch_private import check_version, schema_of

_STRUCTURED = "CompositeExplicitAutogradNonFunctional"
_IMPLICIT = "CompositeImplicitAutograd"
_OURS = (
    "umd_core", "umd_sim", "umd_cuda", "umd_grpc", "umd_torch.eager", "umd_torch.lowering", "umd_torch.session",
    "umd_torch.memory", "umd_torch.host", "umd_torch.handles", "umd_torch.layouts", "umd_torch.builder",
    "umd_torch.graphs", "umd_torch.counters", "umd_torch.tracing", "umd_torch.torch_private",
)  # fmt: skip
"""Where a call on the device leads: Dynamo meets it between the graphs of a function that it had to break."""
_raise_pending = ctypes.pythonapi.Py_IsInitialized
"""Any function of Python's: ctypes raises a pending error when it returns."""
_pending = threading.local()


class Module:
    """`torch.umd`: what torch asks of a device type."""

    device = devices.Within

    def is_initialized(self) -> bool:
        """Returns True: there is nothing to set up."""
        return True

    def is_available(self) -> bool:
        """Returns True: the device is opened at its first use."""
        return True

    def current_device(self) -> int:
        """Returns the number that "umd" without one means."""
        return devices.current()

    def set_device(self, device: int | str | torch.device) -> None:
        """Sets the number that "umd" without one means."""
        devices.set_current(devices.number_of(device))

    def device_count(self) -> int:
        """Returns how many devices there are."""
        return devices.count()

    def synchronize(self, device: Any = None) -> None:
        """Returns when everything asked for has been carried out."""
        devices.each(lambda session: getattr(session.device, "synchronize", lambda: None)())

    def manual_seed(self, seed: int) -> None:
        """Does nothing: seeds are drawn from torch's own generator, which torch.manual_seed seeds."""

    def manual_seed_all(self, seed: int) -> None:
        """Does nothing, as `manual_seed`."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Returns the state of torch's own generator."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Sets the state of torch's own generator."""
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Returns the element types of autocast."""
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False


class _Guard(DeviceGuard):  # type: ignore[misc]  # torch declares it as Any
    """Answers torch's engine.

    An exception that a kernel raised in backward is pending when torch asks while it unwinds; Python would call that
    a fault of the answer, and the process would end. So it is taken and kept here, and raised by `_backward`.
    """

    def type_(self) -> Any:
        """Returns the device type."""
        try:
            _raise_pending()
        except BaseException as error:  # noqa: BLE001  # raised again by `_backward`
            _pending.first = getattr(_pending, "first", None) or error
        return DEVICE_TYPE


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns torch's backward pass, on the caller's thread, whose exceptions reach the caller."""

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        _pending.first = None
        try:
            with torch.autograd.set_multithreading_enabled(False):
                return original(*args, **kwargs)
        except SystemError:
            first, _pending.first = _pending.first, None
            if first is None:
                raise
            raise first from None

    return run_backward


def _kernels() -> dict[Any, Callable[..., Any]]:
    """Returns the kernels by overload.

    Torch makes `add` of `empty` and `add.out` for devices that have no `add`: two calls where one will do.
    """
    found: dict[Any, Callable[..., Any]] = {}
    for op in all_overloads():
        schema = schema_of(op)
        if has_kernel(op, _IMPLICIT):
            continue
        aliased = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if aliased:
            if not has_kernel(op, "CompositeExplicitAutograd"):
                found[op] = view_kernel(op)
        elif has_kernel(op, _STRUCTURED) or (op in LOWERINGS and not any(a.name == "device" for a in schema.arguments)):
            found[op] = kernel(op)
    return {**found, **KERNELS}


def register() -> tuple[torch.library.Library, ...]:
    """Registers everything; the libraries live as long as what is returned."""
    check_version()
    register_python_backend(devices.NAME, backend_module=Module(), device_guard=_Guard())
    leave_to_python(*_OURS)
    replace_backward(_backward)
    replace_module_mover(modules.swapping)
    saving.register()
    compiled.FOREIGN.append(OnDevice())
    draw_as_cpu(devices.NAME)
    aten, rest = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    for op, function in _kernels().items():
        aten.impl(op, function, DISPATCH_NAME)
    rest.fallback(any_kernel, DISPATCH_NAME)
    return aten, rest, *autocast.register(), *refusals.register()


_LIBRARIES = register()
