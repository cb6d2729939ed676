"""What a graph computes twice for all sizes, computed once.

While sizes are open, constants and nodes that are equal for some sizes cannot be told from those that always are. Once
it is known how numbers follow from sizes, they can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from umd_core.ir import Graph
from umd_model.numbers import Path
from umd_model.sizes import Polynomial, Sizes


def merge(graph: Graph, sizes: Sizes) -> tuple[Graph, Sizes]:
    """Returns the graph without constants and nodes that equal earlier ones for all sizes, and its numbers' new paths.

    Inputs and outputs stay as they are.
    """
    merging = _Merging(graph, sizes)
    merging.run()
    return merging.made, Sizes(sizes.sizes, merging.numbers)


class _Merging:
    """The graph under construction, and what stands for each value that is no longer there."""

    def __init__(self, graph: Graph, sizes: Sizes) -> None:
        self._graph = graph
        self._open: dict[Path, dict[Path, Polynomial]] = {}
        for path, number in sizes.numbers.items():
            self._open.setdefault(path[:2], {})[path] = number
        self._names: dict[str, str] = {}
        self._seen: dict[Any, tuple[str, ...]] = {}
        self.made = Graph(graph.name)
        self.made.fuses = graph.fuses
        self.numbers: dict[Path, Polynomial] = {}

    def run(self) -> None:
        """Copies the graph."""
        graph, made = self._graph, self.made
        for name, desc in graph.inputs.items():
            made.input(name, desc)
            self.numbers.update(self._open.get(("input", name), {}))
        for name, value in graph.constants.items():
            open_numbers = self._open.get(("constant", name), {})
            if self._is_new((_comparable(value), _frozen(open_numbers)), (name,)):
                made.constant(value, name)
                self.numbers.update(open_numbers)
        for index in range(len(graph.nodes)):
            self._node(index)
        for index, output in enumerate(graph.outputs):
            made.output(self._names.get(output.value, output.value), output.desc, alias=output.alias)
            self.numbers.update(self._open.get(("output", index), {}))

    def _node(self, index: int) -> None:
        node, open_numbers = self._graph.nodes[index], self._open.get(("attribute", index), {})
        inputs = tuple(self._names.get(name, name) for name in node.inputs)
        attributes = tuple(sorted((name, _comparable(value)) for name, value in node.attributes.items()))
        wanted = tuple(map(bool, node.outputs))
        if not self._is_new((node.op, inputs, attributes, wanted, _frozen(open_numbers)), node.outputs):
            return
        place = len(self.made.nodes)
        self.made.add(node.op, inputs, node.attributes, outputs=node.outputs, name=node.name, source=node.source)
        self.numbers.update({("attribute", place, *path[2:]): number for path, number in open_numbers.items()})

    def _is_new(self, key: Any, names: tuple[str, ...]) -> bool:
        """Returns whether there was nothing equal; otherwise that stands for these names from now on."""
        first = self._seen.setdefault(key, names)
        if first is names:
            return True
        self._names.update((name, other) for name, other in zip(names, first, strict=True) if name)
        return False


def _comparable(value: Any) -> Any:
    """Returns what constants and attributes are compared by; 0.0, -0.0 and 0 are three."""
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    return repr(tuple(value) if isinstance(value, list) else value)


def _frozen(numbers: Mapping[Path, Polynomial]) -> tuple[Any, ...]:
    return tuple((path[2:], tuple(sorted(number.items()))) for path, number in numbers.items())
