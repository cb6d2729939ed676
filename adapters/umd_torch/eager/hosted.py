"""What a graph over tensors of the device does with tensors of the CPU alone: torch's own CPU kernels do it.

Optimizers count their steps so, and numbers that vary come as tensors without dimensions.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from umd_core.errors import UnsupportedError
from umd_torch.mutations import OVERWRITE
from umd_torch.nodes import holds_keys
from umd_torch.symbols import Bound, evaluate, is_symbolic
from umd_torch.torch_private import OpOverload, map_aggregate, schema_of

_NAMESPACES = ("aten", "prims")
"""Whose ops have CPU kernels."""


class Found(NamedTuple):
    """What one call gave: tensors that the device needs, results, and (position, value) of what arguments become."""

    given: Sequence[torch.Tensor]
    results: Mapping[fx.Node, Any]
    writes: Sequence[tuple[int, torch.Tensor]]


_NOTHING = Found((), {}, ())


class HostPart:
    """The nodes of a graph that compute tensors of the CPU from arguments on the CPU.

    What the device computes for the CPU, and what is drawn at random, is none of it.

    Attributes:
        given: nodes whose tensors the device needs, placeholders among them.
        results: nodes that the graph returns.
        left: nodes that are not lowered: all of the host's, and constants that the device does not need.
    """

    def __init__(self, module: fx.GraphModule, bound: Bound) -> None:
        graph = module.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        own, constant = _nodes(graph, bound)
        here = own | constant
        returned: Any = graph.output_node().args[0]
        items = returned if isinstance(returned, (tuple, list)) else (returned,)
        self.given = [n for n in graph.nodes if n in own and _is_tensor(n) and _leaves(n, here)]
        self.results = [n for n in dict.fromkeys(items) if n in here and n.op != "placeholder" and not _overwrites(n)]
        self.left = frozenset(own | _unneeded(graph, constant, own))
        overwrites = [n for n in graph.nodes if n in own and _overwrites(n)]
        acts = [n for n in graph.nodes if n in own and n.meta.get("val") is None]
        self._arguments = [i for i, n in enumerate(placeholders) if n in own]
        self._written = [placeholders.index(n.args[0]) for n in overwrites]
        self._is_idle = not (self.given or self.results or overwrites or acts)
        wanted = (self.given, self.results, [n.args[1] for n in overwrites])
        self._run = _extracted(module, bound, [placeholders[i] for i in self._arguments], wanted, acts)

    def __call__(self, arguments: Sequence[Any]) -> Found:
        """Returns what the nodes compute; arguments are not changed yet."""
        if self._is_idle:
            return _NOTHING
        given, results, sources = self._run(*[arguments[position] for position in self._arguments])
        return Found(
            given, dict(zip(self.results, results, strict=True)), list(zip(self._written, sources, strict=True))
        )


def _nodes(graph: fx.Graph, bound: Bound) -> tuple[set[fx.Node], set[fx.Node]]:
    """Returns the nodes that the host computes from its arguments, and those that depend on no tensor argument."""
    own: set[fx.Node] = set()
    constant: set[fx.Node] = set()
    for node in graph.nodes:
        if _is_number(node):
            if _is_known(node, bound):
                constant.add(node)
        elif node.op == "placeholder":
            if _is_here(node) and not holds_keys(node):
                own.add(node)
        elif node.op == "get_attr":
            if _is_here(node):
                constant.add(node)
        elif node.op == "call_function" and _is_here(node) and _has_kernel(node):
            inputs = node.all_input_nodes
            if all(n in own or n in constant for n in inputs):
                (own if any(n in own for n in inputs) else constant).add(node)
    return own, constant


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return is_symbolic(value) or isinstance(value, (int, float))


def _is_known(node: fx.Node, bound: Bound) -> bool:
    try:
        evaluate(node.meta["val"], bound)
    except UnsupportedError:  # it depends on data
        return False
    return True


def _is_here(node: fx.Node) -> bool:
    """Returns whether a node gives nothing but tensors of the CPU; a call may give nothing at all."""
    tensors = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    return all(tensor.device.type == "cpu" for tensor in tensors) and (bool(tensors) or node.op == "call_function")


def _has_kernel(node: fx.Node) -> bool:
    """Returns whether torch can run a node on the CPU, and gives the same whenever it does."""
    target = node.target
    if not isinstance(target, OpOverload):
        return target is operator.getitem
    if schema_of(target).is_mutable:
        return _overwrites(node) and node.args[0].op == "placeholder"  # type: ignore[union-attr]  # a node
    return target.namespace in _NAMESPACES and torch.Tag.nondeterministic_seeded not in target.tags


def _overwrites(node: fx.Node) -> bool:
    return node.target is OVERWRITE


def _leaves(node: fx.Node, here: Collection[fx.Node]) -> bool:
    """Returns whether something reads a node that is not computed on the host."""
    return any(user not in here and user.op != "output" for user in node.users)


def _unneeded(graph: fx.Graph, constant: Collection[fx.Node], own: Collection[fx.Node]) -> set[fx.Node]:
    """Returns constants that the host alone reads, or returns."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node not in constant or node.op != "call_function" or not _is_tensor(node):
            continue
        if all(user in own or user in found or user.op == "output" for user in node.users):
            found.add(node)
    return found


def _extracted(
    module: fx.GraphModule,
    bound: Bound,
    arguments: Sequence[fx.Node],
    wanted: tuple[Sequence[fx.Node], ...],
    acts: Sequence[fx.Node],
) -> fx.GraphModule:
    """Returns the part of a graph that gives these values; sizes are numbers in it. `acts` give nothing, but run."""
    needed = set(_closure([*(node for nodes in wanted for node in nodes), *acts]))
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {node: graph.placeholder(f"argument_{i}") for i, node in enumerate(arguments)}

    def copied(leaf: Any) -> Any:
        return copies[leaf] if isinstance(leaf, fx.Node) else evaluate(leaf, bound) if is_symbolic(leaf) else leaf

    for node in module.graph.nodes:
        if node in copies or node not in needed:
            continue
        if _is_number(node):
            copies[node] = evaluate(node.meta["val"], bound)
        elif _overwrites(node):  # it stands for what the argument becomes
            copies[node] = copies[node.args[1]]
        elif node.op == "get_attr":
            copies[node] = graph.get_attr(str(node.target))
        else:
            args, kwargs = map_aggregate((node.args, node.kwargs), copied)
            copies[node] = graph.call_function(node.target, args, kwargs)
    graph.output(tuple([copies[node] for node in nodes] for nodes in wanted))
    return fx.GraphModule(module, graph, "HostPart")


def _closure(nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
    """Yields nodes and what they depend on."""
    seen: set[fx.Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            yield node
            left += [] if _is_number(node) else node.all_input_nodes


__all__ = ["Found", "HostPart"]
