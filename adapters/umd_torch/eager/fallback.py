"""What the device lacks runs on the CPU: counted, said once, forbidden by `strict`."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from umd_core.errors import UmdError, UnsupportedError
from umd_torch.counters import counters
from umd_torch.eager.devices import NAME, EagerDevice, device_at, device_of, options
from umd_torch.eager.signatures import Signature
from umd_torch.graphs import TORCH
from umd_torch.partition import FallbackWarning

aten = torch.ops.aten
_OWN = os.path.dirname(os.path.dirname(__file__))
_said: set[str] = set()

READS_VALUES = frozenset((aten.nonzero.default, aten.equal.default))
"""Ops whose results are read on the host in any case: the size of one, the truth of the other. `strict` lets them."""


def reason_of(error: UmdError) -> str:
    """Returns why an op cannot run on the device, in a few words."""
    return str(error.facts().get("why") or error.facts().get("reason") or error)


def run(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], reason: str) -> Any:
    """Returns what torch's own CPU kernel returns, carried to the device; what it writes is written back.

    Raises:
        UnsupportedError: with `strict`; or the results are none that the device can hold.
        Exception: what torch says is wrong.
    """
    if signature.op not in READS_VALUES:
        if options.strict:
            raise UnsupportedError(
                f"{reason} (umd_torch.connect(strict=False) lets it run on the CPU)", op=signature.name
            )
        counters.fallbacks[signature.name] += 1
        _say(signature.name, reason)
    carrier = _Carrier()
    on_host = pytree.tree_map(carrier.down, (tuple(args), dict(kwargs)))
    with torch.no_grad():
        result = signature.op(*on_host[0], **on_host[1])
    carrier.write_back(signature, args, kwargs)
    return pytree.tree_map(carrier.up, result)


class _Carrier:
    """Carries tensors to the CPU, and results back to where the arguments were."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._own: dict[int, torch.Tensor] = {}
        self._home: EagerDevice | None = None

    def down(self, leaf: Any) -> Any:
        """Returns an argument as the CPU takes it."""
        from umd_torch.eager.transfers import to_host  # noqa: PLC0415  # which calls ops, which may end here

        if isinstance(leaf, torch.device) and leaf.type == NAME:
            self._home = self._home or device_of(leaf)
            return torch.device("cpu")
        if not isinstance(leaf, torch.Tensor) or leaf.get_device() < 0:
            return leaf
        if id(leaf) not in self._pairs:
            self._home = device_at(leaf.get_device())
            on_host = to_host(leaf)
            self._pairs[id(leaf)] = (leaf, on_host)
            self._own[id(on_host)] = leaf
        return self._pairs[id(leaf)][1]

    def write_back(self, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Writes what the CPU has written."""
        from umd_torch.eager.tensors import grow  # noqa: PLC0415  # as above
        from umd_torch.eager.transfers import write  # noqa: PLC0415  # as above

        for target in pytree.tree_leaves(signature.written(tuple(args), dict(kwargs))):
            if isinstance(target, torch.Tensor) and id(target) in self._pairs:
                changed = self._pairs[id(target)][1]
                if changed.shape != target.shape:
                    grow(target, tuple(changed.shape))
                write(changed, target)

    def up(self, leaf: Any) -> Any:
        """Returns a result on the device; an argument that is returned is the argument."""
        from umd_torch.eager.transfers import to_device  # noqa: PLC0415  # as above

        if not isinstance(leaf, torch.Tensor):
            return leaf
        own = self._own.get(id(leaf))
        return to_device(leaf, self._home or device_of(None)) if own is None else own


def _say(name: str, reason: str) -> None:
    """Says once that an op runs on the CPU, from which line, and how to forbid or silence it."""
    if name in _said:
        return
    _said.add(name)
    place = _line()
    warnings.warn(
        f"{name}{place} runs on the CPU: {reason}. umd_torch.connect(strict=True) forbids that; "
        "warnings.simplefilter('ignore', umd_torch.FallbackWarning) silences this",
        FallbackWarning,
        stacklevel=2,
    )


def _line() -> str:
    """Returns " at file:line" of the caller's code."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith((TORCH, _OWN)):
        frame = frame.f_back
    return "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"


def forget() -> None:
    """Lets every warning be given once more."""
    _said.clear()
