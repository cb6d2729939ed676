"""Calls of torch's ops on the device: looked up by op and metadata, drafted and translated when they are new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from umd_core.errors import UmdError
from umd_torch.eager import fallback
from umd_torch.eager.devices import NAME, EagerDevice, device_at, device_of, options
from umd_torch.eager.drafts import ResizedError, draft
from umd_torch.eager.plans import Plan
from umd_torch.eager.signatures import Signature, signature_of
from umd_torch.eager.slots import Geometry, Slot
from umd_torch.eager.tensors import extent, grow, slab_of
from umd_torch.eager.torch_private import is_wrapped_number
from umd_torch.overlaps import MEETS_ITSELF, lies_twice
from umd_torch.torch_private import OpOverload

aten = torch.ops.aten
_MIXED = "Expected all tensors to be on the same device, but found at least two devices, {} and {}! ({})"
_UNTOUCHED = (0, 1)
"""Numbers that stay part of the program: emitters leave out what they do."""


class Arguments:
    """The arguments of one call, taken apart.

    Attributes:
        key: op, metadata and plain values: what decides the program.
        tensors: those of the device, in order.
        numbers: those that are operands of the program, in order.
        ordinal: of the device that they are on, -1 when none of them says.
        same: positions in `tensors` that have a written tensor once more, and the position where it is written.
    """

    __slots__ = ("key", "numbers", "ordinal", "same", "signature", "tensors")

    def __init__(self, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.signature = signature
        self.key: list[Any] = [signature]
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[Any] = []
        self.ordinal = -1
        self.same: dict[int, int] = {}
        self._take(args, signature.lifts)
        for name, value in kwargs.items():
            self.key.append(name)
            self._take((value,), signature.lifts)

    def _take(self, values: Sequence[Any], lifts: bool) -> None:
        key = self.key
        for value in values:
            kind = type(value)
            if kind is float or kind is int:
                if lifts and value not in _UNTOUCHED:
                    self.numbers.append(value)
                    key.append(kind)
                else:
                    key.append(kind)
                    key.append(value if value == value and value else repr(value))
            elif isinstance(value, torch.Tensor):
                self._take_tensor(value)
            elif kind is list or kind is tuple:
                key.append(len(value))
                self._take(value, False)
            elif kind is bool:
                key.append(repr(value))
            else:
                key.append(value)
                if kind is torch.device and self.ordinal < 0 and value.type == NAME:
                    self.ordinal = device_of(value).ordinal

    def _take_tensor(self, tensor: torch.Tensor) -> None:
        ordinal = tensor.get_device()
        if ordinal >= 0:
            if ordinal != self.ordinal:
                self._settle(ordinal)
            self.tensors.append(tensor)
            self.key += (tensor.shape, tensor.stride(), tensor.dtype)
        elif tensor.is_cpu and not tensor.dim():
            self._take_number(tensor)
        else:
            self._mixed(tensor.device)

    def _take_number(self, tensor: torch.Tensor) -> None:
        """Takes a tensor of the CPU without dimensions: a number that is an operand, or part of the program."""
        value, wrapped = tensor.item(), is_wrapped_number(tensor)
        if wrapped and not self.signature.lifts:
            self._take((value,), False)
        else:
            self.numbers.append(value)
            self.key += ("cpu", tensor.dtype, wrapped)

    def _settle(self, ordinal: int) -> None:
        if self.ordinal >= 0 and self.tensors:
            self._mixed(torch.device(NAME, ordinal))
        self.ordinal = ordinal

    def _mixed(self, other: torch.device) -> None:
        own = torch.device(NAME, max(self.ordinal, 0))
        raise RuntimeError(_MIXED.format(own, other, self.signature.name))

    def home(self) -> EagerDevice:
        """Returns the device that the call runs on."""
        return device_at(self.ordinal) if self.ordinal >= 0 else device_of(None)


def call(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns what an op returns; it runs on the device, or on the CPU where the device lacks it.

    Raises:
        UnsupportedError: with `strict`, what would run on the CPU.
        Exception: what torch, or the device, says is wrong.
    """
    found = Arguments(signature, args, kwargs)
    targets: tuple[int, ...] = ()
    if signature.writes:
        written = signature.written(tuple(args), dict(kwargs))
        if any(not isinstance(t, torch.Tensor) for t in written):
            return fallback.run(signature, args, kwargs, "it writes lists of tensors")
        targets, changed = _targets(found, written)
        if changed:
            return call(signature, *_swapped(args, kwargs, changed))
    home = found.home()
    key = tuple(found.key)
    try:
        plan = home.plans.get(key)
    except TypeError:  # something that cannot be looked up by, a generator for example
        plan, key = None, ()
    if plan is None:
        plan = _plan(home, found, targets, args, kwargs)
        if plan is None:
            return call(signature, args, kwargs)
        if key:
            home.keep(key, plan)
    if isinstance(plan, Plan):
        return plan(found.tensors, found.numbers)
    return fallback.run(signature, args, kwargs, plan)


