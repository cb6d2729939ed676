"""Results of a graph that share their memory, as torch has them: one is computed, the others are views of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from umd_torch.layouts import is_dense, layout_of
from umd_torch.symbols import Bound, evaluate, is_symbolic
from umd_torch.torch_private import storage_key


@dataclass(frozen=True, slots=True)
class Alias:
    """A result that is seen through another.

    Attributes:
        base: position of the result whose memory it is.
        value: the tensor that tracing saw; None where it is the base itself.
    """

    base: int
    value: torch.Tensor | None


def split_off(module: fx.GraphModule, kept: Collection[int]) -> tuple[fx.GraphModule, Mapping[int, Alias]]:
    """Returns the graph with one result for all that share their memory, and what the others are, by position.

    That result is the tensor that the memory was made for; the places of the others are None. Results at the positions
    in `kept` stay as they are, and so do those in an input's memory: torch makes these itself.
    """
    output = module.graph.output_node()
    returned: Sequence[Any] = output.args[0]  # type: ignore[assignment]  # one flat tuple
    sharing: defaultdict[int, list[int]] = defaultdict(list)
    for position, node in enumerate(returned):
        if position not in kept and _has_memory(_seen(node)):
            sharing[storage_key(_seen(node))].append(position)
    owners = _owners(module, {key for key, positions in sharing.items() if len(positions) > 1})
    aliases: dict[int, Alias] = {}
    results = list(returned)
    for key, owner in owners.items():
        base, *others = sharing[key]
        for position in (base, *others):
            node, results[position] = results[position], None
            aliases[position] = Alias(base, None if node is owner else node.meta["val"])
        results[base] = owner
    return (_returning(module, results), aliases) if aliases else (module, {})


def around(
    run: Callable[[list[Any]], list[Any]], aliases: Mapping[int, Alias], bound: Bound
) -> Callable[[list[Any]], list[Any]]:
    """Returns what runs a graph of `split_off` for one set of sizes, and returns what the graph before it did."""
    views = [(position, alias.base, _view_of(alias.value, bound)) for position, alias in aliases.items()]

    def call(arguments: list[Any]) -> list[Any]:
        results = list(run(arguments))
        bases = {base: results[base] for _, base, _ in views}
        with torch.no_grad():
            for position, base, view in views:
                results[position] = bases[base] if view is None else bases[base].as_strided(*view)
        return results

    return call


def _view_of(value: torch.Tensor | None, bound: Bound) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """Returns shape, strides and offset in elements, None for the whole."""
    if value is None:
        return None
    layout = layout_of(value, bound)
    return layout.shape, layout.strides, int(evaluate(value.storage_offset(), bound))


def _seen(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def _has_memory(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _owners(module: fx.GraphModule, keys: Collection[int]) -> dict[int, fx.Node]:
    """Returns the node that made each memory, where it fills it without gaps and all tensors have its type."""
    made: dict[int, fx.Node] = {}
    mixed: set[int] = set()
    for node in module.graph.nodes if keys else ():
        value = _seen(node)
        if _has_memory(value) and storage_key(value) in keys:
            owner = made.setdefault(storage_key(value), node)
            if owner.op != "call_function" or value.dtype is not owner.meta["val"].dtype:
                mixed.add(storage_key(value))
    return {key: node for key, node in made.items() if key not in mixed and _fills(node.meta["val"])}


def _fills(value: torch.Tensor) -> bool:
    """Returns whether a tensor fills its memory from the start, as far as its sizes are known."""
    offset, sizes = value.storage_offset(), (*value.shape, *value.stride())
    if is_symbolic(offset) or offset:
        return False
    return any(is_symbolic(size) for size in sizes) or is_dense(tuple(value.shape), tuple(value.stride()))


def _returning(module: fx.GraphModule, results: list[Any]) -> fx.GraphModule:
    """Returns a copy of the graph with other results."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    graph.output(tuple(copies[item] if isinstance(item, fx.Node) else item for item in results))
    return fx.GraphModule(module, graph, type(module).__name__)
