"""Shapes, dtypes and costs of a graph, without translating it."""

from __future__ import annotations

from typing import NamedTuple

from umd_core.dtypes import dtype as to_dtype
from umd_core.errors import UndefinedValueError
from umd_core.ir import Array, Graph, Node, TensorDesc, row_major
from umd_core.ops import op_template
from umd_core.template import Call


class Cost(NamedTuple):
    """Floating-point operations, and bytes when every operand is read or written once."""

    flops: int
    bytes: int


def infer(graph: Graph) -> dict[str, TensorDesc]:
    """Returns the description of every value of the graph by name; contiguous except for the inputs.

    Raises:
        UmdError: an op refuses its inputs.
    """
    descs = known(graph)
    for node in graph.nodes:
        define(graph, descs, node)
    return descs


def costs(graph: Graph) -> list[tuple[Node, Cost]]:
    """Returns each node with its cost, in program order."""
    descs = known(graph)
    result = []
    for node in graph.nodes:
        call = define(graph, descs, node)
        result.append((node, Cost(*call.template.cost(call))))
    return result


def total_cost(graph: Graph) -> Cost:
    """Returns the sum over all nodes."""
    each = [cost for _, cost in costs(graph)]
    return Cost(sum(c.flops for c in each), sum(c.bytes for c in each))


def known(graph: Graph) -> dict[str, TensorDesc]:
    """Returns the descriptions of a graph's inputs and constants by name."""
    constants = {name: constant_desc(value) for name, value in graph.constants.items()}
    return {**constants, **graph.inputs}


def constant_desc(value: Array) -> TensorDesc:
    """Returns the description of a constant, as which it is row-major."""
    return row_major(to_dtype(value.dtype), value.shape)


def define(graph: Graph, descs: dict[str, TensorDesc], node: Node) -> Call:
    """Adds the descriptions of a node's outputs to those of what it reads; returns its call.

    Raises:
        UmdError: the op refuses its inputs.
    """
    for name in node.inputs:
        if name and name not in descs:
            raise UndefinedValueError(node.op, name)
    inputs = [descs[name] if name else None for name in node.inputs]
    values = [graph.constants.get(name) for name in node.inputs]
    call = op_template(node.op).call(inputs, node.attributes, values, [bool(name) for name in node.outputs])
    for name, desc in zip(node.outputs, call.outputs, strict=False):
        if name:
            descs[name] = desc
    return call
