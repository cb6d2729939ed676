"""The order of steps: less memory at a time, the same results."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import Array, on_simulator
from tests.core.random_graphs import Grown, grown
from tests.core.test_in_place import evaluate, updates
from umd_core import scheduling
from umd_core.commands import READ, WRITE, SlotKind
from umd_core.ir import Graph, TensorDesc
from umd_core.linking import Linked, LinkedStep, Linker
from umd_core.recipes import Recipes
from umd_core.recorder import FillBytes
from umd_core.scheduling import Flow, schedule
from umd_core.translate import translate

LARGE, SMALL, OUT = 1024, 256, 0


def program(sizes: dict[int, int], *steps: tuple[tuple[int, ...], tuple[int, ...]]) -> Linked:
    """Returns a program of steps that read and write buffers; `node` is where a step stood."""
    linked = Linked(transients=sizes, arguments=[OUT])
    for node, (reads, writes) in enumerate(steps):
        refs = [(buffer, access, 0, 4) for buffers, access in ((reads, READ), (writes, WRITE)) for buffer in buffers]
        linked.steps.append(LinkedStep(FillBytes((refs[-1],), b"\0" * 4), tuple(refs), node))
    return linked


def order(linked: Linked) -> list[int]:
    return [step.node for step in linked.steps]


def pairs(count: int, alone: int = 0) -> Linked:
    """Returns a program that makes many large buffers, then a small one of each, and puts these together.

    Its first step uses `alone` bytes by itself.
    """
    large, small = range(10, 10 + count), range(20, 20 + count)
    sizes = {30: alone, **dict.fromkeys(large, LARGE), **dict.fromkeys(small, SMALL)}
    made = [((), (a,)) for a in large]
    used = [((a,), (b,)) for a, b in zip(large, small, strict=True)]
    return program(sizes, ((), (30,)), *made, *used, (tuple(small), (OUT,)))


def test_what_is_made_is_used_before_more_is_made() -> None:
    linked = pairs(3)
    assert Flow(linked).peak(range(8)) == 3 * LARGE + SMALL
    schedule(linked)
    assert order(linked) == [0, 1, 4, 2, 5, 3, 6, 7]
    assert Flow(linked).peak(range(8)) == LARGE + 3 * SMALL


def test_what_takes_much_waits_until_it_is_needed() -> None:
    """Three buffers are made at once and used one after another, each for what the one before was used for."""
    made = [((), (a,)) for a in (10, 11, 12)]
    used = [((10,), (20,)), ((20, 11), (21,)), ((21, 12), (OUT,))]
    linked = program({10: LARGE, 11: LARGE, 12: LARGE, 20: SMALL, 21: SMALL}, *made, *used)
    schedule(linked)
    assert order(linked) == [0, 3, 1, 4, 2, 5]


def test_a_program_that_gains_little_keeps_its_order() -> None:
    linked = pairs(2, alone=1792)
    assert (Flow(linked).peak(range(6)), Flow(linked).hungriest()) == (2 * LARGE + SMALL, 1792)
    schedule(linked)
    assert order(linked) == [0, 1, 2, 3, 4, 5]
    linked = pairs(2, alone=1024)
    schedule(linked)
    assert order(linked) == [0, 1, 3, 2, 4, 5]


def test_a_program_that_gains_nothing_keeps_its_order() -> None:
    """All large buffers are needed at once, so that it does not matter which is made first."""
    linked = program(dict.fromkeys((10, 11, 12), LARGE), *[((), (a,)) for a in (12, 10, 11)], ((10, 11, 12), (OUT,)))
    schedule(linked)
    assert order(linked) == [0, 1, 2, 3]


def test_writes_and_reads_of_one_memory_keep_their_order() -> None:
    """Two outputs are one input's memory: the reader of the old bytes is not to come after the writer of the new."""
    sizes = dict.fromkeys((10, 11, 12), LARGE)
    steps = [((0,), (10,)), ((1,), (11,)), ((1,), (12,)), ((11,), (3,)), ((10,), (2,)), ((12, 2), (3,))]
    linked = program(sizes, *steps)
    linked.same = {2: 0, 3: 1}
    found = Flow(linked).frugal()
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    for first, second in ((0, 4), (1, 3), (2, 3), (3, 5), (4, 5)):
        assert found.index(first) < found.index(second)


def training(layers: int, size: int) -> tuple[Graph, list[Array]]:
    """Returns updates of parameters as frameworks write them: all gradients first."""
    graph, desc = Graph("training"), TensorDesc("f32", (size,))
    x = graph.input("x", desc)
    names = [graph.input(f"p{i}", desc) for i in range(layers)]
    gradients = [graph.add("Sin", [graph.add("Mul", [x, name])]) for name in names]
    for name, gradient in zip(names, gradients, strict=True):
        graph.output(graph.add("Sub", [name, gradient]), alias=name)
    rng = np.random.default_rng(3)
    return graph, [rng.normal(size=size).astype("f4") for _ in range(layers + 1)]


def test_updates_follow_their_gradients() -> None:
    graph, arrays = training(8, 1000)
    buffer = translate(graph)
    (arena,) = [slot.length for slot in buffer.slots if slot.kind == SlotKind.ARENA]
    assert arena == 4096
    results = on_simulator(buffer, [array.copy() for array in arrays])
    for got, parameter in zip(results, arrays[1:], strict=True):
        np.testing.assert_allclose(got, parameter - np.sin(arrays[0] * parameter), rtol=1e-6, atol=1e-6)


def reordered(linked: Linked) -> None:
    """Orders the steps, whatever is gained."""
    linked.steps = [linked.steps[step] for step in Flow(linked).frugal()]


@pytest.fixture(scope="module")
def always() -> Any:
    """Programs are put into another order even where that gains nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("umd_core.translate"), "schedule", reordered)
        yield


@settings(max_examples=150)
@given(case=grown())
def test_a_random_graph_computes_what_numpy_does(always: None, case: tuple[Grown, list[Array]]) -> None:
    g, wanted = case
    results = on_simulator(translate(g.graph), g.arguments, "sim:0?strict=1&seed=7")
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@settings(max_examples=150)
@given(case=updates(), seed=st.integers(0, 2**32 - 1))
def test_in_place_equals_pure(always: None, case: tuple[Graph, list[tuple[str, str, int, int]]], seed: int) -> None:
    graph, ops = case
    inputs = [np.random.default_rng(seed + i).integers(-9, 9, (3, 2)).astype(np.int32) for i in range(3)]
    results = on_simulator(translate(graph), [x.copy() for x in inputs])
    for got, want in zip(results, evaluate(graph, ops, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


@settings(max_examples=150)
@given(case=grown())
def test_no_peak_rises(case: tuple[Grown, list[Array]]) -> None:
    linked = Linker(case[0].graph, Recipes()).link()
    steps, peak = list(linked.steps), Flow(linked).peak(range(len(linked.steps)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduling, "WORTH", 0)
        schedule(linked)
    assert sorted(map(steps.index, linked.steps)) == list(range(len(steps)))
    assert Flow(linked).peak(range(len(steps))) <= peak
