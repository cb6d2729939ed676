"""Torch's ops on lists of tensors, taken apart into the ops on each: what optimizers are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from umd_torch.torch_private import list_ops

aten = torch.ops.aten
_PREFIX = "_foreach_"


def _combined(op: Any) -> Callable[..., Any]:
    """Returns input + value · (x op y), whose value is a number or a 0-d tensor."""

    def single(input: Any, x: Any, y: Any, value: Any = 1) -> Any:
        if isinstance(value, torch.Tensor):
            return aten.add(input, aten.mul(op(x, y), value))
        return (aten.addcmul if op is aten.mul else aten.addcdiv)(input, x, y, value=value)

    return single


def _bounded(by_tensor: Any, by_number: Any) -> Callable[..., Any]:
    """Returns the larger, or smaller, of a tensor and a tensor or number."""
    return lambda x, bound: (by_tensor if isinstance(bound, torch.Tensor) else by_number)(x, bound)


_SINGLE: dict[str, Any] = {
    "maximum": _bounded(aten.maximum, aten.clamp_min),
    "minimum": _bounded(aten.minimum, aten.clamp_max),
    "norm": aten.linalg_vector_norm,
    "zero": aten.zeros_like,
    "addcmul": _combined(aten.mul),
    "addcdiv": _combined(aten.div),
}
"""The op on one tensor where its name or its arguments are not those of the op on lists."""


def apart(overload: Any, single: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Returns the decomposition of an op on lists: `single` for each element, what is no list for every one."""
    arguments = overload._schema.arguments
    several = frozenset(a.name for a in arguments if isinstance(a.type, torch.ListType) or a.name == "scalars")

    def decomposition(*args: Any, **kwargs: Any) -> list[Any]:
        positional = [(a.name in several, value) for a, value in zip(arguments, args, strict=False)]
        named = [(name, name in several, value) for name, value in kwargs.items()]
        count = next(len(value) for each, value in positional if each)
        return [
            single(*(v[i] if each else v for each, v in positional), **{n: v[i] if each else v for n, each, v in named})
            for i in range(count)
        ]

    return decomposition


def _overloads() -> Iterator[tuple[Any, Callable[..., Any]]]:
    for packet in list_ops():
        name = str(packet).removeprefix(f"aten.{_PREFIX}")
        single = _SINGLE.get(name, getattr(aten, name, None))
        if single is None:
            continue
        for overload in packet.overloads():
            found = getattr(packet, overload)
            if not found._schema.is_mutable:
                yield found, single


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {found: apart(found, single) for found, single in _overloads()}
"""Overload of a list op → its decomposition."""
