"""Attention and its gradients on NumPy: every type, layout and way of taking the scores apart, against torch."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME
from umd_core.kernels.attention import UNBOUNDED
from umd_sim.lowerings import attention, attention_blocks, attention_short, lowering_of
from umd_sim.lowerings.layout import bind
from umd_sim.scratch import Scratch

Array = NDArray[Any]
TYPES = list(itertools.product(dtypes.FLOATS, (dtypes.float32, dtypes.float64)))
FORWARD, GRADIENT = "attention_kernel", "attention_grad_kernel"
BOUNDS = ((-UNBOUNDED, UNBOUNDED), (-UNBOUNDED, 0), (-2, 1), (1, 3), (-UNBOUNDED, -9), (7, UNBOUNDED))


def oracle(launch: sim.Launch) -> dict[str, Array]:
    """Returns what torch has, in float64, for the operands of a launch."""
    given_arrays = {name: torch.from_numpy(array.astype(np.float64)) for name, array in launch.inputs.items()}
    q, k, v, bias = (given_arrays[name] for name in ("q", "k", "v", "bias"))
    ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    hidden = (ahead < launch.parameters["low"]) | (ahead > launch.parameters["high"])
    scale = launch.parameters["scale"]
    scores = (scale * q @ k.transpose(-1, -2) + bias).masked_fill(hidden, -torch.inf)
    if "dy" not in given_arrays:
        lse = torch.logsumexp(scores, -1)
        dead = torch.isneginf(lse)[..., None]
        y = torch.where(dead, 0, torch.softmax(scores, -1)) @ v
        return {"y": y.numpy(), "lse": lse.numpy()}
    y, dy, lse = (given_arrays[name] for name in ("y", "dy", "lse"))
    chances = torch.where(torch.isneginf(lse)[..., None], 0, torch.exp(scores - lse[..., None]))
    slopes = scale * chances * (dy @ v.transpose(-1, -2) - (dy * y).sum(-1, keepdim=True))
    found = {"dq": slopes @ k, "dk": slopes.transpose(-1, -2) @ q, "dv": chances.transpose(-1, -2) @ dy}
    return {name: grad.numpy() for name, grad in found.items()}


def check(
    name: str, types: tuple[DType, ...], batch: tuple[int, ...], sizes: tuple[int, int, int, int],
    bounds: tuple[int, int], seed: int, bias: str = "numbers",
) -> None:  # fmt: skip
    """Runs a launch beside the oracle."""
    rng = np.random.default_rng(seed)
    rank = sim.rank_class(len(batch))
    extents = {"outer": sim.padded(batch, rank), **dict(zip(("queries", "keys", "depth", "width"), sizes, strict=True))}
    fields = {"scale": 0.5, "low": bounds[0], "high": bounds[1], "guarded": 1}

    def make(operand: str, shape: tuple[int, ...], numpy: np.dtype[Any]) -> Array:
        numbers = rng.normal(0, 1, shape)
        if operand == "bias" and bias == "causal":
            numbers = np.where(np.tril(np.ones(shape[-2:])), 0, -np.inf) + np.zeros(shape)
        elif operand == "bias" and bias == "holes":
            numbers = np.where(rng.random(shape) < 0.4, -np.inf, numbers)
        elif operand == "lse":
            numbers = np.where(rng.random(shape) < 0.2, -np.inf, rng.uniform(0, 3, shape))
        return np.asarray(numbers.astype(numpy))

    launch = sim.launch(name, types, (rank,), extents, fields=fields, seed=seed, plain=seed % 3 == 0, make=make)
    wanted = oracle(launch)
    for key, got in launch.run().items():
        if wanted[key].size:
            scale = np.full(got.shape, 8 * np.abs(wanted[key][np.isfinite(wanted[key])]).max(initial=1.0))
            computed = got.dtype if types[0] is dtypes.float64 or key != "lse" else np.dtype(np.float32)
            sim.close(got, wanted[key], 32.0, computed, scale)


@pytest.mark.parametrize("few", [0, 1 << 13], ids=["long", "short"])
@pytest.mark.parametrize("types", TYPES, ids=lambda types: "-".join(t.name for t in types))
@pytest.mark.parametrize("name", [FORWARD, GRADIENT])
def test_every_type_and_bound(name: str, types: tuple[DType, ...], few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_short, "FEW", few)
    for seed, bounds in enumerate(BOUNDS):
        check(name, types, (2, 3), (5, 6, 4, 3), bounds, seed, ("numbers", "holes")[seed % 2])


@settings(max_examples=150)
@given(
    name=st.sampled_from((FORWARD, GRADIENT)),
    batch=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    sizes=st.tuples(*[st.integers(0, 7)] * 4),
    bounds=st.sampled_from(BOUNDS),
    bias=st.sampled_from(("numbers", "holes", "causal")),
    parts=st.tuples(st.sampled_from((1, 8, 30, 1 << 16)), st.integers(1, 4), st.sampled_from((0, 1 << 13))),
    seed=st.integers(0, 2**32),
)
def test_any_size_in_any_parts(
    name: str, batch: tuple[int, ...], sizes: tuple[int, int, int, int], bounds: tuple[int, int], bias: str,
    parts: tuple[int, int, int], seed: int,
) -> None:  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_blocks, "PIECE", parts[0])
        patch.setattr(attention, "BANDED", parts[1])
        patch.setattr(attention_short, "FEW", parts[2])
        check(name, (dtypes.float32, dtypes.float32), batch, sizes, bounds, seed, bias)


def prepared(
    name: str, heads: int, length: int, bias: Array, high: int = UNBOUNDED, guarded: int = 1
) -> tuple[Any, dict[str, Array], Scratch]:
    """Returns a call over row-major heads of 16 numbers, its operands, and the scratch memory that it takes."""
    record, size = BY_NAME[name].record((dtypes.float32, dtypes.float32), (1,)), 16
    rng = np.random.default_rng(7)
    parameters: dict[str, Any] = {
        "outer": (heads,), "queries": length, "keys": length, "depth": size, "width": size, "scale": 0.25,
        "low": -UNBOUNDED, "high": high, "guarded": guarded,
    }  # fmt: skip
    arrays: dict[str, Array] = {}
    for operand in record.row.operands:
        parameters[f"{operand.name}_offset"] = 0
        strides: tuple[int, ...] = (length * size, size, 1)
        arrays[operand.name] = rng.normal(size=(heads, length, size)).astype(np.float32)
        if operand.name == "bias":
            strides, arrays["bias"] = ((0, length, 1) if bias.size > 1 else (0, 0, 0)), bias.astype(np.float32)
        elif operand.name == "lse":
            strides, arrays["lse"] = (length, 1), np.zeros((heads, length), np.float32)
        parameters[f"{operand.name}_strides"] = strides
    block, scratch = record.pack(**parameters), Scratch()
    lowering = lowering_of(record.row)
    assert lowering is not None
    bindings = [(SimpleNamespace(memory=a.reshape(-1).view(np.uint8)), 0, a.nbytes) for a in arrays.values()]
    return bind(lowering(record, block), block, bindings, scratch), arrays, scratch


def test_the_scores_never_exist_whole() -> None:
    heads, length = 2, 1024
    for name in (FORWARD, GRADIENT):
        call, _, scratch = prepared(name, heads, length, np.zeros(1))
        call()
        assert scratch.used < heads * length * length * 4 / 3


def test_a_causal_bias_is_the_causal_bound() -> None:
    length = 200
    bias = np.where(np.tril(np.ones((length, length))), 0, -np.inf)
    for name in (FORWARD, GRADIENT):
        results = []
        for added, high in ((bias, UNBOUNDED), (np.zeros(1), 0)):
            call, arrays, _ = prepared(name, 3, length, added, high)
            call()
            results.append([arrays[o.name].copy() for o in BY_NAME[name].operands if o.writes])
        for by_bias, by_bound in zip(*results, strict=True):
            np.testing.assert_allclose(by_bias, by_bound, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("hidden", ["none", "first", "last", "all"])
def test_a_bias_that_hides_keys_from_whole_blocks(hidden: str) -> None:
    length = 150
    bias = np.zeros((length, length))
    places = {"first": np.s_[:, :40], "last": np.s_[70:, 90:], "all": np.s_[64:, :]}
    if hidden in places:
        bias[places[hidden]] = -np.inf
    call, arrays, _ = prepared(FORWARD, 2, length, bias)
    with np.errstate(invalid="ignore"):
        call()
    q, k, v = (torch.from_numpy(arrays[n].astype(np.float64)) for n in "qkv")
    wanted = torch.nan_to_num(torch.softmax(0.25 * q @ k.transpose(1, 2) + torch.from_numpy(bias), -1)) @ v
    np.testing.assert_allclose(arrays["y"], wanted.numpy(), rtol=1e-5, atol=1e-5)
    if hidden == "all":
        assert (arrays["lse"][:, 64:] == -np.inf).all()


@pytest.mark.parametrize("guarded", [0, 1, 2])
def test_few_scores_give_what_many_do(guarded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that no key is left to, and scores that are no numbers, among the others."""
    heads, length = 2, 6
    bias = np.zeros((length, length))
    bias[1], bias[2, 3], bias[3, 2], bias[4, 1:] = -np.inf, np.nan, np.inf, -np.inf
    results = []
    for few in (0, 1 << 13):
        monkeypatch.setattr(attention_short, "FEW", few)
        forward, arrays, _ = prepared(FORWARD, heads, length, bias, guarded=guarded)
        backward, grads, _ = prepared(GRADIENT, heads, length, bias, guarded=guarded)
        with np.errstate(all="ignore"):
            forward()
            np.copyto(grads["y"], arrays["y"])
            np.copyto(grads["lse"], arrays["lse"])
            backward()
        results.append([arrays["y"], arrays["lse"], grads["dq"], grads["dk"], grads["dv"]])
    dead = {0: [], 1: [1], 2: [1, 2, 3]}[guarded]
    y, lse = results[0][:2]
    assert (y[:, dead] == 0).all()
    assert (lse[:, dead] == -np.inf).all()
    assert np.isnan(np.delete(y, dead, 1)).any() == (guarded < 2)
    for long, short in zip(*results, strict=True):
        np.testing.assert_allclose(short, long, rtol=2e-5, atol=2e-6)
