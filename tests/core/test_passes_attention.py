"""The pass that finds attention: the forms that it knows, with gradients and without, and what it leaves alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.core.op_arrays import Array, on_simulator
from umd_core.ir import Graph, TensorDesc
from umd_core.passes import DEFAULT, optimise
from umd_core.translate import translate

RNG = np.random.default_rng(11)
BATCH, HEADS, QUERIES, KEYS, SIZE, WIDTH = 2, 3, 5, 4, 8, 6
LARGE = 1e9


class Attending:
    """A graph with arrays for its inputs, and queries, keys and values among them."""

    def __init__(self, dtype: str = "f4") -> None:
        self.graph, self.dtype = Graph("attending"), dtype
        self.arrays: list[Array] = []
        self.q, self.k, self.v = (
            self.input(BATCH, HEADS, length, size) for length, size in ((QUERIES, SIZE), (KEYS, SIZE), (KEYS, WIDTH))
        )

    def input(self, *shape: int) -> str:
        self.arrays.append(RNG.normal(size=shape).astype(self.dtype))
        return self.graph.input(f"x{len(self.arrays)}", TensorDesc.of(self.arrays[-1]))

    def __call__(self, op: str, *inputs: str | float | Array, **attributes: Any) -> str:
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        return self.graph.add(op, names, attributes)

    def constant(self, value: float | Array) -> str:
        return self.graph.constant(value if isinstance(value, np.ndarray) else np.asarray(value, self.dtype))

    def swap(self, name: str, rank: int = 4) -> str:
        return self("Transpose", name, perm=(*range(rank - 2), rank - 1, rank - 2))

    def reshape(self, name: str, *shape: int) -> str:
        return self("Reshape", name, np.array(shape, np.int64))

    def scores(self) -> str:
        return self("MatMul", self.q, self.swap(self.k))

    def ops(self, *results: str, expected: float = 2e-6) -> list[str]:
        """Returns the ops that are left after the pass, which give the same results within rounding."""
        for result in results:
            self.graph.output(result)
        found = optimise(self.graph, ["attention", "cancel", "dead_nodes"])
        self.lean = found.graph
        before, now = (on_simulator(translate(g), self.arrays) for g in (self.graph, found.graph))
        for ours, theirs in zip(now, before, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(ours, theirs, rtol=20 * expected, atol=expected)
        return [node.op for node in found.graph.nodes]

    def attributes(self) -> dict[str, Any]:
        """Returns those of the only umd.Attention."""
        (node,) = [node for node in self.lean.nodes if node.op == "umd.Attention"]
        return dict(node.attributes)


@pytest.fixture
def g() -> Attending:
    return Attending()


def dense(ops: list[str]) -> list[str]:
    """Returns the ops that compute something."""
    return [op for op in ops if op not in ("Reshape", "Transpose")]


# forms of the forward graph


@pytest.mark.parametrize("scaled", ["no", "after", "by division", "queries", "both", "all"])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_found_with_any_scaling(scaled: str, masked: bool, g: Attending) -> None:
    q, kt = g.q, g.swap(g.k)
    if scaled in ("queries", "both", "all"):
        q = g("Mul", q, 0.6)
    if scaled in ("both", "all"):
        kt = g("Mul", 0.6, kt)
    scores = g("MatMul", q, kt)
    if scaled in ("after", "all"):
        scores = g("Mul", scores, 0.5)
    if scaled == "by division":
        scores = g("Div", scores, math.sqrt(SIZE))
    if masked:
        scores = g("Add", g.input(BATCH, 1, QUERIES, KEYS), scores)
    assert dense(g.ops(g("MatMul", g("Softmax", scores, axis=-1), g.v))) == ["umd.Attention"]
    factor = {"no": 1, "after": 0.5, "by division": SIZE**-0.5, "queries": 0.6, "both": 0.36, "all": 0.18}[scaled]
    assert g.attributes() == {"scale": pytest.approx(factor), "guarded": 0}


@pytest.mark.parametrize("shape", [(KEYS,), (1, 1, KEYS), (QUERIES, 1), (BATCH, HEADS, QUERIES, KEYS)])
def test_a_mask_of_any_shape_is_found(shape: tuple[int, ...], g: Attending) -> None:
    scores = g("Add", g.scores(), np.where(RNG.random(shape) < 0.5, -LARGE, 0).astype("f4"))
    assert dense(g.ops(g("MatMul", g("Softmax", scores, axis=3), g.v))) == ["umd.Attention"]


def test_heads_folded_into_the_batch_are_found(g: Attending) -> None:
    """torch flattens the leading axes before each product, and gives scores their own shape back for the mask."""
    heads = BATCH * HEADS
    kt = g.reshape(g("Mul", g("Transpose", g.k, perm=(0, 1, 3, 2)), 0.5), heads, SIZE, KEYS)
    product = g("MatMul", g.reshape(g("Mul", g.q, 0.5), heads, QUERIES, SIZE), kt)
    scores = g("Add", g.reshape(product, BATCH, HEADS, QUERIES, KEYS), g.input(BATCH, 1, 1, KEYS))
    chances = g.reshape(g("Softmax", scores, axis=-1), heads, QUERIES, KEYS)
    result = g("MatMul", chances, g.reshape(g.v, heads, KEYS, WIDTH))
    assert dense(g.ops(g.reshape(result, BATCH, HEADS, QUERIES, WIDTH))) == ["umd.Attention"]
    assert g.attributes()["scale"] == 0.25


def test_one_head_is_found(g: Attending) -> None:
    q, k, v = g.input(QUERIES, SIZE), g.input(KEYS, SIZE), g.input(KEYS, WIDTH)
    scores = g("MatMul", q, g.swap(k, 2))
    assert dense(g.ops(g("MatMul", g("Softmax", scores), v))) == ["umd.Attention"]


def test_keys_that_all_heads_share_are_found(g: Attending) -> None:
    k, v = g.input(1, 1, KEYS, SIZE), g.input(KEYS, WIDTH)
    scores = g("Mul", g("MatMul", g.q, g.swap(k)), 0.3)
    assert dense(g.ops(g("MatMul", g("Softmax", scores), v))) == ["umd.Attention"]


def guarded(g: Attending, scores: str, how: str) -> str:
    """Returns the softmax, 0 where a row is dead, as torch and as its exporter write it."""
    softmax, zero = g("Softmax", scores, axis=-1), g.constant(0.0)
    if how == "nan":
        return g("Where", g("IsNaN", softmax), zero, softmax)
    alive = g("Cast", g("Not", g("Equal", scores, -np.inf)), to="uint8")
    some = g("Cast", g("ReduceMax", alive, np.array([3]), keepdims=True), to="bool")
    shape = np.array((BATCH, HEADS, QUERIES, KEYS), np.int64)
    return g("Where", g("Not", some), g("Expand", zero, shape), softmax)


@pytest.mark.parametrize(("how", "number"), [("torch", 1), ("nan", 2)])
def test_queries_without_keys_stay_as_they_are(how: str, number: int, g: Attending) -> None:
    bias = np.where(RNG.random((QUERIES, KEYS)) < 0.4, -np.inf, 0).astype("f4")
    bias[1], bias[2, 0] = -np.inf, 0
    scores = g("Add", g.scores(), bias)
    result = g("MatMul", guarded(g, scores, how), g.v)
    assert dense(g.ops(result)) == ["umd.Attention"]
    assert g.attributes()["guarded"] == number


def test_queries_without_keys_are_nan_where_they_were(g: Attending) -> None:
    bias = np.zeros((QUERIES, KEYS), np.float32)
    bias[3] = -np.inf
    result = g("MatMul", g("Softmax", g("Add", g.scores(), bias)), g.v)
    assert dense(g.ops(result)) == ["umd.Attention"]
    (y,) = on_simulator(translate(g.lean), g.arrays)
    assert np.isnan(y[:, :, 3]).all()
    assert np.isfinite(np.delete(y, 3, 2)).all()


@pytest.mark.parametrize("dtype", ["f2", "f8"])
def test_other_types_are_found(dtype: str) -> None:
    g = Attending(dtype)
    result = g("MatMul", g("Softmax", g("Mul", g.scores(), 0.25)), g.v)
    assert dense(g.ops(result, expected=2e-3 if dtype == "f2" else 1e-14)) == ["umd.Attention"]


# what is none


def test_scores_that_somebody_else_reads_stay(g: Attending) -> None:
    scores = g.scores()
    chances = g("Softmax", scores)
    assert "umd.Attention" not in g.ops(g("MatMul", chances, g.v), g("Abs", scores))
    other = Attending()
    chances = other("Softmax", other.scores())
    assert "umd.Attention" not in other.ops(other("MatMul", chances, other.v), chances)


def test_what_is_almost_attention_stays(g: Attending) -> None:
    over_queries = g("MatMul", g("Softmax", g.scores(), axis=2), g.v)
    dropped = g("MatMul", g("Mul", g("Softmax", g.scores()), g.input(BATCH, HEADS, QUERIES, KEYS)), g.v)
    no_product = g("MatMul", g("Softmax", g.input(BATCH, HEADS, QUERIES, KEYS)), g.v)
    assert "umd.Attention" not in g.ops(over_queries, dropped, no_product)


def test_a_mask_that_widens_the_scores_stays(g: Attending) -> None:
    scores = g("Add", g.scores(), g.input(4, 1, 1, 1, KEYS))
    assert "umd.Attention" not in g.ops(g("MatMul", g("Softmax", scores), g.v))


def test_it_can_be_switched_off(g: Attending) -> None:
    g.graph.output(g("MatMul", g("Softmax", g.scores()), g.v))
    assert optimise(g.graph).report["attention"] == 1
    kept = optimise(g.graph, DEFAULT - {"attention"})
    assert "Softmax" in [node.op for node in kept.graph.nodes]
    assert "attention" not in kept.report


# training graphs


def train(
    g: Attending, *, fold: bool, scale: float, guard: str = "", masked: bool = False, root: float = 1.0
) -> list[str]:
    """Returns the result, and the gradients of q, kᵀ and v as torch writes them out for a gradient of the result.

    `root` is a factor of queries and keys each.
    """
    heads = BATCH * HEADS

    def folded(name: str, *shape: int) -> str:
        return g.reshape(name, heads, *shape) if fold else name

    def unfolded(name: str, *shape: int) -> str:
        return g.reshape(name, BATCH, HEADS, *shape) if fold else name

    def rooted(name: str) -> str:
        return g("Mul", name, root) if root != 1 else name

    rank = 3 if fold else 4
    q, kt = folded(rooted(g.q), QUERIES, SIZE), folded(rooted(g.swap(g.k)), SIZE, KEYS)
    v = folded(g.v, KEYS, WIDTH)
    scores = unfolded(g("MatMul", q, kt), QUERIES, KEYS)
    scores = g("Mul", scores, scale) if scale != 1 else scores
    if masked:
        scores = g("Add", scores, np.tril(np.ones((QUERIES, KEYS), "f4")) * 2)
    chances = guarded(g, scores, guard) if guard else g("Softmax", scores, axis=3)
    flat = folded(chances, QUERIES, KEYS)
    y = g("MatMul", flat, v)
    dy = folded(g.input(BATCH, HEADS, QUERIES, WIDTH), QUERIES, WIDTH)
    dv = g("MatMul", g.swap(flat, rank), dy)
    slopes = g("umd.SoftmaxGrad", unfolded(g("MatMul", dy, g.swap(v, rank)), QUERIES, KEYS), chances, axis=3)
    slopes = folded(g("Mul", slopes, scale) if scale != 1 else slopes, QUERIES, KEYS)
    dq, dkt = g("MatMul", slopes, g.swap(kt, rank)), g("MatMul", g.swap(q, rank), slopes)
    if root != 1:
        dq, dkt = rooted(unfolded(dq, QUERIES, SIZE)), rooted(unfolded(dkt, SIZE, KEYS))
    return [y, dq, dkt, dv]


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize(("guard", "masked"), [("", False), ("", True), ("torch", True)])
def test_the_gradient_is_found_with_it(fold: bool, scale: float, guard: str, masked: bool, g: Attending) -> None:
    results = train(g, fold=fold, scale=scale, guard=guard, masked=masked)
    assert dense(g.ops(*results, expected=5e-6)) == ["umd.Attention", "umd.AttentionGrad"]


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_factors_of_queries_and_keys_are_the_ops(fold: bool, scale: float, g: Attending) -> None:
    """torch multiplies both by the root of the scale, and their gradients once more."""
    results = train(g, fold=fold, scale=scale, masked=True, root=0.6)
    assert dense(g.ops(*results, expected=5e-6)) == ["umd.Attention", "umd.AttentionGrad"]
    assert g.attributes()["scale"] == pytest.approx(0.36 * scale)


def test_a_factor_whose_gradient_nobody_wants_is_the_ops(g: Attending) -> None:
    y, dq, _, dv = train(g, fold=True, scale=1.0, root=0.6)
    assert dense(g.ops(y, dq, dv, expected=5e-6)) == ["umd.Attention", "umd.AttentionGrad"]


@pytest.mark.parametrize("instead", ["without it", "another one", "both"])
def test_a_factor_that_the_gradient_lacks_stays(instead: str, g: Attending) -> None:
    results = train(g, fold=False, scale=1.0, root=0.6)
    product = next(node.inputs[0] for node in g.graph.nodes if node.outputs[0] == results[1])
    if instead == "both":
        results.append(product)
    else:
        results[1] = g("Mul", product, 0.5) if instead == "another one" else product
    ops = dense(g.ops(*results, expected=5e-6))
    assert ops.count("umd.Attention") == ops.count("umd.AttentionGrad") == 1
    assert ops.count("Mul") == {"without it": 1, "another one": 2, "both": 2}[instead]
    assert g.attributes()["scale"] == pytest.approx(0.6)


def test_the_gradient_of_the_keys_may_be_made_without_a_transpose(g: Attending) -> None:
    results = train(g, fold=False, scale=1.0)
    slopes = next(node.outputs[0] for node in g.graph.nodes if node.op == "umd.SoftmaxGrad")
    results[2] = g("MatMul", g.swap(slopes), g.q)
    assert dense(g.ops(*results, expected=5e-6)) == ["umd.Attention", "umd.AttentionGrad"]


def test_a_gradient_that_nobody_wants_is_not_missed(g: Attending) -> None:
    y, dq, _, _ = train(g, fold=True, scale=0.5)
    assert dense(g.ops(y, dq, expected=5e-6)) == ["umd.Attention", "umd.AttentionGrad"]


def test_a_bias_that_is_trained_keeps_its_scores(g: Attending) -> None:
    results = train(g, fold=False, scale=1.0, masked=True)
    slopes = next(node.outputs[0] for node in g.graph.nodes if node.op == "umd.SoftmaxGrad")
    bias_gradient = g("ReduceSum", slopes, np.array([0, 1]), keepdims=False)
    assert "umd.Attention" not in g.ops(*results, bias_gradient, expected=5e-6)


def test_gradients_of_something_else_stay(g: Attending) -> None:
    """The gradient of the scores meets other queries than those that made them."""
    results = train(g, fold=False, scale=1.0)
    slopes = next(node.outputs[0] for node in g.graph.nodes if node.op == "umd.SoftmaxGrad")
    results[2] = g("MatMul", g.swap(g.input(BATCH, HEADS, QUERIES, SIZE)), slopes)
    assert "umd.AttentionGrad" not in g.ops(*results, expected=5e-6)


def test_probabilities_that_are_saved_stay(g: Attending) -> None:
    """torch.compile keeps them for a backward graph of its own."""
    chances = g("Softmax", g.scores())
    assert "umd.Attention" not in g.ops(g("MatMul", chances, g.v), chances)


# what gradients read


def merged(g: Attending, y: str, *shape: int) -> str:
    """Returns the result with all heads of a query side by side."""
    return g.reshape(g("Transpose", g.reshape(y, *shape) if shape else y, perm=(0, 2, 1, 3)), BATCH * QUERIES, -1)


def with_gradient(g: Attending, order: str) -> tuple[str, ...]:
    """Returns a projection of the result, that copy of it again, as a gradient of the projection reads it, and dQ."""
    heads, whole = (BATCH * HEADS, QUERIES, WIDTH), (BATCH, HEADS, QUERIES, WIDTH)
    y, lse = g.graph.add_many("umd.Attention", [g.q, g.k, g.v], 2)
    weight = g.input(HEADS * WIDTH, HEADS * WIDTH)

    def copied() -> str:
        return merged(g, g.reshape(y, *heads), *whole) if order == "folded" else merged(g, y)

    rows = "" if order == "late" else copied()
    dq = g("umd.AttentionGrad", g.input(*whole), g.q, g.k, g.v, y, lse)
    rows = rows or copied()
    return g("MatMul", rows, weight), g("Sin", g("MatMul", g("Transpose", rows, perm=(1, 0)), rows)), dq


def read_by_gradient(graph: Graph) -> str:
    """Returns the op that makes what the gradient reads for the result of attention."""
    (name,) = [node.inputs[4] for node in graph.nodes if node.op == "umd.AttentionGrad"]
    return next(node.op for node in graph.nodes if name in node.outputs)


@pytest.mark.parametrize("order", ["straight", "folded"])
def test_the_gradient_reads_the_copy_that_others_keep(order: str, g: Attending) -> None:
    assert g.ops(*with_gradient(g, order), expected=0).count("umd.AttentionGrad") == 1
    assert read_by_gradient(g.lean) == "Transpose"
    launches = [len(translate(graph).commands) for graph in (g.graph, g.lean)]
    assert launches[0] == launches[1]


def test_the_gradient_reads_no_copy_that_is_made_after_it(g: Attending) -> None:
    g.ops(*with_gradient(g, "late"), expected=0)
    assert read_by_gradient(g.lean) == "umd.Attention"


def test_outputs_of_the_gradient_that_nobody_wants_stay_away(g: Attending) -> None:
    y, lse = g.graph.add_many("umd.Attention", [g.q, g.k, g.v], 2)
    rows = merged(g, y)
    outputs = ("dq", "", "dv")
    inputs = [g.input(BATCH, HEADS, QUERIES, WIDTH), g.q, g.k, g.v, y, lse]
    g.graph.add("umd.AttentionGrad", inputs, outputs=outputs)
    g.ops(g("Sin", rows), "dq", "dv", expected=0)
    assert read_by_gradient(g.lean) == "Transpose"
