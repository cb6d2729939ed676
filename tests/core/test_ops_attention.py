"""Attention, RMSNormalization and RotaryEmbedding against torch, over masks, caches, head groups and types."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS
from umd_core.errors import AttributeValueError, DTypeError, ShapeError, UmdError
from umd_core.ir import TensorDesc
from umd_core.translate import translate

Array = np.ndarray[Any, Any]


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(rng.normal(0, 1, shape).astype(dtype))


def attended(q: Array, k: Array, v: Array, bias: Array) -> tuple[Array, Array]:
    """Returns softmax(q · kᵀ / sqrt(d) + bias) · v and the softmax by torch in float64; rows without a key give 0."""
    query, *cache = (torch.from_numpy(x.astype(np.float64)) for x in (q, k, v))
    key, value = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in cache)
    scores = query @ key.transpose(2, 3) / math.sqrt(q.shape[3]) + torch.from_numpy(bias.astype(np.float64))
    chances = torch.nan_to_num(torch.softmax(scores, -1))
    return (chances @ value).numpy(), chances.numpy()


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    queries=st.integers(1, 4),
    keys=st.integers(1, 4),
    groups=st.integers(1, 2),
    past=st.sampled_from((0, 0, 2)),
    causal=st.booleans(),
    mask=st.sampled_from(("", "bool", "float", "short")),
    windows=st.tuples(st.integers(-1, 2), st.integers(-1, 2)),
    joined=st.booleans(),
)
def test_attention_is_torchs(
    path: str, seed: int, queries: int, keys: int, groups: int, past: int, causal: bool, mask: str,
    windows: tuple[int, int], joined: bool,
) -> None:  # fmt: skip
    rng, batch, heads, size = np.random.default_rng(seed), 2, 2, 4
    q, k, v = (
        normal(rng, batch, heads * groups, queries, size),
        *(normal(rng, batch, heads, keys, n) for n in (size, 3)),
    )
    cache = [normal(rng, batch, heads, past, n) if past else None for n in (size, 3)]
    total = past + keys
    ahead = np.arange(past, past + queries)[:, None] - np.arange(total)
    allowed = np.ones((batch, 1, queries, total), bool) & ((ahead >= 0) | (not causal))
    allowed = allowed & ((ahead <= windows[0]) | (windows[0] < 0)) & ((-ahead <= windows[1]) | (windows[1] < 0))
    bias, given_mask = np.zeros(allowed.shape), None
    if mask == "float":
        given_mask = normal(rng, queries, total)
        bias = bias + given_mask
    elif mask:
        given_mask = rng.integers(0, 2, (batch, 1, queries, total - (mask == "short"))).astype(bool)
        padded = np.zeros_like(allowed)
        padded[..., : given_mask.shape[-1]] = given_mask
        allowed = allowed & padded
    bias = np.where(allowed, bias, -np.inf)
    attributes: dict[str, Any] = {
        "is_causal": causal, "left_window_size": windows[0], "right_window_size": windows[1],
        "qk_matmul_output_mode": 3,
    }  # fmt: skip
    inputs = [q, k, v]
    if joined:
        inputs = [x.transpose(0, 2, 1, 3).reshape(batch, x.shape[2], -1) for x in inputs]
        attributes |= {"q_num_heads": heads * groups, "kv_num_heads": heads}
    y, present_key, present_value, chances = PATHS[path]("Attention", [*inputs, given_mask, *cache], attributes, 4)
    whole = [np.concatenate([old, new], 2) if old is not None else new for old, new in zip(cache, (k, v), strict=True)]
    want, want_chances = attended(q, whole[0], whole[1], bias)
    if joined:
        want = want.transpose(0, 2, 1, 3).reshape(y.shape)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(chances, want_chances, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(present_key, whole[0])
    np.testing.assert_array_equal(present_value, whole[1])


@pytest.mark.parametrize("path", PATHS)
def test_only_so_many_keys_of_each_batch_are_valid(path: str) -> None:
    rng = np.random.default_rng(1)
    q, k, v = normal(rng, 2, 1, 2, 4), normal(rng, 2, 1, 5, 4), normal(rng, 2, 1, 5, 4)
    lengths = np.array([3, 5])
    allowed = np.arange(5) < lengths[:, None, None, None]
    allowed = allowed & (np.arange(5) <= np.arange(2)[:, None] + lengths[:, None, None, None] - 2)
    (got,) = PATHS[path]("Attention", [q, k, v, None, None, None, lengths], {"is_causal": 1})
    np.testing.assert_allclose(got, attended(q, k, v, np.where(allowed, 0, -np.inf))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_scores_before_and_after_capping_and_masking(mode: int) -> None:
    rng = np.random.default_rng(2)
    q, k, v, mask = normal(rng, 1, 1, 2, 4), normal(rng, 1, 1, 3, 4), normal(rng, 1, 1, 3, 4), normal(rng, 2, 3)
    attributes = {"softcap": 0.5, "scale": 2.0, "qk_matmul_output_mode": mode}
    _, _, _, got = PATHS["sim"]("Attention", [q, k, v, mask], attributes, 4)
    raw = 2.0 * (q.astype(np.float64) @ k.transpose(0, 1, 3, 2))
    capped = 0.5 * np.tanh(raw / 0.5)
    np.testing.assert_allclose(got, (raw, capped, capped + mask)[mode], rtol=1e-5, atol=1e-6)


Q = [2, 4, 3, 8]
REFUSED: list[tuple[list[list[int] | None], dict[str, Any], type[UmdError], str]] = [
    ([[2, 3], [2, 3], [2, 3]], {}, ShapeError, "'Q'"),
    ([[2, 3, 8]] * 3, {}, AttributeValueError, "q_num_heads"),
    ([[2, 3, 8]] * 3, {"q_num_heads": 3, "kv_num_heads": 2}, AttributeValueError, "q_num_heads"),
    ([Q, Q, Q], {"q_num_heads": 2}, AttributeValueError, "q_num_heads"),
    ([Q, [2, 3, 3, 8], [2, 3, 3, 8]], {}, ShapeError, "Q, K and V"),
    ([Q, Q, [2, 4, 4, 8]], {}, ShapeError, "Q, K and V"),
    ([Q, Q, Q, [5]], {}, ShapeError, "attn_mask"),
    ([Q, Q, Q, None, Q], {}, ShapeError, "past_value"),
    ([Q, Q, Q, None, Q, [2, 4, 2, 8]], {}, ShapeError, "past_value"),
    ([Q, Q, Q], {"left_window_size": -2}, AttributeValueError, "left_window_size"),
    ([Q, Q, Q], {"qk_matmul_output_mode": 4}, AttributeValueError, "qk_matmul_output_mode"),
    ([Q, Q, Q], {"scale": -1.0}, AttributeValueError, "scale"),
]


@pytest.mark.parametrize(("shapes", "attributes", "error", "word"), REFUSED)
def test_refused(shapes: list[list[int] | None], attributes: dict[str, Any], error: type[UmdError], word: str) -> None:
    with pytest.raises(error, match=word):
        translate("Attention", [None if s is None else TensorDesc("f32", s) for s in shapes], **attributes)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization_is_torchs(path: str, dtype: Any, axis: int) -> None:
    rng = np.random.default_rng(4)
    x = normal(rng, 2, 3, 4, dtype=dtype)
    scale = normal(rng, *x.shape[axis:], dtype=dtype)
    (got,) = PATHS[path]("RMSNormalization", [x, scale], {"axis": axis, "epsilon": 1e-3})
    tensors = [torch.from_numpy(v.astype(np.float64)) for v in (x, scale)]
    want = torch.nn.functional.rms_norm(tensors[0], scale.shape, tensors[1], 1e-3).numpy()
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == np.float16 else 1e-5)


def test_rms_normalization_refuses_another_scale() -> None:
    with pytest.raises(ShapeError, match="'scale'"):
        translate("RMSNormalization", [TensorDesc("f32", [2, 3]), TensorDesc("f32", [4])])


def turned(x: Array, angle: Array, interleaved: bool) -> Array:
    """Returns pairs of (…, 2n) turned as complex numbers."""
    half = x.shape[-1] // 2
    pairs = x[..., ::2] + 1j * x[..., 1::2] if interleaved else x[..., :half] + 1j * x[..., half:]
    result = pairs * np.exp(1j * angle)
    parts = np.stack([result.real, result.imag], -1 if interleaved else -2)
    return np.asarray(parts.reshape(x.shape))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("places", [False, True])
def test_rotary_embedding_turns_pairs(path: str, interleaved: int, size: int, places: bool) -> None:
    rng, heads, head = np.random.default_rng(6), 2, 6
    part = size or head
    x = normal(rng, 2, 3, heads * head)
    angle = rng.uniform(-3, 3, (9, part // 2) if places else (2, 3, part // 2))
    ids = rng.integers(0, 9, (2, 3)) if places else None
    caches = [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]
    attributes = {"interleaved": interleaved, "num_heads": heads, "rotary_embedding_dim": size}
    (got,) = PATHS[path]("RotaryEmbedding", [x, *caches, ids], attributes)
    want = x.reshape(2, 3, heads, head).astype(np.float64)
    own = (angle[ids] if ids is not None else angle)[:, :, None]
    want[..., :part] = turned(want[..., :part], own, bool(interleaved))
    np.testing.assert_allclose(got, want.reshape(x.shape), rtol=1e-5, atol=1e-6)


def test_rotary_embedding_refuses_what_does_not_pair() -> None:
    x, cache = TensorDesc("f32", [1, 2, 3, 6]), TensorDesc("f32", [1, 3, 3])
    with pytest.raises(AttributeValueError, match="rotary_embedding_dim"):
        translate("RotaryEmbedding", [x, cache, cache], rotary_embedding_dim=5)
    with pytest.raises(AttributeValueError, match="num_heads"):
        translate("RotaryEmbedding", [TensorDesc("f32", [1, 3, 12]), cache, cache])
    with pytest.raises(ShapeError, match="cos_cache"):
        translate("RotaryEmbedding", [x, TensorDesc("f32", [1, 3, 2]), cache])
    with pytest.raises(DTypeError, match="sin_cache"):
        translate("RotaryEmbedding", [x, cache, TensorDesc("f64", [1, 3, 3])])
