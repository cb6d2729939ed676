"""Optimizer updates against torch's optimizers and against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME
from umd_sim.lowerings import updates

Array = NDArray[Any]
NAMES = ("sgd_kernel", "sgd_momentum_kernel", "adamw_kernel")
TYPES = BY_NAME["sgd_kernel"].types[0][1]
FIELDS: dict[str, list[dict[str, Any]]] = {
    "sgd_kernel": [{"weight_decay": 0.0}, {"weight_decay": 0.1}],
    "sgd_momentum_kernel": [
        {"weight_decay": 0.0, "momentum": 0.9, "dampening": 0.0, "nesterov": 0},
        {"weight_decay": 0.1, "momentum": 0.8, "dampening": 0.0, "nesterov": 1},
        {"weight_decay": 0.1, "momentum": 0.8, "dampening": 0.2, "nesterov": 0},
    ],
    "adamw_kernel": [
        {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.01, "decoupled": 1},
        {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.1, "decoupled": 0},
    ],
}


def formula(name: str, fields: dict[str, Any], inputs: dict[str, Array]) -> dict[str, Array]:
    """Returns the updated operands by the table's mathematics, in float64."""
    p, g = (inputs[key].astype(np.float64) for key in ("p", "g"))
    lr = float(inputs["lr"].reshape(()))
    if name == "sgd_kernel":
        return {"p": p - lr * (g + fields["weight_decay"] * p)}
    step = float(inputs["step"].reshape(()))
    m = inputs["m"].astype(np.float64)
    if name == "sgd_momentum_kernel":
        d = g + fields["weight_decay"] * p
        m = d if step == 1 else fields["momentum"] * m + (1 - fields["dampening"]) * d
        return {"p": p - lr * (d + fields["momentum"] * m if fields["nesterov"] else m), "m": m}
    v = inputs["v"].astype(np.float64)
    if fields["decoupled"]:
        p = p * (1 - lr * fields["weight_decay"])
    else:
        g = g + fields["weight_decay"] * p
    m = fields["beta1"] * m + (1 - fields["beta1"]) * g
    v = fields["beta2"] * v + (1 - fields["beta2"]) * g * g
    root = np.sqrt(v) / np.sqrt(1 - fields["beta2"] ** step) + fields["epsilon"]
    return {"p": p - lr / (1 - fields["beta1"] ** step) * m / root, "m": m, "v": v}


def check(name: str, dtype: DType, shape: tuple[int, ...], fields: dict[str, Any], seed: int) -> None:
    rank = sim.rank_class(len(shape))
    rng = np.random.default_rng(seed)

    def make(operand: str, extents: tuple[int, ...], numpy: np.dtype[Any]) -> Array:
        if operand == "step":
            return np.full(extents, 1 + seed % 3, numpy)
        if operand == "lr":
            return np.full(extents, 0.05, numpy)
        made = rng.standard_normal(extents)
        return (np.abs(made) if operand == "v" else made).astype(numpy)

    launch = sim.launch(
        name, (dtype,), (rank,), {"extents": sim.padded(shape, rank)}, fields=fields, seed=seed, make=make,
        plain=seed % 4 == 0,
    )  # fmt: skip
    expected = formula(name, fields, launch.inputs)
    for key, array in launch.run().items():
        scale = 1 + np.abs(expected[key]) + np.abs(launch.inputs[key].astype(np.float64))
        sim.close(array, expected[key], 32.0, array.dtype, scale)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_kernel_and_type(name: str, dtype: DType) -> None:
    for seed, shape in enumerate(((5, 6), (), (7, 1, 2, 3, 2), (0, 3))):
        for fields in FIELDS[name]:
            check(name, dtype, shape, fields, seed)


@pytest.mark.parametrize("name", NAMES)
def test_more_than_one_block(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(updates, "BLOCK", 100)
    for dtype in (dtypes.float32, dtypes.bfloat16):
        for seed, shape in enumerate(((1050,), (3, 130), (30, 7), (5, 4, 9))):
            check(name, dtype, shape, FIELDS[name][1], seed)


@given(
    name=st.sampled_from(NAMES),
    dtype=st.sampled_from(TYPES),
    shape=st.lists(st.integers(0, 4), max_size=5).map(tuple),
    which=st.integers(0, 1),
    seed=st.integers(0, 2**32),
)
def test_any_layout(name: str, dtype: DType, shape: tuple[int, ...], which: int, seed: int) -> None:
    check(name, dtype, shape, FIELDS[name][which], seed)


def optimizer(name: str, fields: dict[str, Any], p: torch.Tensor) -> torch.optim.Optimizer:
    decay = fields["weight_decay"]
    if name == "adamw_kernel":
        kind = torch.optim.AdamW if fields["decoupled"] else torch.optim.Adam
        betas = (fields["beta1"], fields["beta2"])
        return kind([p], lr=0.125, betas=betas, eps=fields["epsilon"], weight_decay=decay)
    extra = (
        {"momentum": fields["momentum"], "dampening": fields["dampening"], "nesterov": bool(fields["nesterov"])}
        if "momentum" in fields
        else {}
    )
    return torch.optim.SGD([p], lr=0.125, weight_decay=decay, **extra)


@pytest.mark.parametrize("name", NAMES)
def test_four_steps_against_torch(name: str) -> None:
    for fields in FIELDS[name]:
        rng = np.random.default_rng(0)
        p = rng.standard_normal(40)
        reference = torch.tensor(p.copy(), requires_grad=True)
        theirs = optimizer(name, fields, reference)
        state: dict[str, Array] = {"p": p, "m": np.zeros(40), "v": np.zeros(40), "lr": np.full((), 0.125, np.float32)}
        record = BY_NAME[name].record((dtypes.float64,), (1,))
        layout: dict[str, Any] = {}
        for operand in record.row.operands:
            layout[f"{operand.name}_offset"] = 0
            layout[f"{operand.name}_strides"] = (1,)
        block = record.pack(extents=(40,), **layout, **fields)
        for step in range(1, 5):
            state["g"], state["step"] = rng.standard_normal(40), np.full((), step, np.float32)
            reference.grad = torch.tensor(state["g"])
            theirs.step()
            sim.run(record, block, [state[o.name] for o in record.row.operands])
            np.testing.assert_allclose(state["p"], reference.detach().numpy(), rtol=1e-12, atol=1e-12)
