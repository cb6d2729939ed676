"""Torch's ops on lists of tensors, taken apart into the ops on each: what optimizers are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

aten = torch.ops.aten
_PREFIX = "_foreach_"
_ELEMENTWISE: dict[str, Any] = {"norm": aten.linalg_vector_norm, "zero": aten.zeros_like, "powsum": None}
"""What the op on one tensor is called where the name does not say it; None where torch has none."""


def _lists(overload: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Returns which arguments of an overload are lists, by position and by name."""
    named = [(i, a.name) for i, a in enumerate(overload._schema.arguments) if isinstance(a.type, torch.ListType)]
    return frozenset(i for i, _ in named), frozenset(name for _, name in named)


def apart(overload: Any, single: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Returns the decomposition of an op on lists: `single` for each element, what is no list for every one."""
    positions, names = _lists(overload)

    def decomposition(*args: Any, **kwargs: Any) -> list[Any]:
        def element(at: int) -> Any:
            given = [a[at] if i in positions and isinstance(a, (list, tuple)) else a for i, a in enumerate(args)]
            return single(*given, **{k: v[at] if k in names else v for k, v in kwargs.items()})

        return [element(at) for at in range(len(args[0]))]

    return decomposition


def _overloads() -> Iterator[tuple[Any, Callable[..., Any]]]:
    for attribute in dir(aten):
        name = attribute.removeprefix(_PREFIX)
        if name == attribute or name.endswith("_"):
            continue
        single = _ELEMENTWISE.get(name, getattr(aten, name, None))
        packet = getattr(aten, attribute)
        for overload in packet.overloads() if single is not None else ():
            found = getattr(packet, overload)
            if not found._schema.is_mutable:
                yield found, single


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {found: apart(found, single) for found, single in _overloads()}
"""Overload of a list op → its decomposition."""
