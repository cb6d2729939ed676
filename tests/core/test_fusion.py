"""Fused elementwise launches: what joins, what must not, and that results are the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import LEVEL_0, Array, on_simulator
from umd_core.commands import CommandBuffer, Dispatch
from umd_core.dtypes import DType
from umd_core.ir import Graph, TensorDesc
from umd_core.kernels.chain import NAME, words
from umd_core.translate import translate

RNG = np.random.default_rng(11)


class Drawn:
    """A graph with arrays for its inputs."""

    def __init__(self) -> None:
        self.graph = Graph("drawn")
        self.arrays: list[Array] = []

    def input(self, *shape: int, dtype: str = "f4") -> str:
        self.arrays.append(RNG.normal(size=shape).astype(dtype))
        return self.graph.input(f"x{len(self.arrays)}", TensorDesc.of(self.arrays[-1]))

    def __call__(self, op: str, *inputs: str | float, **attributes: Any) -> str:
        names = [x if isinstance(x, str) else self.graph.constant(np.float32(x)) for x in inputs]
        return self.graph.add(op, names, attributes, name=f"n{len(self.graph.nodes)}", source="model.py:7")

    def fused(self, *results: str) -> CommandBuffer:
        """Returns the fused program, which gives the bits of the plain one, on a device that looks for bugs too."""
        for result in results:
            self.graph.output(result)
        plain = on_simulator(translate(self.graph), self.arrays)
        self.graph.fuses = True
        program = translate(self.graph)
        for device in ("sim:0", "sim:0?strict=1&seed=3"):
            for got, want in zip(on_simulator(program, self.arrays, device), plain, strict=True):
                np.testing.assert_array_equal(got, want)
        return program


def names(program: CommandBuffer) -> list[str]:
    return [program.kernels[c.kernel].row.name for c in program.commands if isinstance(c, Dispatch)]


def parameters(program: CommandBuffer) -> dict[str, Any]:
    (command,) = program.commands
    assert isinstance(command, Dispatch)
    return program.kernels[command.kernel].unpack(command.parameters)


def test_eight_ops_are_one_command_that_names_them() -> None:
    g = Drawn()
    x, y = g.input(3, 5), g.input(5)
    v = g("Sub", g("Relu", g("Add", g("Mul", x, 2.0), y)), 0.5)
    v = g("Sqrt", g("Add", g("Abs", g("Mul", v, x)), 1.0))
    program = g.fused(v)
    assert names(program) == [NAME]
    (info,) = program.debug
    assert (info.op, info.source) == ("Mul+Add+Relu+Sub+Mul+Abs+Add+Sqrt", "model.py:7")
    assert info.node == "n0+n1+n2+n3+n4+n5+n6+n7"
    found = parameters(program)
    expected = "x0 c0 mul x1 add c1 max c2 sub x0 mul abs c3 add sqrt"
    assert (" ".join(words(found["program"])), found["constants"]) == (expected, (2.0, 0.0, 0.5, 1.0, 0, 0, 0, 0))
    assert program.slots[1].min_size == 5 * 4


def test_what_is_read_twice_is_computed_once() -> None:
    g = Drawn()
    x = g("Neg", g.input(7))
    program = g.fused(g("Mul", g("Sigmoid", x), x))
    assert words(parameters(program)["program"]) == ["x0", "neg", "sigmoid", "t0", "mul"]


def test_what_others_read_is_not_taken_in() -> None:
    g = Drawn()
    x = g("Neg", g.input(2, 7))
    shared = g("Exp", x)
    total = g("ReduceSum", shared)
    assert names(g.fused(g("Mul", shared, 2.0), total)) == [NAME, "reduce_sum_kernel", "elementwise_mul_kernel"]


def test_an_output_is_not_taken_in() -> None:
    g = Drawn()
    first = g("Exp", g("Neg", g.input(7)))
    assert names(g.fused(first, g("Abs", g("Mul", first, 2.0)))) == [NAME, NAME]


def test_another_order_of_elements_is_not_taken_in() -> None:
    g = Drawn()
    turned = g("Transpose", g("Neg", g.input(3, 4)))
    assert names(g.fused(g("Add", turned, 1.0))) == ["elementwise_neg_kernel", "elementwise_add_kernel"]


def test_what_is_repeated_is_not_computed_again() -> None:
    g = Drawn()
    row = g("Exp", g.input(4))
    assert names(g.fused(g("Add", g.input(3, 4), row))) == ["elementwise_exp_kernel", "elementwise_add_kernel"]


def test_launches_over_differently_merged_axes_join() -> None:
    g = Drawn()
    x = g("Mul", g("Neg", g.input(2, 3, 4, 5)), g.input(3, 1, 1))
    program = g.fused(g("Add", g("Abs", x), g.input(4, 5)))
    assert names(program) == [NAME]
    assert parameters(program)["extents"] == (1, 2, 3, 20)


def test_an_update_in_place_is_one_command() -> None:
    g = Drawn()
    p, gradient = g.input(6), g.input(6)
    g.graph.output(g("Sub", p, g("Mul", gradient, 0.1)), g.graph.inputs["x1"], alias="x1")
    before = translate(g.graph)
    g.graph.fuses = True
    program = translate(g.graph)
    assert (len(before.commands), names(program), program.aliases) == (2, [NAME], ((0, 0),))
    (result,) = on_simulator(program, g.arrays)
    np.testing.assert_array_equal(result, g.arrays[0] - g.arrays[1] * np.float32(0.1))


def test_nothing_moves_past_a_write_to_what_it_reads() -> None:
    g = Drawn()
    p, x = g.input(6), g.input(6)
    old = g("Mul", p, 2.0)
    new = g("Add", p, x)
    g.graph.output(new, g.graph.inputs["x1"], alias="x1")
    program = g.fused(g("Sub", old, new))
    assert names(program) == ["elementwise_mul_kernel", "elementwise_add_kernel", "elementwise_sub_kernel"]


def test_nothing_is_read_in_another_order_than_it_is_overwritten() -> None:
    g = Drawn()
    p = g.input(4, 4)
    turned = g("Mul", g("Transpose", p), 2.0)
    g.graph.output(g("Neg", turned), g.graph.inputs["x1"], alias="x1")
    assert names(g.fused()) == ["elementwise_mul_kernel", "elementwise_neg_kernel"]


@pytest.mark.parametrize("in_place_first", [False, True], ids=["apart first", "in place first"])
def test_equal_launches_are_judged_by_the_memory_that_they_share(in_place_first: bool) -> None:
    for in_place in (in_place_first, not in_place_first):
        g = Drawn()
        p = g.input(3, 3)
        result = g("Neg", g("Mul", g("Transpose", p), 2.0))
        g.graph.output(result, g.graph.inputs["x1"], alias="x1" if in_place else None)
        apart, own = [NAME], ["elementwise_mul_kernel", "elementwise_neg_kernel"]
        assert names(g.fused()) == (own if in_place else apart)


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)], ids=["positive first", "negative first"])
def test_both_zeros_are_numbers_of_their_own(zeros: tuple[float, float]) -> None:
    for zero in zeros:
        g = Drawn()
        program = g.fused(g("Mul", g("Add", g.input(2), zero), 2.0))
        (result,) = on_simulator(program, [np.array([-0.0, 1], np.float32)])
        assert (names(program), list(np.signbit(result))) == ([NAME], [bool(np.signbit(zero)), False])


def test_numbers_alone_are_left_alone() -> None:
    g = Drawn()
    four = g("Expand", 4.0, g.graph.constant(np.array([2, 3])))
    assert names(g.fused(g("Neg", g("Sqrt", four)))) == ["elementwise_sqrt_kernel", "elementwise_neg_kernel"]


def test_a_long_chain_becomes_as_many_as_needed() -> None:
    g = Drawn()
    value = g.input(5)
    for _ in range(40):
        value = g("Neg", value)
    assert names(g.fused(value)) == [NAME] * 3


def test_many_operands_become_as_many_as_needed() -> None:
    g = Drawn()
    value = g.input(5)
    for _ in range(14):
        value = g("Add", value, g.input(5))
    assert names(g.fused(value)) == [NAME] * 2


def test_a_device_without_the_kernel_gets_the_single_ones() -> None:
    g = Drawn()
    g.graph.output(g("Neg", g("Abs", g.input(5))))
    g.graph.fuses = True
    assert names(translate(g.graph, caps=LEVEL_0)) == ["elementwise_abs_kernel", "elementwise_neg_kernel"]


def test_other_types_are_left_alone() -> None:
    g = Drawn()
    x = g.input(5, dtype="i4")
    assert names(g.fused(g("Neg", g("Abs", x)))) == ["elementwise_abs_kernel", "elementwise_neg_kernel"]


def test_halves_are_rounded_once() -> None:
    g = Drawn()
    x, y = g.input(500, dtype="f2"), g.input(500, dtype="f2")
    g.graph.output(g("Div", g("Mul", g("Add", x, y), x), y))
    g.graph.fuses = True
    program = translate(g.graph)
    assert names(program) == [NAME]
    a, b = (array.astype(np.float32) for array in g.arrays)
    (result,) = on_simulator(program, g.arrays)
    np.testing.assert_array_equal(result, ((a + b) * a / b).astype(np.float16))


class Chains:
    """A device with the kernels of level 0, and chains."""

    def supports(self, name: str, types: tuple[DType, ...]) -> bool:
        return name == NAME or LEVEL_0.supports(name, types)


DECOMPOSED: list[tuple[str, tuple[tuple[int, ...], ...], int, int, int]] = [
    ("BatchNormalization", ((2, 3, 4), (3,), (3,), (3,), (3,)), 1, 6, 3),
    ("LayerNormalization", ((5, 6), (6,), (6,)), 1, 10, 9),
    ("umd.LayerNormGrad", ((5, 6), (5, 6), (5, 1), (5, 1), (6,)), 3, 13, 9),
    ("umd.BatchNormGrad", ((2, 3, 4), (2, 3, 4), (3,), (3,), (3,)), 3, 13, 10),
    ("umd.SoftmaxGrad", ((5, 6), (5, 6)), 1, 4, 3),
    ("Softmax", ((5, 6),), 1, 5, 4),
    ("umd.AdamW", ((6,), (6,), (6,), (6,), (), ()), 3, 24, 10),
]
"""Ops whose decompositions compute in place: shapes of the inputs, outputs, commands without and with chains."""


@pytest.mark.parametrize(("op", "shapes", "outputs", "before", "after"), DECOMPOSED, ids=[row[0] for row in DECOMPOSED])
def test_what_is_computed_in_place_joins_too(
    op: str, shapes: tuple[tuple[int, ...], ...], outputs: int, before: int, after: int
) -> None:
    graph = Graph(op)
    arrays = [np.asarray(RNG.uniform(0.25, 2, shape), np.float32) for shape in shapes]
    inputs = [graph.input(f"x{i}", TensorDesc.of(array)) for i, array in enumerate(arrays)]
    for name in graph.add_many(op, inputs, outputs):
        graph.output(name)
    plain = translate(graph, caps=Chains())
    graph.fuses = True
    fused = translate(graph, caps=Chains())
    assert (len(plain.commands), len(fused.commands)) == (before, after)
    for device in ("sim:0", "sim:0?strict=1&seed=3"):
        results = zip(on_simulator(fused, arrays, device), on_simulator(plain, arrays), strict=True)
        for got, want in results:
            np.testing.assert_array_equal(got, want)


UNARY = ("Neg", "Abs", "Relu", "Tanh", "Sigmoid", "Floor", "Gelu")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


@st.composite
def webs(draw: st.DrawFn) -> tuple[Drawn, list[str]]:
    """Elementwise ops over values that broadcast, some of them transposed, flipped or sliced, some read often."""
    g = Drawn()
    full = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    values: list[tuple[str, tuple[int, ...]]] = []
    for _ in range(draw(st.integers(1, 4))):
        shape = tuple(1 if draw(st.booleans()) and draw(st.booleans()) else e for e in full)
        values.append((g.input(*shape), shape))
    for _ in range(draw(st.integers(2, 24))):
        (a, shape), (b, other) = (draw(st.sampled_from(values[-6:])) for _ in range(2))
        kind = draw(st.integers(0, 9))
        if kind < 4:
            values.append((g(draw(st.sampled_from(UNARY)), a), shape))
        elif kind < 8:
            whole = tuple(np.broadcast_shapes(shape, other))
            values.append((g(draw(st.sampled_from(BINARY)), a, b), whole))
        elif kind == 8:
            values.append((g("Mul", a, 0.5), shape))
        else:
            axis = draw(st.integers(0, len(shape) - 1))
            values.append((g("umd.Flip", a, axes=[axis]), shape))
    results = [values[-1][0], *(name for name, _ in draw(st.lists(st.sampled_from(values), max_size=2)))]
    return g, list(dict.fromkeys(results))


@settings(max_examples=150)
@given(web=webs())
def test_any_web_of_ops_gives_the_same_bits(web: tuple[Drawn, list[str]]) -> None:
    g, results = web
    for result in results:
        g.graph.output(result)
    before = translate(g.graph)
    g.graph.outputs.clear()
    assert len(g.fused(*results).commands) <= len(before.commands)
