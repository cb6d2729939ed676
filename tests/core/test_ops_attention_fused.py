"""Fused attention against torch in float64: ONNX's op where nobody sees its scores, umd.Attention and its gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS
from tests.core.recipe_interpreter import launches
from umd_core.errors import AttributeValueError, DTypeError, ShapeError, UmdError
from umd_core.ir import TensorDesc
from umd_core.translate import translate

Array = np.ndarray[Any, Any]
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 4e-3}


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(rng.normal(0, 1, shape).astype(dtype))


def close(got: Array, want: Any, dtype: Any = np.float32) -> None:
    tolerance = TOLERANCE[np.dtype(dtype).name]
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want), rtol=tolerance, atol=tolerance)


# ONNX's op


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    queries=st.integers(1, 5),
    keys=st.integers(1, 5),
    groups=st.integers(1, 2),
    past=st.sampled_from((0, 0, 2)),
    causal=st.booleans(),
    mask=st.sampled_from(("", "bool", "float", "head")),
    windows=st.tuples(st.integers(-1, 2), st.integers(-1, 2)),
    scale=st.sampled_from((None, 0.0, 0.7)),
)
def test_one_kernel_does_what_torch_does(
    path: str, seed: int, queries: int, keys: int, groups: int, past: int, causal: bool, mask: str,
    windows: tuple[int, int], scale: float | None,
) -> None:  # fmt: skip
    rng, batch, heads, size = np.random.default_rng(seed), 2, 2, 4
    q = normal(rng, batch, heads * groups, queries, size)
    k, v = normal(rng, batch, heads, keys, size), normal(rng, batch, heads, keys, 3)
    cache = [normal(rng, batch, heads, past, n) if past else None for n in (size, 3)]
    total = past + keys
    ahead = np.arange(past, past + queries)[:, None] - np.arange(total)
    allowed = np.ones((batch, 1, queries, total), bool) & ((ahead >= 0) | (not causal))
    allowed = allowed & ((ahead <= windows[0]) | (windows[0] < 0)) & ((-ahead <= windows[1]) | (windows[1] < 0))
    given_mask: Array | None = None
    bias: Any = 0.0
    if mask == "bool":
        given_mask = rng.integers(0, 2, (batch, 1, queries, total)).astype(bool)
        allowed = allowed & given_mask
    elif mask:
        bias = given_mask = normal(rng, *((1, heads * groups, 1) if mask == "head" else (queries,)), total)
    attributes: dict[str, Any] = {
        "is_causal": causal, "left_window_size": windows[0], "right_window_size": windows[1], "scale": scale,
    }  # fmt: skip
    (y,) = PATHS[path]("Attention", [q, k, v, given_mask, *cache], attributes)
    whole = [np.concatenate([old, new], 2) if old is not None else new for old, new in zip(cache, (k, v), strict=True)]
    tensors = [torch.from_numpy(x.astype(np.float64)) for x in (q, *(np.repeat(x, groups, 1) for x in whole))]
    factor = 1 / math.sqrt(size) if scale is None else scale
    scores = factor * tensors[0] @ tensors[1].transpose(2, 3) + torch.from_numpy(np.where(allowed, bias, -np.inf))
    close(y, torch.nan_to_num(torch.softmax(scores, -1)) @ tensors[2])


SHAPES = [np.zeros((2, 4, 3, 8), "f4")] * 3
HALVES = [x.astype("f2") for x in SHAPES]


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [(SHAPES, {}), (SHAPES, {"is_causal": True}), (HALVES, {"softmax_precision": "float32"})],
)
def test_it_is_one_launch(inputs: list[Array], attributes: dict[str, Any]) -> None:
    assert launches("Attention", inputs, attributes) == ["attention_kernel"]


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (SHAPES, {"softcap": 2.0}),
        (SHAPES, {"softmax_precision": "float64"}),
        (SHAPES, {"softmax_precision": "float16"}),
    ],
)
def test_what_the_kernel_does_not_do_is_written_out(inputs: list[Array], attributes: dict[str, Any]) -> None:
    assert "attention_kernel" not in launches("Attention", inputs, attributes)
    assert "softmax_kernel" in launches("Attention", inputs, attributes)


# umd.Attention and its gradients

Shapes = tuple[tuple[int, ...], ...]
BROADCAST: list[Shapes] = [
    ((3, 4), (5, 4), (5, 2)),
    ((2, 3, 3, 4), (2, 3, 5, 4), (2, 3, 5, 2)),
    ((2, 3, 3, 4), (1, 3, 5, 4), (3, 5, 2)),
    ((3, 4), (2, 5, 4), (2, 1, 5, 4)),
    ((2, 1, 1), (2, 1, 1), (2, 1, 1)),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("masked", ["", "whole", "keys"])
@pytest.mark.parametrize("shapes", BROADCAST)
def test_gradients_are_torchs(path: str, dtype: Any, masked: str, shapes: Shapes) -> None:
    rng = np.random.default_rng(3)
    operands = [normal(rng, *shape, dtype=dtype) for shape in shapes]
    tensors = [torch.from_numpy(x.astype(np.float64)).requires_grad_() for x in operands]
    scores = 0.5 * tensors[0] @ tensors[1].transpose(-1, -2)
    bias: list[Array | None] = [None]
    if masked:
        shape = scores.shape if masked == "whole" else scores.shape[-1:]
        bias = [np.where(rng.random(shape) < 0.3, -np.inf, normal(rng, *shape)).astype(dtype)]
        bias[0][..., 0] = 0.25  # type: ignore[index]  # every query sees the first key
        scores = scores + torch.from_numpy(bias[0].astype(np.float64))  # type: ignore[union-attr]  # just made
    wanted = torch.softmax(scores, -1) @ tensors[2]
    y, lse = PATHS[path]("umd.Attention", [*operands, *bias], {"scale": 0.5}, 2)
    assert (y.dtype, lse.dtype) == (dtype, np.float32 if dtype is np.float16 else np.float64)
    close(y, wanted.detach(), dtype)
    close(lse, torch.logsumexp(scores, -1).detach().expand(lse.shape), dtype)
    dy = normal(rng, *wanted.shape, dtype=dtype)
    wanted.backward(torch.from_numpy(dy.astype(np.float64)))
    grads = PATHS[path]("umd.AttentionGrad", [dy, *operands, y, lse, *bias], {"scale": 0.5}, 3)
    for grad, tensor in zip(grads, tensors, strict=True):
        assert grad.dtype == dtype
        assert tensor.grad is not None
        close(grad / 4, tensor.grad / 4, dtype)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), queries=st.integers(1, 6), keys=st.integers(1, 6), biased=st.booleans())
def test_causal_is_a_mask(path: str, seed: int, queries: int, keys: int, biased: bool) -> None:
    rng = np.random.default_rng(seed)
    operands = [normal(rng, 2, queries, 4), normal(rng, 2, keys, 4), normal(rng, 2, keys, 3)]
    bias = normal(rng, queries, keys) if biased else np.zeros((queries, keys), np.float32)
    dy = normal(rng, 2, queries, 3)
    found = []
    for attributes, added in (
        ({"is_causal": 1}, bias if biased else None),
        ({}, np.where(np.tri(queries, keys, dtype=bool), bias, np.float32(-np.inf))),
    ):
        y, lse = PATHS[path]("umd.Attention", [*operands, added], attributes, 2)
        found.append((y, lse, *PATHS[path]("umd.AttentionGrad", [dy, *operands, y, lse, added], attributes, 3)))
    for by_attribute, by_mask in zip(*found, strict=True):
        close(by_attribute, by_mask)


@pytest.mark.parametrize("path", PATHS)
def test_queries_without_keys(path: str) -> None:
    rng = np.random.default_rng(4)
    q, k, v = normal(rng, 4, 8), normal(rng, 3, 8), normal(rng, 3, 5)
    q[3] = np.nan
    bias = np.zeros((4, 3), np.float32)
    bias[1] = -np.inf
    bias[2, :2] = -np.inf
    for guarded, dead, broken in ((0, np.nan, np.nan), (1, 0.0, np.nan), (2, 0.0, 0.0)):
        y, lse = PATHS[path]("umd.Attention", [q, k, v, bias], {"guarded": guarded}, 2)
        np.testing.assert_array_equal(y[1], np.full(5, dead))
        np.testing.assert_array_equal(y[3], np.full(5, broken))
        np.testing.assert_allclose(y[2], v[2], rtol=1e-6)
        assert (lse[1], lse[3]) == tuple(
            -np.inf if x == 0 else pytest.approx(np.nan, nan_ok=True) for x in (dead, broken)
        )
        if guarded == 2:
            dy = normal(rng, 4, 5)
            dq, dk, dv = PATHS[path]("umd.AttentionGrad", [dy, np.nan_to_num(q), k, v, y, lse, bias], {"guarded": 2}, 3)
            assert not dq[[1, 3]].any()
            again = PATHS[path](
                "umd.AttentionGrad", [dy[[0, 2]], q[[0, 2]], k, v, y[[0, 2]], lse[[0, 2]], bias[[0, 2]]], {}, 3
            )
            for got, want in zip((dq[[0, 2]], dk, dv), again, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_no_keys_give_zero(path: str) -> None:
    empty = np.zeros((2, 0, 4), np.float32)
    y, lse = PATHS[path]("umd.Attention", [np.ones((2, 3, 4), "f4"), empty, empty], {}, 2)
    assert not y.any()
    assert (lse == -np.inf).all()


def test_scores_far_apart_do_not_overflow() -> None:
    q, k = np.array([[100.0], [-100.0], [0.001]], np.float32), np.array([[100.0], [99.0], [-3.0]], np.float32)
    v = np.array([[1.0], [2.0], [4.0]], np.float32)
    y, lse = PATHS["sim"]("umd.Attention", [q, k, v], {}, 2)
    np.testing.assert_allclose(y[:2, 0], [1.0, 4.0])
    np.testing.assert_allclose(lse[:2], [10000.0, 300.0])
    scores = q[2].astype(np.float64) * k[:, 0]
    np.testing.assert_allclose(y[2, 0], (np.exp(scores) @ v[:, 0]) / np.exp(scores).sum(), rtol=1e-6)


REFUSED: list[tuple[str, list[list[int]], dict[str, Any], type[UmdError], str]] = [
    ("umd.Attention", [[4], [3, 4], [3, 4]], {}, ShapeError, "'Q'"),
    ("umd.Attention", [[2, 4], [3, 5], [3, 4]], {}, ShapeError, "'K'"),
    ("umd.Attention", [[2, 4], [3, 4], [2, 4]], {}, ShapeError, "'V'"),
    ("umd.Attention", [[2, 2, 4], [3, 3, 4], [3, 3, 4]], {}, ShapeError, "leading axes"),
    ("umd.Attention", [[2, 4], [3, 4], [3, 4], [2, 2]], {}, ShapeError, "'bias'"),
    ("umd.Attention", [[2, 4], [3, 4], [3, 4]], {"guarded": 3}, AttributeValueError, "guarded"),
    ("umd.Attention", [[2, 4], [3, 4], [3, 4]], {"is_causal": 2}, AttributeValueError, "is_causal"),
    ("umd.AttentionGrad", [[2, 5], [2, 4], [3, 4], [3, 4], [2, 4], [2]], {}, ShapeError, "'dY'"),
    ("umd.AttentionGrad", [[2, 4], [2, 4], [3, 4], [3, 4], [2, 4], [3]], {}, ShapeError, "'lse'"),
]


@pytest.mark.parametrize(("op", "shapes", "attributes", "error", "word"), REFUSED)
def test_refused(
    op: str, shapes: list[list[int]], attributes: dict[str, Any], error: type[UmdError], word: str
) -> None:
    with pytest.raises(error, match=word):
        translate(op, [TensorDesc("f32", shape) for shape in shapes], **attributes)


def test_integers_are_refused() -> None:
    with pytest.raises(DTypeError, match="'Q'"):
        translate("umd.Attention", [TensorDesc("i32", [2, 4])] * 3)
