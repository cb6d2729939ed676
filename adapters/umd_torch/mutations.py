"""What the host can do itself of what a graph does, so that fewer bytes travel: changes in place, and joining."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from umd_core.ir import Graph, contiguous_strides
from umd_torch.builder import Value
from umd_torch.host import Bytes, array_at, byte_count
from umd_torch.layouts import Layout, layout_of
from umd_torch.symbols import Bound, evaluate
from umd_torch.torch_private import map_aggregate, unset_fake_temporarily

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


class Outputs:
    """The outputs of a graph by what they are."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._numbers = {(o.value, o.desc): number for number, o in enumerate(graph.outputs)}

    def number(self, wanted: Wanted) -> int:
        """Returns the number of the output that gives a tensor, declared where there is none."""
        key = (wanted.value.name, wanted.layout.desc)
        if key not in self._numbers:
            self._numbers[key] = len(self._graph.outputs)
            self._graph.output(*key)
        return self._numbers[key]


class Landing:
    """Where tensors lie that the device sends for what the host does with them; every call fills them anew."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._tensors: dict[int, torch.Tensor] = {}

    def of(self, wanted: Wanted) -> torch.Tensor:
        """Returns the tensor, without gaps."""
        number, layout = self._outputs.number(wanted), wanted.layout
        if number not in self._tensors:
            strides = layout.strides if layout.dense else contiguous_strides(layout.shape)
            with unset_fake_temporarily():  # torch is tracing
                self._tensors[number] = torch.empty_strided(layout.shape, strides, dtype=layout.dtype)
        return self._tensors[number]

    def memory(self) -> Iterator[tuple[int, Bytes]]:
        """Yields outputs and the bytes of their tensors."""
        for number, tensor in self._tensors.items():
            yield number, array_at(tensor.data_ptr(), byte_count(tensor))


@dataclass(frozen=True, slots=True)
class Replay:
    """What a graph does, as the host repeats it: `change(*arguments)`, or `change(tensor, *arguments)` in place.

    Attributes:
        change: what does it.
        arguments: a FromHost or a Wanted stands for each tensor.
        wanted: those that the device has to send.
    """

    change: Callable[..., Any]
    arguments: tuple[Any, ...]
    wanted: tuple[Wanted, ...]

    def filler(self, landing: Landing) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Returns what puts the caller's tensors, and those that the device has sent, in their places."""
        landed: Sequence[Any] = map_aggregate(self.arguments, lambda a: landing.of(a) if isinstance(a, Wanted) else a)
        places = list[FromHost]()
        map_aggregate(landed, lambda a: places.append(a) if isinstance(a, FromHost) else None)
        if not places:
            return lambda _: landed
        return lambda given: map_aggregate(landed, lambda a: given[a.position] if isinstance(a, FromHost) else a)


def replay_of(
    target: fx.Node, source: fx.Node, values: Mapping[fx.Node, Any], placeholders: Mapping[fx.Node, int], bound: Bound
) -> Replay | None:
    """Returns how the host can do to `target` what made `source` of it; None where that would send as much."""
    change = IN_PLACE.get(source.target)
    if change is None or source.args[0] is not target:
        return None
    return _repeated(change, source, source.args[1:], values, placeholders, bound)


def joined_of(
    source: fx.Node, values: Mapping[fx.Node, Any], placeholders: Mapping[fx.Node, int], bound: Bound
) -> Replay | None:
    """Returns how the host can join what it has to the rest of a result; None where that would send as much."""
    if source.target is not aten.cat.default:
        return None
    types = {part.meta["val"].dtype for part in source.args[0]}  # type: ignore[union-attr]  # a list of tensors
    return _repeated(_joined, source, source.args, values, placeholders, bound) if len(types) == 1 else None


def _joined(*arguments: Any) -> torch.Tensor:
    joined: torch.Tensor = aten.cat.default(*arguments)
    return joined


def _repeated(
    change: Callable[..., Any],
    source: fx.Node,
    items: tuple[Any, ...],
    values: Mapping[fx.Node, Any],
    placeholders: Mapping[fx.Node, int],
    bound: Bound,
) -> Replay | None:
    """Returns a node's work as the host repeats it with these arguments; None where that would send as much."""
    if source.kwargs:
        return None
    wanted: list[Wanted] = []
    changed: list[fx.Node] = []

    def operand(item: Any) -> Any:
        if not isinstance(item, fx.Node):
            return evaluate(item, bound)
        if _is_changed(item):
            changed.append(item)
        if not isinstance(values[item], Value):
            return values[item]
        if item in placeholders:
            return FromHost(placeholders[item])
        wanted.append(Wanted(values[item], layout_of(item.meta["val"], bound)))
        return wanted[-1]

    arguments = map_aggregate(items, operand)
    whole = layout_of(source.meta["val"], bound).desc.byte_size
    if changed or 2 * sum(w.layout.desc.byte_size for w in wanted) > whole:
        return None
    return Replay(change, tuple(arguments), tuple(wanted))


def _is_changed(item: fx.Node) -> bool:
    """Returns whether an operand is itself overwritten by the graph."""
    return any(user.target is OVERWRITE and user.args[0] is item for user in item.users)