def _plan(
    home: EagerDevice, found: Arguments, targets: Sequence[int], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Plan | str | None:
    """Returns the plan of a call, or why there is none; None when an out= tensor had to change its shape first."""
    home.session.check_process()  # what is refused below is taken for what the device lacks
    signature = found.signature
    stand_in = _StandIns(found)
    slotted = stand_in.all(args), {name: stand_in.one(value) for name, value in kwargs.items()}
    try:
        return Plan(home, draft(signature, *slotted, targets))
    except ResizedError as resized:
        for tensor, shape in zip((found.tensors[i] for i in targets), resized.shapes, strict=True):
            grow(tensor, shape)
        return None
    except UmdError as error:
        if options.strict and signature.op not in fallback.READS_VALUES:
            raise
        return fallback.reason_of(error)


class _StandIns:
    """Replaces the tensors and operands of a call by slots, in the order in which `Arguments` took them."""

    def __init__(self, found: Arguments) -> None:
        self._lifts = found.signature.lifts
        self._tensors = self._numbers = 0
        self._same = found.same

    def all(self, values: Sequence[Any]) -> list[Any]:
        """Returns positional arguments."""
        return [self.one(value) for value in values]

    def one(self, value: Any, inside: bool = False) -> Any:
        """Returns one argument."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return [self.one(item, True) for item in value]
        if type(value) in (int, float) and self._lifts and not inside and value not in _UNTOUCHED:
            dtype = torch.float64 if type(value) is float else torch.int64
            return self._number(dtype, value)
        return value

    def _number(self, dtype: torch.dtype, example: Any) -> Slot:
        self._numbers += 1
        return Slot(self._numbers - 1, Geometry(dtype, (), ()), True, example)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.get_device() < 0:
            if not is_wrapped_number(tensor):
                return self._number(tensor.dtype, None)
            return self._number(tensor.dtype, tensor.item()) if self._lifts else tensor.item()
        self._tensors += 1
        position = self._tensors - 1
        return Slot(self._same.get(position, position), Geometry(tensor.dtype, tuple(tensor.shape), tensor.stride()))


# what a call writes


def _targets(
    found: Arguments, written: Sequence[torch.Tensor]
) -> tuple[tuple[int, ...], list[tuple[torch.Tensor, torch.Tensor]]]:
    """Returns which tensors are written, and copies of those that share bytes with them and are read."""
    tensors = found.tensors
    targets = []
    changed = []
    for target in written:
        index = next(i for i, t in enumerate(tensors) if t is target)
        targets.append(index)
        if not target.is_contiguous() and lies_twice(target.shape, target.stride()):
            raise RuntimeError(MEETS_ITSELF)
        slab = slab_of(target.untyped_storage())
        for position, other in enumerate(tensors):
            if other is target:
                if position != index:
                    found.same[position] = index
                    found.key.append((position, index))
            elif slab_of(other.untyped_storage()) is slab and _overlap(target, other):
                changed.append((other, other.clone()))
    return tuple(targets), changed


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    first, second = a.storage_offset() * a.itemsize, b.storage_offset() * b.itemsize
    return (
        first < second + extent(b.shape, b.stride()) * b.itemsize
        and second < first + extent(a.shape, a.stride()) * a.itemsize
    )


def _swapped(args: Any, kwargs: Any, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    def swap(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(swap(item) for item in value)
        return next((new for old, new in pairs if value is old), value)

    return swap(tuple(args)), {name: swap(value) for name, value in kwargs.items()}


def kernel(op: OpOverload) -> Callable[..., Any]:
    """Returns the kernel of an overload, as torch calls it."""
    signature = signature_of(op)

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(signature, args, kwargs)

    return run


def any_kernel(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Returns what an overload returns that has no kernel of its own here."""
    return call(signature_of(op), args, kwargs)


__all__ = ["any_kernel", "call", "kernel"]
