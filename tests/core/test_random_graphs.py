"""Random valid graphs of many ops against NumPy: views of views, several outputs, strided and in-place results."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import LEVEL_0, Array, on_simulator
from tests.core.random_graphs import Grown, grown
from tests.core.recipe_interpreter import run_program
from umd_core.device.order import command_order
from umd_core.ir import Graph, TensorDesc
from umd_core.translate import translate


def interpreted(graph: Graph, arguments: list[Array]) -> list[Array]:
    return run_program(translate(graph, caps=LEVEL_0), arguments)


def simulated(graph: Graph, arguments: list[Array]) -> list[Array]:
    return on_simulator(translate(graph), arguments)


def checked(graph: Graph, arguments: list[Array]) -> list[Array]:
    """Runs the commands in several legal orders over poisoned memory; whatever is read unwritten is an error."""
    return on_simulator(translate(graph), arguments, "sim:0?strict=1&seed=7")


WAYS: dict[str, Callable[[Graph, list[Array]], list[Array]]] = {
    "program": interpreted,
    "sim": simulated,
    "strict": checked,
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=150)
@given(case=grown())
def test_a_random_graph_computes_what_numpy_does(way: str, case: tuple[Grown, list[Array]]) -> None:
    g, wanted = case
    results = WAYS[way](g.graph, g.arguments)
    assert len(results) == len(wanted)
    for got, want in zip(results, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)


@settings(max_examples=100)
@given(case=grown(), seed=st.integers(0, 2**32))
def test_any_legal_order_gives_the_same(case: tuple[Grown, list[Array]], seed: int) -> None:
    g, wanted = case
    buffer = translate(g.graph, caps=LEVEL_0)
    order = command_order(buffer.commands, random.Random(seed).randrange)
    assert sorted(order) == list(range(len(buffer.commands)))
    for got, want in zip(run_program(buffer, g.arguments, order), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_missing_dependency_would_be_noticed() -> None:
    """Without its dependencies a program may compute something else: backwards, this one does."""
    graph = Graph()
    x = graph.input("x", TensorDesc("f32", (3,)))
    graph.output(graph.add("MatMul", [graph.add("umd.Expm1", [x]), graph.add("Neg", [x])]))
    buffer = translate(graph, caps=LEVEL_0)
    value = np.arange(3, dtype=np.float32)
    right = run_program(buffer, [value])[0]
    wrong = run_program(buffer, [value], reversed(range(len(buffer.commands))))[0]
    assert any(command.deps for command in buffer.commands)
    assert not np.array_equal(right, wrong)


def test_two_inputs_change_places() -> None:
    graph = Graph()
    a, b = (graph.input(name, TensorDesc("f32", (3,))) for name in "ab")
    graph.output(b, alias=a)
    graph.output(a, alias=b)
    results = interpreted(graph, [np.full(3, 1, np.float32), np.full(3, 2, np.float32)])
    assert [r.tolist() for r in results] == [[2.0] * 3, [1.0] * 3]


def test_an_input_that_is_replaced_may_also_be_returned_as_it_was() -> None:
    graph = Graph()
    x = graph.input("x", TensorDesc("f32", (2, 3)))
    graph.output(graph.add("Transpose", [x]))
    graph.output(graph.add("Add", [x, x]), alias=x)
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    before, after = interpreted(graph, [value])
    np.testing.assert_array_equal(before, value.T)
    np.testing.assert_array_equal(after, value + value)


def test_an_input_is_reversed_in_place() -> None:
    graph = Graph()
    x = graph.input("x", TensorDesc("f32", (4,)))
    graph.output(graph.add("umd.Flip", [x], {"axes": [0]}), alias=x)
    (y,) = interpreted(graph, [np.arange(4, dtype=np.float32)])
    assert y.tolist() == [3.0, 2.0, 1.0, 0.0]


def test_a_backwards_input_is_overwritten_where_it_lies() -> None:
    array = np.arange(6, dtype=np.float32)[::-2]
    graph = Graph()
    x = graph.input("x", TensorDesc.of(array))
    graph.output(graph.add("Add", [x, x]), TensorDesc.of(array), alias=x)
    (y,) = interpreted(graph, [array])
    assert y.tolist() == [10.0, 6.0, 2.0]


def test_a_value_that_a_scatter_starts_from_may_also_be_returned() -> None:
    graph = Graph()
    x = graph.input("x", TensorDesc("f32", (2, 2)))
    whole = graph.add("Neg", [x])
    index = graph.constant(np.zeros((1, 2), np.int64))
    graph.output(graph.add("ScatterElements", [whole, index, graph.constant(np.ones((1, 2), np.float32))]))
    graph.output(graph.add("umd.Flip", [whole], {"axes": [1]}))
    scattered, flipped = interpreted(graph, [np.arange(4, dtype=np.float32).reshape(2, 2)])
    assert scattered.tolist() == [[1.0, 1.0], [-2.0, -3.0]]
    assert flipped.tolist() == [[-1.0, 0.0], [-3.0, -2.0]]
