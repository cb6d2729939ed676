"""The numbers of a graph that sizes decide, each by its path.

They are extents, strides, integers in constants and attributes, and 0-d floating-point constants that are whole: what a
mean divides by, for example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from umd_core.dtypes import dtype
from umd_core.ir import Graph, TensorDesc

Path = tuple[str | int, ...]
LARGEST = 1024
"""Elements of a constant up to which each of them is a number of the graph."""
EXACT = 1 << 53
"""Up to here float64 has every whole number."""


def numbers_of(graph: Graph) -> tuple[Any, dict[Path, int]]:
    """Returns what a graph is apart from its numbers (comparable), and the numbers."""
    found: dict[Path, int] = {}

    def note(path: Path, value: int) -> int:
        found[path] = value
        return 0

    changed = rebuilt(graph, note)
    rest = (
        [(name, desc.dtype, desc.rank) for name, desc in changed.inputs.items()],
        [(name, value.dtype, value.shape, value.tobytes()) for name, value in changed.constants.items()],
        [(n.op, n.inputs, n.outputs, sorted(_comparable(n.attributes).items())) for n in changed.nodes],
        [(o.value, o.alias, o.desc and (o.desc.dtype, o.desc.rank)) for o in changed.outputs],
    )
    return rest, found


def replaced(graph: Graph, values: Mapping[Path, int]) -> Graph:
    """Returns a copy of a graph with the numbers at some paths replaced."""
    return rebuilt(graph, lambda path, value: values.get(path, value))


def rebuilt(graph: Graph, change: Callable[[Path, int], int]) -> Graph:
    """Returns a copy of a graph with each number replaced by what `change` makes of it."""
    copy = Graph(graph.name)
    copy.fuses = graph.fuses
    for name, desc in graph.inputs.items():
        copy.input(name, _desc(desc, ("input", name), change))
    for name, value in graph.constants.items():
        copy.constant(_constant(value, ("constant", name), change), name)
    for index, node in enumerate(graph.nodes):
        attributes = {n: _attribute(v, ("attribute", index, n), change) for n, v in node.attributes.items()}
        copy.add(node.op, node.inputs, attributes, outputs=node.outputs, name=node.name, source=node.source)
    for index, output in enumerate(graph.outputs):
        described = None if output.desc is None else _desc(output.desc, ("output", index), change)
        copy.output(output.value, described, alias=output.alias)
    return copy


def _desc(desc: TensorDesc, path: Path, change: Callable[[Path, int], int]) -> TensorDesc:
    shape = [change((*path, "shape", axis), extent) for axis, extent in enumerate(desc.shape)]
    if desc.is_contiguous:
        return TensorDesc(desc.dtype, shape)
    strides = [change((*path, "stride", axis), stride) for axis, stride in enumerate(desc.strides)]
    return TensorDesc(desc.dtype, shape, strides, desc.element_offset)


def _constant(value: Any, path: Path, change: Callable[[Path, int], int]) -> Any:
    if _is_whole(value):
        return np.asarray(change((*path, 0), int(value))).astype(value.dtype)
    if value.dtype.kind != "i" or value.size > LARGEST:
        return value
    flat = [change((*path, index), int(element)) for index, element in enumerate(value.reshape(-1))]
    return np.array(flat, value.dtype).reshape(value.shape)


def _is_whole(value: Any) -> bool:
    """Returns whether a constant is one floating-point number that may be a count; -0.0 is none, nor is 1e30."""
    if value.ndim or not dtype(value.dtype).is_float:
        return False
    number = float(value)
    return number.is_integer() and abs(number) <= EXACT and (number != 0 or math.copysign(1.0, number) > 0)


def _attribute(value: Any, path: Path, change: Callable[[Path, int], int]) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return change(path, value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return tuple(change((*path, index), item) for index, item in enumerate(value))
    return value


def _comparable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {n: (v.dtype.str, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for n, v in attributes.items()}
