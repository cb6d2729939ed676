"""Inputs that a graph changes in place: on the device, and on the host from as few bytes as will do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from umd_torch.builder import Value
from umd_torch.layouts import Layout, layout_of
from umd_torch.symbols import Bound, evaluate
from umd_torch.torch_private import map_aggregate

aten = torch.ops.aten
OVERWRITE = aten.copy_.default
"""How a graph says that an input of it gets another value."""


def _slice(target: torch.Tensor, source: torch.Tensor, dim: int = 0, *bounds: Any) -> None:
    aten.slice(target, dim, *bounds).copy_(source)


def _select(target: torch.Tensor, source: torch.Tensor, dim: int, index: int) -> None:
    target.select(dim, index).copy_(source)


IN_PLACE: Mapping[Any, Callable[..., Any]] = {
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.slice_scatter.default: _slice,
    aten.select_scatter.default: _select,
}
"""What changes part of a tensor, and the same in place."""


@dataclass(frozen=True, slots=True)
class FromHost:
    """A tensor that the host has: the graph's placeholder number `position`."""

    position: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor that the device has to send, and how torch has it."""

    value: Value
    layout: Layout


@dataclass(frozen=True, slots=True)
class Replay:
    """A change of part of a tensor, as the host repeats it: `change(tensor, *arguments)`.

    Attributes:
        change: what changes it in place.
        arguments: a FromHost or a Wanted stands for each tensor.
        wanted: those that the device has to send.
    """

    change: Callable[..., Any]
    arguments: tuple[Any, ...]
    wanted: tuple[Wanted, ...]


def replay_of(
    target: fx.Node, source: fx.Node, values: Mapping[fx.Node, Any], placeholders: Mapping[fx.Node, int], bound: Bound
) -> Replay | None:
    """Returns how the host can do to `target` what made `source` of it; None where that would send as much."""
    change = IN_PLACE.get(source.target)
    if change is None or source.args[0] is not target or source.kwargs or any(map(_is_changed, source.args[1:])):
        return None
    wanted: list[Wanted] = []

    def operand(item: Any) -> Any:
        if not isinstance(item, fx.Node):
            return evaluate(item, bound)
        if not isinstance(values[item], Value):
            return values[item]
        if item in placeholders:
            return FromHost(placeholders[item])
        wanted.append(Wanted(values[item], layout_of(item.meta["val"], bound)))
        return wanted[-1]

    arguments = map_aggregate(source.args[1:], operand)
    whole = layout_of(target.meta["val"], bound).desc.byte_size
    if 2 * sum(w.layout.desc.byte_size for w in wanted) > whole:
        return None
    return Replay(change, tuple(arguments), tuple(wanted))


def _is_changed(item: Any) -> bool:
    """Returns whether an operand is itself overwritten by the graph."""
    return isinstance(item, fx.Node) and any(u.target is OVERWRITE and u.args[0] is item for u in item.users)
