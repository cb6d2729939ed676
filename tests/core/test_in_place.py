"""Outputs that overwrite inputs: whatever the order of reads and writes, the numbers are those of pure functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import umd_core as umd
from umd_core.commands import Copy, Dispatch
from umd_core.ir import Graph, TensorDesc

DESC = TensorDesc("i32", (3, 2))
OPS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum}


@st.composite
def updates(draw: st.DrawFn) -> tuple[Graph, list[tuple[str, str, int, int]]]:
    """Returns a program over three inputs, some outputs of which overwrite inputs, and its ops by value number."""
    graph = Graph()
    values = [graph.input(f"x{i}", DESC) for i in range(3)]
    ops = []
    for _ in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from([*OPS, "Transposed"]))
        a, b = draw(st.integers(0, len(values) - 1)), draw(st.integers(0, len(values) - 1))
        if op == "Transposed":  # reads `b` in another order than it writes, so it must never run in place over it
            turned = graph.add("Reshape", [graph.add("Transpose", [values[b]]), graph.constant([3, 2])])
            values.append(graph.add("Add", [values[a], turned]))
        else:
            values.append(graph.add(op, [values[a], values[b]]))
        ops.append((op, "", a, b))
    for index in draw(st.permutations(range(3))):
        if draw(st.booleans()):
            graph.output(values[draw(st.integers(0, len(values) - 1))], alias=f"x{index}")
    for _ in range(draw(st.integers(0, 2))):
        graph.output(values[draw(st.integers(0, len(values) - 1))])
    if not graph.outputs:
        graph.output(values[-1], alias="x0")
    return graph, ops


def evaluate(graph: Graph, ops: list[tuple[str, str, int, int]], inputs: list[Any]) -> list[Any]:
    values = list(inputs)
    names = [*graph.inputs]
    for op, _, a, b in ops:
        if op == "Transposed":
            values.append(values[a] + values[b].T.reshape(3, 2))
        else:
            values.append(OPS[op](values[a], values[b]))
    adds = iter([n.outputs[0] for n in graph.nodes if n.op not in ("Transpose", "Reshape")])
    names += [next(adds) for _ in ops]
    return [values[names.index(output.value)] for output in graph.outputs]


@given(updates(), st.integers(0, 2**32 - 1))
def test_in_place_equals_pure(program: tuple[Graph, list[tuple[str, str, int, int]]], seed: int) -> None:
    graph, ops = program
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(-9, 9, (3, 2), dtype=np.int32) for _ in range(3)]
    expected = evaluate(graph, ops, inputs)
    got = umd.open_device("sim:0").run(umd.translate(graph), inputs)
    for output, want in zip(got, expected, strict=True):
        np.testing.assert_array_equal(output.numpy(), want)


def adamw(*, read_late: bool = False) -> Graph:
    graph = Graph()
    desc, scalar = TensorDesc("f32", (3, 2)), TensorDesc("f32", ())
    names = [graph.input(n, desc) for n in ("p", "g", "m", "v")] + [graph.input(n, scalar) for n in ("lr", "step")]
    new = graph.add_many("umd.AdamW", names, 3, {"weight_decay": 0.1})
    for value, alias in zip(new, ("p", "m", "v"), strict=True):
        graph.output(value, alias=alias)
    if read_late:
        graph.output(graph.add("Add", ["p", "p"]))
    return graph


def test_an_optimizer_step_needs_no_copy() -> None:
    cb = umd.translate(adamw())
    assert [record.row.name for record in cb.kernels] == ["adamw_kernel"]
    assert [type(command) for command in cb.commands] == [Dispatch]
    assert cb.arena_size == 0


def test_an_optimizer_step_copies_what_is_read_later() -> None:
    cb = umd.translate(adamw(read_late=True))
    assert sum(isinstance(c, Copy) for c in cb.commands) >= 1
    rng = np.random.default_rng(0)
    inputs = [rng.random((3, 2), dtype=np.float32) for _ in range(4)] + [np.float32(0.1), np.float32(1)]
    plain = umd.open_device("sim:0").run(umd.translate(adamw()), inputs)
    late = umd.open_device("sim:0").run(cb, inputs)
    for a, b in zip(plain, late, strict=False):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    np.testing.assert_array_equal(late[3].numpy(), inputs[0] + inputs[0])
