"""Graph passes: what each finds, literally; and that random graphs compute the same with any of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import Array, on_simulator
from tests.core.random_graphs import Grown, grown
from umd_core.errors import AttributeValueError, UndefinedValueError
from umd_core.ir import Graph, TensorDesc
from umd_core.ops import op_template
from umd_core.passes import DEFAULT, PASSES, optimise
from umd_core.passes.editor import Editor
from umd_core.translate import op_graph, translate

RNG = np.random.default_rng(5)


def evaluate(op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> list[Array]:
    """Computes an op on the simulator."""
    static = op_template(op)
    given = [value for i, value in enumerate(inputs) if value is not None and not static.input_spec(i).static]
    return on_simulator(translate(op_graph(op, inputs, attributes)), given)


class Drawn:
    """A graph with arrays for its inputs."""

    def __init__(self) -> None:
        self.graph = Graph("drawn")
        self.arrays: list[Array] = []

    def input(self, *shape: int, dtype: str = "f4") -> str:
        array = RNG.normal(size=shape).astype(dtype)
        self.arrays.append(array)
        return self.graph.input(f"x{len(self.arrays)}", TensorDesc.of(array))

    def __call__(self, op: str, *inputs: str | float | Array, **attributes: Any) -> str:
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        return self.graph.add(op, names, attributes)

    def constant(self, value: float | Array) -> str:
        return self.graph.constant(value if isinstance(value, np.ndarray) else np.float32(value))

    def after(self, result: str, *names: str) -> list[str]:
        """Returns the ops that are left after some passes, which give the same results within rounding."""
        self.graph.output(result)
        found = optimise(self.graph, names, evaluate=evaluate)
        before, now = (on_simulator(translate(g), self.arrays) for g in (self.graph, found.graph))
        np.testing.assert_allclose(now[0], before[0], rtol=2e-5, atol=2e-6)
        assert now[0].dtype == before[0].dtype
        self.optimised = found
        return [node.op for node in found.graph.nodes]


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.fixture
def g() -> Drawn:
    return Drawn()


# folding, dead nodes, equal nodes


def test_what_depends_on_constants_alone_is_computed(g: Drawn) -> None:
    x = g.input(2, 3)
    shift = g("Mul", g("Add", 1.0, 2.0), 0.5)
    assert g.after(g("Add", x, shift), "fold_constants") == ["Add"]
    assert list(g.optimised.graph.constants.values()) == [1.5]
    assert g.optimised.report == {"fold_constants": 2}


def test_arithmetic_on_shapes_is_computed(g: Drawn) -> None:
    x = g.input(2, 3)
    shape = g("Concat", g("Shape", x, start=1), ints(2), axis=0)
    g.graph.output(g("Reshape", x, shape))
    found = optimise(g.graph, ["fold_constants"], evaluate=evaluate)
    assert [node.op for node in found.graph.nodes] == ["Reshape"]
    assert [value.tolist() for value in found.graph.constants.values()] == [[3, 2]]
    (result,) = on_simulator(translate(found.graph), g.arrays)
    np.testing.assert_array_equal(result, g.arrays[0].reshape(3, 2))


def test_a_constant_does_not_grow_without_bound(g: Drawn) -> None:
    x = g.input(1)
    large = g("Expand", 2.0, ints(200, 200))
    assert g.after(g("Add", x, large), "fold_constants") == ["Expand", "Add"]


def test_without_evaluation_only_shapes_are_folded() -> None:
    graph = Graph()
    x = graph.input("x", TensorDesc("f32", (4, 5)))
    graph.output(graph.add("Add", [graph.constant(np.float32(1)), graph.constant(np.float32(2))]))
    graph.output(graph.add("Shape", [x], {"start": -1}))
    found = optimise(graph, ["fold_constants"]).graph
    assert [node.op for node in found.nodes] == ["Add"]
    assert found.constants[found.outputs[1].value].tolist() == [5]


def test_nodes_that_no_output_needs_are_left_out(g: Drawn) -> None:
    x = g.input(3)
    g("Exp", g("Neg", x))
    assert g.after(g("Abs", x), "dead_nodes") == ["Abs"]
    assert g.optimised.report == {"dead_nodes": 2}


def test_equal_nodes_become_one(g: Drawn) -> None:
    x = g.input(3)
    a, b = (g("Clip", g("Mul", x, 2.0), -1.0, 1.0) for _ in range(2))
    c = g("Mul", x, 3.0)
    assert g.after(g("Sum", a, b, c), "common_subexpressions") == ["Mul", "Clip", "Mul", "Sum"]


# cancelling


def test_identities_and_neutral_numbers_go(g: Drawn) -> None:
    x = g.input(2, 3)
    y = g("Sub", g("Div", g("Mul", g("Identity", g("Abs", x)), 1.0), 1.0), 0.0)
    assert g.after(g("Concat", g("Expand", y, ints(2, 3)), axis=0), "cancel") == ["Abs"]


def test_a_neutral_number_that_widens_or_turns_a_zero_stays(g: Drawn) -> None:
    x = g.input(3)
    wide = g("Mul", x, np.ones((2, 1), np.float32))
    assert g.after(g("Sub", g("Add", wide, 0.0), -0.0), "cancel") == ["Mul", "Add", "Sub"]


def test_reshapes_of_reshapes_are_one(g: Drawn) -> None:
    x = g.input(2, 3, 4)
    y = g("Squeeze", g("Unsqueeze", g("Reshape", x, ints(6, 4)), ints(0)), ints(0))
    assert g.after(g("Abs", g("Flatten", g("Reshape", y, ints(4, 2, 3)), axis=2)), "cancel") == ["Reshape", "Abs"]


def test_reshapes_that_lead_back_go(g: Drawn) -> None:
    x = g.input(2, 3)
    y = g("Reshape", g("Reshape", g("Abs", x), ints(6)), ints(2, 3))
    assert g.after(g("Squeeze", g("Unsqueeze", y, ints(1)), ints(1)), "cancel") == ["Abs"]


def test_transposes_are_joined(g: Drawn) -> None:
    x = g.input(2, 3, 4)
    y = g("Transpose", g("Transpose", x, perm=[1, 2, 0]), perm=[0, 2, 1])
    assert g.after(g("Abs", y), "cancel") == ["Transpose", "Abs"]
    assert g.optimised.graph.nodes[0].attributes == {"perm": (1, 0, 2)}


def test_transposes_that_lead_back_go(g: Drawn) -> None:
    x = g.input(2, 3, 4)
    y = g("Transpose", g("Transpose", g("Transpose", g("Abs", x))), perm=[2, 1, 0])
    assert g.after(g("Neg", g("Transpose", y)), "cancel") == ["Abs", "Neg"]


@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        (("f4", "f8", "f4"), 0),
        (("f2", "f4", "i4"), 1),
        (("i2", "i8", "f4"), 1),
        (("i2", "f4", "i1"), 2),  # an integer wraps, a float saturates
        (("f4", "f2", "f4"), 2),
        (("i8", "f8", "i8"), 2),  # beyond 2^53 not every integer is a float64
        (("i4", "f8", "i4"), 0),
        (("f4", "f4"), 0),
        (("?", "i4", "?"), 0),
    ],
)
def test_casts_are_joined_where_the_first_loses_nothing(kinds: tuple[str, ...], left: int, g: Drawn) -> None:
    x = g.input(5, dtype="f4")
    value = g("Cast", x, to=np.dtype(kinds[0]).name) if kinds[0] != "f4" else x
    first = len(g.graph.nodes)
    for kind in kinds[1:]:
        value = g("Cast", value, to=np.dtype(kind).name)
    assert len(g.after(value, "cancel")) == first + left


# convolutions


def convolved(g: Drawn, *, bias: bool, rank: int = 2) -> str:
    x = g.input(2, 4, *(5,) * rank)
    weight = RNG.normal(size=(6, 2, *(3,) * rank)).astype(np.float32)
    rest = [RNG.normal(size=6).astype(np.float32)] if bias else []
    return g("Conv", x, weight, *rest, group=2, pads=[1] * 2 * rank)


def channels(low: float = -1.0) -> Array:
    return RNG.uniform(low, 2, 6).astype(np.float32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [1, 2])
def test_batch_normalisation_goes_into_the_convolution(bias: bool, rank: int, g: Drawn) -> None:
    y = convolved(g, bias=bias, rank=rank)
    z = g("BatchNormalization", y, channels(), channels(), channels(), channels(0.1), epsilon=1e-3)
    assert g.after(g("Relu", z), "convolution") == ["Conv", "Relu"]


def test_scale_and_bias_of_each_channel_go_into_the_convolution(g: Drawn) -> None:
    y = convolved(g, bias=False)
    y = g("Sub", g("Div", g("Mul", channels().reshape(6, 1, 1), y), 4.0), channels().reshape(1, 6, 1, 1))
    assert g.after(g("Sub", 1.0, g("Add", y, 0.5)), "convolution") == ["Conv"]
    assert g.optimised.report == {"convolution": 5}


def test_what_is_no_constant_of_each_channel_stays(g: Drawn) -> None:
    y = convolved(g, bias=True)
    y = g("Add", y, RNG.normal(size=(1, 6, 5, 5)).astype(np.float32))
    assert g.after(y, "convolution") == ["Conv", "Add"]


def test_a_convolution_that_others_read_stays(g: Drawn) -> None:
    y = convolved(g, bias=True)
    assert g.after(g("Add", g("Mul", y, 2.0), g("Neg", y)), "convolution") == ["Conv", "Mul", "Neg", "Add"]


def test_batch_normalisation_in_training_stays(g: Drawn) -> None:
    y = convolved(g, bias=True)
    z = g("BatchNormalization", y, channels(), channels(), channels(), channels(0.1), training_mode=True)
    assert g.after(z, "convolution") == ["Conv", "BatchNormalization"]


# patterns


@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("affine", ["", "scale", "scale and bias", "bias"])
def test_layer_normalisation_is_found(square: str, inverse: bool, affine: str, g: Drawn) -> None:
    x = g.input(2, 3, 4)
    axes = ints(1, -1)
    centred = g("Sub", x, g("ReduceMean", x, axes, keepdims=1))
    squared = g("Pow", centred, 2.0) if square == "Pow" else g("Mul", centred, centred)
    root = g("Sqrt", g("Add", g("ReduceMean", squared, axes, keepdims=1), 1e-3))
    y = g("Mul", g("Reciprocal", root), centred) if inverse else g("Div", centred, root)
    if "scale" in affine:
        y = g("Mul", y, RNG.normal(size=(3, 4)).astype(np.float32))
    if "bias" in affine:
        y = g("Add", g.input(4), y)
    assert g.after(y, "layer_norm") == ["LayerNormalization"]
    assert g.optimised.graph.nodes[0].attributes == {"axis": 1, "epsilon": pytest.approx(1e-3)}


def test_normalising_other_axes_or_reading_the_variance_is_no_layer_normalisation(g: Drawn) -> None:
    x = g.input(2, 3, 4)
    for axes, keeps in ((ints(0, 1), False), (ints(2), True)):
        centred = g("Sub", x, g("ReduceMean", x, axes, keepdims=1))
        variance = g("ReduceMean", g("Mul", centred, centred), axes, keepdims=1)
        x = g("Div", centred, g("Sqrt", g("Add", variance, 1e-3)))
        if keeps:
            g.graph.output(variance)
    g.graph.outputs.insert(0, g.graph.outputs.pop())
    assert "LayerNormalization" not in g.after(x, "layer_norm")


def halves(g: Drawn, x: str, curve: str) -> list[str]:
    """Returns x · 0.5 · (1 + curve), its factors in every order that exporters write."""
    total = [g("Add", curve, 1.0), g("Add", 1.0, curve)]
    return [
        g("Mul", g("Mul", x, total[0]), 0.5),
        g("Mul", 0.5, g("Mul", total[1], x)),
        g("Mul", g("Mul", 0.5, x), total[0]),
        g("Mul", total[1], g("Mul", x, 0.5)),
        g("Mul", x, g("Mul", 0.5, total[0])),
        g("Mul", g("Mul", total[1], 0.5), x),
        g("Mul", x, g("Div", total[0], 2.0)),
        g("Div", g("Mul", x, total[1]), 2.0),
        g("Mul", g("Div", x, 2.0), total[0]),
        g("Mul", g("Mul", g("Mul", x, 2.0), total[0]), 0.25),
    ]


def erf_forms(g: Drawn, x: str) -> list[str]:
    root = math.sqrt(2)
    return [g("Erf", g("Div", x, root)), g("Erf", g("Mul", x, 1 / root)), g("Erf", g("Mul", math.sqrt(0.5), x))]


def tanh_forms(g: Drawn, x: str) -> list[str]:
    root = math.sqrt(2 / math.pi)
    power = g("Mul", 0.044715, g("Pow", x, 3.0))
    cube = g("Mul", g("Mul", g("Mul", x, x), x), 0.044715)
    nested = g("Mul", g("Mul", 0.044715, x), g("Mul", x, x))
    square = g("Mul", g("Mul", x, x), 0.044715)
    fast = g("Mul", g("Mul", 0.044715, x), x)
    return [
        g("Tanh", g("Mul", root, g("Add", x, power))),
        g("Tanh", g("Mul", g("Add", cube, x), root)),
        g("Tanh", g("Div", g("Add", x, nested), 1 / root)),
        g("Tanh", g("Mul", g("Mul", x, root), g("Add", 1.0, square))),
        g("Tanh", g("Mul", g("Mul", root, g("Add", fast, 1.0)), x)),
    ]


@pytest.mark.parametrize("order", range(10))
@pytest.mark.parametrize(
    ("forms", "form", "attribute"),
    [*((erf_forms, form, "none") for form in range(3)), *((tanh_forms, form, "tanh") for form in range(5))],
)
def test_gelu_is_found(forms: Any, form: int, attribute: str, order: int, g: Drawn) -> None:
    x = g("Neg", g.input(50))
    written = halves(g, x, forms(g, x)[form])[order]
    assert g.after(g("Abs", written), "dead_nodes", "gelu") == ["Neg", "Gelu", "Abs"]
    assert g.optimised.graph.nodes[1].attributes == {"approximate": attribute}


def test_gelu_after_a_bias_is_found(g: Drawn) -> None:
    x = g("Add", g("MatMul", g.input(4, 8), g.input(8, 6)), RNG.normal(size=6).astype(np.float32))
    half = g("Mul", 0.5, g("Add", g("Erf", g("Div", x, math.sqrt(2))), 1.0))
    assert g.after(g("MatMul", g("Mul", x, half), g.input(6, 3)), "gelu") == ["MatMul", "Add", "Gelu", "MatMul"]


def test_what_is_almost_gelu_stays(g: Drawn) -> None:
    x = g.input(50)
    wrong = g("Mul", g("Mul", x, g("Add", g("Erf", g("Div", x, 1.4)), 1.0)), 0.5)
    other = g("Mul", g("Mul", g.input(50), g("Add", g("Erf", g("Div", x, math.sqrt(2))), 1.0)), 0.5)
    curve = g("Erf", g("Div", x, math.sqrt(2)))
    seen = g("Mul", g("Mul", x, g("Add", curve, 1.0)), 0.5)
    assert "Gelu" not in g.after(g("Sum", wrong, other, seen, curve), "gelu")


# all together


def test_a_pass_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeValueError, match="no pass 'gellu'") as caught:
        optimise(Graph(), ["gelu", "gellu"])
    assert "gelu, elementwise_chain" in caught.value.wanted


def test_the_given_graph_stays_as_it_is(g: Drawn) -> None:
    x = g.input(3)
    g.graph.output(g("Identity", g("Identity", x)))
    found = optimise(g.graph)
    assert [len(graph.nodes) for graph in (g.graph, found.graph)] == [2, 0]
    assert (g.graph.fuses, found.graph.fuses) == (False, True)
    assert list(found.report) == list(PASSES)


@settings(max_examples=120)
@given(case=grown(), passes=st.sampled_from([DEFAULT, *([name] for name in PASSES)]))
def test_random_graphs_compute_the_same(case: tuple[Grown, list[Array]], passes: Any) -> None:
    g, wanted = case
    found = optimise(g.graph, passes, evaluate=evaluate).graph
    plain, cleaned = translate(g.graph), translate(found)
    for got, want in zip(on_simulator(cleaned, g.arguments), wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)
    assert len(cleaned.commands) <= len(plain.commands)


@pytest.mark.parametrize("name", sorted(PASSES))
def test_every_pass_alone_leaves_out_what_nobody_reads(name: str) -> None:
    g = Drawn()
    x = g.input(3)
    g("Neg", x)
    wanted = [] if name == "elementwise_chain" else ["Neg"]  # that one looks at no node
    g.graph.output(g("Exp", x))
    found = optimise(g.graph, [name])
    assert [node.op for node in g.graph.nodes if node.op not in {n.op for n in found.graph.nodes}] == wanted


def test_constants_are_described_when_they_are_asked_for() -> None:
    graph = Graph()
    x = graph.input("x", TensorDesc("f32", (2, 3)))
    shape = graph.constant(np.array([3, 2], np.int64), "shape")
    graph.output(graph.add("Reshape", [x, shape], outputs=["y"]))
    editor = Editor(graph)
    assert editor.desc("y") == TensorDesc("f32", (3, 2))
    assert editor.desc("shape") == TensorDesc("i64", (2,))
    assert editor.desc(editor.add_constant(np.array(1, np.float32))) == TensorDesc("f32", ())
    with pytest.raises(UndefinedValueError, match="'nowhere'"):
        editor.desc("nowhere")
