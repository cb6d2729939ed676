"""Shapes and costs of graphs."""

from __future__ import annotations

import pytest

from umd_core.errors import UndefinedValueError
from umd_core.inference import Cost, costs, infer, total_cost
from umd_core.ir import Graph, TensorDesc


def mlp() -> Graph:
    graph = Graph()
    x = graph.input("x", TensorDesc("f32", (8, 16)))
    w = graph.input("w", TensorDesc("f32", (16, 4)))
    graph.output(graph.add("Relu", [graph.add("MatMul", [x, w], outputs=["product"])], outputs=["y"]))
    return graph


def test_every_value_is_described() -> None:
    descs = infer(mlp())
    assert descs["product"] == descs["y"] == TensorDesc("f32", (8, 4))


def test_cost_counts_operations_and_bytes_once() -> None:
    matmul, relu = costs(mlp())
    assert matmul[0].op == "MatMul"
    assert matmul[1] == Cost(2 * 8 * 16 * 4, 4 * (8 * 16 + 16 * 4 + 8 * 4))
    assert relu[1] == Cost(8 * 4, 4 * 2 * 8 * 4)
    assert total_cost(mlp()).flops == 2 * 8 * 16 * 4 + 8 * 4


def test_an_undefined_value_is_named() -> None:
    graph = Graph()
    graph.add("Relu", ["x"])
    with pytest.raises(UndefinedValueError, match="'x'"):
        infer(graph)
