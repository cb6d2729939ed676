"""RNN, GRU and LSTM against torch's layers: directions, lengths, layouts, and what torch lacks against formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS
from umd_core.errors import AttributeValueError, ShapeError, UmdError
from umd_core.ir import TensorDesc
from umd_core.translate import translate

Array = np.ndarray[Any, Any]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}
"""Which of ONNX's gates comes where in torch's."""
LAYERS: dict[str, Callable[..., torch.nn.RNNBase]] = {"RNN": torch.nn.RNN, "GRU": torch.nn.GRU, "LSTM": torch.nn.LSTM}


def reordered(op: str, weights: Array) -> torch.Tensor:
    """Returns (gates · hidden, …) in torch's order of gates."""
    parts = np.split(weights, GATES[op])
    return torch.from_numpy(np.concatenate([parts[i] for i in ORDER[op]]).astype(np.float64))


def torch_layer(op: str, w: Array, r: Array, b: Array) -> torch.nn.RNNBase:
    directions, _, inputs = w.shape
    layer = LAYERS[op](inputs, r.shape[2], bidirectional=directions == 2).double()
    for d, suffix in zip(range(directions), ("", "_reverse"), strict=False):
        halves = np.split(b[d], 2)
        values = {"weight_ih": w[d], "weight_hh": r[d], "bias_ih": halves[0], "bias_hh": halves[1]}
        for name, value in values.items():
            getattr(layer, f"{name}_l0{suffix}").data = reordered(op, value)
    return layer


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("op", GATES)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 4),
    batch=st.integers(1, 3),
    directions=st.integers(1, 2),
    layout=st.sampled_from((0, 1)),
    lengths=st.booleans(),
)
def test_a_layer_is_torchs(
    op: str, path: str, seed: int, steps: int, batch: int, directions: int, layout: int, lengths: bool
) -> None:
    rng, inputs, hidden = np.random.default_rng(seed), 3, 2
    states = 2 if op == "LSTM" else 1
    x, w, r, b, *initial = (
        rng.normal(0, 1, shape).astype(np.float32)
        for shape in (
            (steps, batch, inputs), (directions, GATES[op] * hidden, inputs), (directions, GATES[op] * hidden, hidden),
            (directions, 2 * GATES[op] * hidden), *[(directions, batch, hidden)] * states,
        )
    )  # fmt: skip
    own = np.sort(rng.integers(1, steps + 1, batch))[::-1].astype(np.int32) if lengths else None
    attributes: dict[str, Any] = {"hidden_size": hidden, "layout": layout}
    attributes["direction"] = "bidirectional" if directions == 2 else "forward"
    if op == "GRU":
        attributes["linear_before_reset"] = 1
    turned = [np.swapaxes(v, 0, 1) for v in (x, *initial)] if layout else [x, *initial]
    got = PATHS[path](op, [turned[0], w, r, b, own, *turned[1:]], attributes, 1 + states)

    before = tuple(torch.from_numpy(v.astype(np.float64)) for v in initial)
    sequence: Any = torch.from_numpy(x.astype(np.float64))
    if own is not None:
        sequence = torch.nn.utils.rnn.pack_padded_sequence(sequence, torch.from_numpy(own.astype(np.int64).copy()))
    y, after = torch_layer(op, w, r, b)(sequence, before if states == 2 else before[0])
    if own is not None:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=steps)
    wanted = [y.detach().numpy().reshape(steps, batch, directions, hidden).swapaxes(1, 2)]
    wanted += [state.detach().numpy() for state in (after if states == 2 else (after,))]
    if layout:
        wanted = [wanted[0].transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in wanted[1:])]
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], list[float], list[float]]] = {
    "Relu": (lambda x: np.maximum(x, 0), [], []),
    "Tanh": (np.tanh, [], []),
    "Sigmoid": (sigmoid, [], []),
    "Softsign": (lambda x: x / (1 + np.abs(x)), [], []),
    "Softplus": (lambda x: np.log1p(np.exp(x)), [], []),
    "Elu": (lambda x: np.where(x < 0, 0.7 * np.expm1(x), x), [0.7], []),
    "LeakyRelu": (lambda x: np.where(x < 0, 0.3 * x, x), [0.3], []),
    "HardSigmoid": (lambda x: np.clip(0.4 * x + 0.1, 0, 1), [0.4], [0.1]),
    "Affine": (lambda x: 0.5 * x + 0.25, [0.5], [0.25]),
    "ScaledTanh": (lambda x: 1.7 * np.tanh(0.6 * x), [1.7], [0.6]),
    "ThresholdedRelu": (lambda x: np.where(x > 0.4, x, 0), [0.4], []),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_with_their_parameters(name: str) -> None:
    rng = np.random.default_rng(3)
    x, w, r = (rng.normal(0, 1, shape).astype(np.float32) for shape in ((3, 2, 3), (1, 2, 3), (1, 2, 2)))
    function, alpha, beta = ACTIVATIONS[name]
    attributes = {"activations": [name.encode()], "activation_alpha": alpha, "activation_beta": beta, "clip": 1.5}
    (got,) = PATHS["sim"]("RNN", [x, w, r], attributes)
    state = np.zeros((2, 2))
    for t, row in enumerate(x.astype(np.float64)):
        state = function(np.clip(row @ w[0].T + state @ r[0].T, -1.5, 1.5))
        np.testing.assert_allclose(got[t, 0], state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("coupled", [0, 1])
def test_lstm_with_peepholes_and_coupled_gates(coupled: int) -> None:
    rng, hidden = np.random.default_rng(5), 2
    shapes = ((4, 1, 3), (1, 8, 3), (1, 8, hidden), (1, 6))
    x, w, r, p = (rng.normal(0, 1, shape).astype(np.float32) for shape in shapes)
    y, h, c = PATHS["sim"]("LSTM", [x, w, r, None, None, None, None, p], {"input_forget": coupled}, 3)
    state, memory = np.zeros((1, hidden)), np.zeros((1, hidden))
    at_input, at_output, at_forget = np.split(p[0].astype(np.float64), 3)
    for t, row in enumerate(x.astype(np.float64)):
        i, o, f, g = np.split(row @ w[0].T + state @ r[0].T, 4, axis=1)
        i = sigmoid(i + at_input * memory)
        f = 1 - i if coupled else sigmoid(f + at_forget * memory)
        memory = f * memory + i * np.tanh(g)
        state = sigmoid(o + at_output * memory) * np.tanh(memory)
        np.testing.assert_allclose(y[t, 0], state, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h[0], state, rtol=1e-5)
    np.testing.assert_allclose(c[0], memory, rtol=1e-5)


def test_half_precision_is_computed_in_single() -> None:
    rng = np.random.default_rng(7)
    x, w, r = (rng.normal(0, 1, shape).astype(np.float16) for shape in ((2, 2, 3), (1, 6, 3), (1, 6, 2)))
    (got,) = PATHS["sim"]("GRU", [x, w, r])
    (want,) = PATHS["sim"]("GRU", [v.astype(np.float32) for v in (x, w, r)])
    np.testing.assert_array_equal(got, want.astype(np.float16))


X, W, R = [3, 2, 4], [1, 8, 4], [1, 8, 2]
REFUSED: list[tuple[str, list[list[int]], dict[str, Any], type[UmdError], str]] = [
    ("LSTM", [[3, 4], W, R], {}, ShapeError, "three axes"),
    ("LSTM", [X, [1, 7, 4], R], {}, ShapeError, "'W'"),
    ("LSTM", [X, W, R, [1, 8]], {}, ShapeError, "'B'"),
    ("LSTM", [X, W, R], {"direction": "bidirectional"}, ShapeError, "'W'"),
    ("LSTM", [X, W, R], {"direction": "backwards"}, AttributeValueError, "direction"),
    ("LSTM", [X, W, R], {"hidden_size": 3}, AttributeValueError, "hidden_size"),
    ("LSTM", [X, W, R], {"activations": ["Tanh"]}, AttributeValueError, "activations"),
    ("LSTM", [X, W, R], {"activations": ["Cosine"] * 3}, AttributeValueError, "'Cosine' is unknown"),
    ("LSTM", [X, W, R], {"layout": 2}, AttributeValueError, "layout"),
    ("GRU", [X, W, R], {}, ShapeError, "'W'"),
    ("RNN", [X, W, R], {}, ShapeError, "'W'"),
]


@pytest.mark.parametrize(("op", "shapes", "attributes", "error", "word"), REFUSED)
def test_refused(
    op: str, shapes: list[list[int]], attributes: dict[str, Any], error: type[UmdError], word: str
) -> None:
    with pytest.raises(error, match=word):
        translate(op, [TensorDesc("f32", shape) for shape in shapes], **attributes)


def test_peepholes_of_another_size_are_refused() -> None:
    descs = [TensorDesc("f32", shape) for shape in (X, W, R)]
    with pytest.raises(ShapeError, match="'P'"):
        translate("LSTM", [*descs, None, None, None, None, TensorDesc("f32", [1, 5])])
