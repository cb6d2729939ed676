"""Graphs that are kin: each gives the bytes that it gives alone, whatever the ones before it left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import Array
from tests.core.random_graphs import Grown, grown
from umd_core.errors import UmdError
from umd_core.ir import Graph, TensorDesc
from umd_core.linked import Kept
from umd_core.passes import optimise
from umd_core.passes.editor import duplicate
from umd_core.translate import Translator

Kin = dict[object, object]


def outcome(translator: Translator, graph: Graph, kin: Kin | None) -> bytes | type[Exception]:
    """Returns the bytes of a graph, or how it is refused."""
    graph = duplicate(graph)
    graph.kin = kin
    try:
        return bytes(translator.graph(graph))
    except UmdError as error:
        return type(error)


def check(graphs: Sequence[Graph]) -> None:
    translator, kin = Translator(), Kin()
    for graph in graphs:
        assert outcome(translator, graph, kin) == outcome(Translator(), graph, None)


@settings(max_examples=60)
@given(cases=st.lists(grown(), min_size=2, max_size=3), order=st.lists(st.integers(0, 2), min_size=3, max_size=6))
def test_graphs_whose_values_only_have_the_same_names(cases: list[tuple[Grown, list[Array]]], order: list[int]) -> None:
    check([cases[at % len(cases)][0].graph for at in order])


@st.composite
def changed(draw: st.DrawFn, graph: Graph) -> Graph:
    """Draws a graph that differs in a constant, an input's layout, a node's attribute, or its outputs."""
    graph = duplicate(graph)
    for name, value in graph.constants.items():
        if draw(st.integers(0, 3)) == 0:
            graph.constants[name] = (value + draw(st.integers(1, 2))).astype(value.dtype)
    for name, desc in graph.inputs.items():
        if draw(st.integers(0, 3)) == 0:
            axes = draw(st.permutations(range(desc.rank)))
            plain = np.empty([desc.shape[axis] for axis in axes], desc.dtype.numpy)
            graph.inputs[name] = TensorDesc.of(plain.transpose(np.argsort(axes)))
    for at, node in enumerate(graph.nodes):
        if "axis" in node.attributes and draw(st.integers(0, 3)) == 0:
            graph.nodes[at] = type(node)(node.op, node.inputs, node.outputs, {**node.attributes, "axis": 0})
    if len(graph.outputs) > 1 and draw(st.booleans()):
        graph.outputs.pop(draw(st.integers(0, len(graph.outputs) - 1)))
    return graph


@settings(max_examples=100)
@given(data=st.data(), case=grown())
def test_graphs_that_differ_a_little(data: st.DataObject, case: tuple[Grown, list[Array]]) -> None:
    first = case[0].graph
    second, third = data.draw(changed(first)), data.draw(changed(first))
    check([first, second, third, second, first])


def step(length: int, layers: int = 2) -> Graph:
    """Returns a model's step over a cache of `length` rows: little of it depends on that."""
    graph = Graph("step")
    x = graph.input("x", TensorDesc("f32", (1, 16)))
    for layer in range(layers):
        weight = graph.input(f"w{layer}", TensorDesc("f32", (16, 16)))
        cache = graph.input(f"cache{layer}", TensorDesc("f32", (length, 16)))
        row = graph.add("MatMul", [x, weight], name=f"rows{layer}")
        whole = graph.add("Concat", [cache, row], {"axis": 0}, name=f"whole{layer}")
        scores = graph.add("MatMul", [row, graph.add("Transpose", [whole], {"perm": (1, 0)})])
        flat = graph.add("Reshape", [scores, graph.constant(np.array([length + 1], np.int64))])
        chances = graph.add("Reshape", [graph.add("Softmax", [flat]), graph.constant(np.array([1, -1], np.int64))])
        mixed = graph.add("MatMul", [chances, whole])
        x = graph.add("Add", [x, graph.add("Tanh", [graph.add("Mul", [mixed, graph.constant(np.float32(0.5))])])])
        graph.output(whole)
    graph.output(x)
    graph.fuses = True
    return graph


@given(lengths=st.lists(st.integers(1, 40), min_size=2, max_size=6), passes=st.booleans())
def test_other_sizes(lengths: list[int], passes: bool) -> None:
    graphs = [step(length) for length in lengths]
    check([optimise(graph).graph if passes else graph for graph in graphs])


def test_what_sizes_do_not_change_is_not_looked_up_again() -> None:
    translator, kin = Translator(), Kin()
    counts = []
    for length in (7, 8, 9, 9):
        before = translator.recipes.hits + translator.recipes.misses
        assert isinstance(outcome(translator, step(length), kin), bytes)
        counts.append(translator.recipes.hits + translator.recipes.misses - before)
    assert counts[0] == len(step(7).nodes)
    assert counts[1:3] == [14, 14]  # seven nodes of each layer see the cache
    assert counts[3] == 4  # two of them reshape to constants, which are other arrays here


def test_translators_keep_their_own() -> None:
    class Less:
        def supports(self, name: str, types: object) -> bool:
            return name != "softmax_kernel"

    kin, graph = Kin(), step(5)
    for translator in (Translator(), Translator(Less()), Translator()):
        assert outcome(translator, graph, kin) == outcome(Translator(translator.caps), graph, None)


@pytest.mark.parametrize("second", [True, 1, 1.0], ids=["truth", "whole", "float"])
def test_equal_attributes_of_other_types_are_not_the_same(second: object) -> None:
    def graph(keep: object) -> Graph:
        made = Graph("sums")
        x = made.input("x", TensorDesc("f32", (3, 4)))
        made.output(made.add("ReduceSum", [x], {"keepdims": keep}, name="sum"))
        return made

    check([graph(0), graph(second), graph(False), graph(second)])


def test_as_much_is_kept_as_one_graph_needs() -> None:
    translator, kin = Translator(), Kin()
    for length in range(1, 60):
        outcome(translator, step(length), kin)
    (kept,) = kin.values()
    assert isinstance(kept, Kept)
    assert len(kept.links) == len(step(1).nodes)
    named = {*step(1).inputs, *step(1).constants, *(name for node in step(1).nodes for name in node.outputs)}
    assert kept.views.keys() <= named
