"""A graph under change: who makes and reads each value, what it is, and the few changes that passes make."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from umd_core.errors import UndefinedValueError
from umd_core.inference import constant_desc, define
from umd_core.ir import Array, Attributes, Graph, Node, Output, TensorDesc
from umd_core.ops import CHECKS

Evaluate = Callable[[str, Sequence[Array | None], Mapping[str, Any]], Sequence[Array]]
"""(op, inputs, attributes) → the results that are not optional. None stands for an input that is left out."""


class Editor:
    """A copy of a graph that passes change.

    Attributes:
        graph: the copy. Its nodes are replaced, never changed.
        evaluate: computes an op on the host; None: nothing is computed.
    """

    def __init__(
        self, graph: Graph, evaluate: Evaluate | None = None, descs: Mapping[str, TensorDesc] | None = None
    ) -> None:
        self.graph: Graph = duplicate(graph)
        self.evaluate = evaluate
        self._taken = {*graph.inputs, *graph.constants, *(name for node in graph.nodes for name in node.outputs)}
        self._renamed: dict[str, str] = {}
        # of nodes that are gone too: no change makes a name stand for another thing
        self._descs = {**(descs or {}), **graph.inputs}
        self._is_pruned = False  # whether nodes that no output needs have ever been left out
        self._is_edited = False  # since the last refresh
        self._look()

    def refresh(self) -> None:
        """Looks at the graph anew: applies what was renamed, drops nodes that check nothing and no output needs."""
        if self._is_pruned and not self._is_edited:
            return
        graph, renamed = self.graph, self._renamed
        graph.outputs = [Output(self._final(o.value), o.desc, o.alias) for o in graph.outputs]
        needed = {output.value for output in graph.outputs}
        live: list[Node] = []
        for node in reversed(graph.nodes):
            if needed.isdisjoint(node.outputs) and node.op not in CHECKS:
                continue
            if renamed and not renamed.keys().isdisjoint(node.inputs):
                node = _with_inputs(node, tuple([self._final(name) for name in node.inputs]))
            live.append(node)
            needed.update(node.inputs)
        is_same = not self._is_edited and len(live) == len(graph.nodes)
        graph.nodes = live[::-1]
        graph.constants = {name: value for name, value in graph.constants.items() if name in needed}
        renamed.clear()
        self._is_pruned, self._is_edited = True, False
        if not is_same:
            self._look()

    def _look(self) -> None:
        graph = self.graph
        self._makers = {name: node for node in graph.nodes for name in node.outputs if name}
        self._readers: defaultdict[str, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for name in node.inputs:
                readers = self._readers[name]
                if not readers or readers[-1] is not node:
                    readers.append(node)
        self._results = {output.value for output in graph.outputs}
        self._ops = {node.op for node in graph.nodes}
        self._undescribed = iter(list(graph.nodes))

    def _final(self, name: str) -> str:
        while name in self._renamed:
            name = self._renamed[name]
        return name

    # looking

    def maker(self, name: str, *ops: str) -> Node | None:
        """Returns the node that makes a value, if it is one of these ops (any, when none is named)."""
        node = self._makers.get(self._final(name))
        return node if node is not None and (not ops or node.op in ops) else None

    def desc(self, name: str) -> TensorDesc:
        """Returns what a value is. Nodes are looked at in program order, no further than needed.

        Raises:
            UmdError: an op refuses its inputs.
        """
        descs = self._descs
        while (found := descs.get(name)) is None:
            constant = self.graph.constants.get(name)
            if constant is not None:
                descs[name] = constant_desc(constant)
                continue
            node = next(self._undescribed, None)
            if node is None:
                raise UndefinedValueError(self.graph.name, name)
            if any(output and output not in descs for output in node.outputs):
                for value in node.inputs:
                    if value not in descs and value in self.graph.constants:
                        descs[value] = constant_desc(self.graph.constants[value])
                define(self.graph, descs, node)
        return found

    def has(self, *ops: str) -> bool:
        """Returns whether the graph has a node of one of these ops."""
        return not self._ops.isdisjoint(ops)

    def constant(self, name: str) -> Array | None:
        """Returns the value of a constant, None for anything else."""
        return self.graph.constants.get(self._final(name))

    def scalar(self, name: str) -> float | None:
        """Returns the number of a constant of one element, None for anything else."""
        value = self.constant(name)
        if value is None or value.size != 1 or value.dtype.kind in "OSU":
            return None
        return float(value.reshape(-1)[0])

    def is_private(self, name: str, readers: Iterable[Node]) -> bool:
        """Returns whether no one but these nodes reads a value, and it is no output."""
        own = {id(node) for node in readers}
        return name not in self._results and all(id(node) in own for node in self._readers.get(name, ()))

    def readers(self, name: str) -> tuple[Node, ...]:
        """Returns the nodes that read a value."""
        return tuple(self._readers.get(name, ()))

    def only_reader(self, name: str) -> Node | None:
        """Returns the node that alone reads a value, once; None when there are others, or it is an output."""
        readers = self._readers.get(name, ())
        if len(readers) != 1 or name in self._results or readers[0].inputs.count(name) != 1:
            return None
        return readers[0]

    def has_one_reader(self, name: str) -> bool:
        """Returns whether one node alone reads a value, once."""
        return self.only_reader(name) is not None

    # changing; the methods above see the graph as it was at the last `refresh`, which still tells the truth: a change
    # never changes what a name stands for

    def replace(self, old: str, new: str) -> None:
        """Lets every reader of a value, and every output, take another value."""
        self._renamed[old] = new
        self._is_edited = True

    def put(self, node: Node, op: str, inputs: Sequence[str], attributes: Attributes | None = None) -> None:
        """Puts another node in the place of one; its first output keeps the name, others are gone."""
        made = Node(op, tuple(inputs), node.outputs[:1], dict(attributes or {}), node.name, node.source)
        self.graph.nodes[self._position(node)] = made
        self._is_edited = True

    def add(
        self, before: Node, op: str, inputs: Sequence[str], attributes: Attributes | None = None, count: int = 1
    ) -> tuple[str, ...]:
        """Adds a node before another, as part of what that one stands for; returns the names of its outputs."""
        outputs = tuple(self._fresh(op) for _ in range(count))
        made = Node(op, tuple(inputs), outputs, dict(attributes or {}), before.name, before.source)
        self.graph.nodes.insert(self._position(before), made)
        self._is_edited = True
        return outputs

    def drop(self, nodes: Iterable[Node]) -> None:
        """Takes nodes out whose values are constants now."""
        gone = {id(node) for node in nodes}
        if not gone:
            return
        self._is_edited = True
        self.graph.nodes = [node for node in self.graph.nodes if id(node) not in gone]

    def add_constant(self, value: Array) -> str:
        """Adds a constant and returns its name."""
        self._is_edited = True
        return self.graph.constant(np.asarray(value), self._fresh("constant"))

    def _fresh(self, stem: str) -> str:
        number = len(self._taken)
        while f"{stem}_{number}" in self._taken:
            number += 1
        name = f"{stem}_{number}"
        self._taken.add(name)
        return name

    def _position(self, node: Node) -> int:
        return next(at for at, found in enumerate(self.graph.nodes) if found is node)


def duplicate(graph: Graph) -> Graph:
    """Returns a graph that may be changed without the other seeing it; nodes and arrays are shared."""
    result = copy.copy(graph)
    result.inputs, result.constants = dict(graph.inputs), dict(graph.constants)
    result.nodes, result.outputs = list(graph.nodes), list(graph.outputs)
    return result


def _with_inputs(node: Node, inputs: tuple[str, ...]) -> Node:
    return Node(node.op, inputs, node.outputs, node.attributes, node.name, node.source)
