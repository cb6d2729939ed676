"""Attention and its gradients, batch element by batch element, as their `mathematics` say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from umd_core.ir import Array
from umd_core.kernels import KernelRecord

Parameters = Mapping[str, Any]
Operands = Mapping[str, Array]
Results = dict[str, tuple[Any, Any]]


def attention(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns what each query is given and the log-sum-exp of its scores, or the gradients."""
    one = _forward if record.row.name == "attention_kernel" else _gradients
    names = [operand.name for operand in record.row.operands if operand.writes]
    values = {name: np.zeros(operands[name].shape, operands["q"].dtype) for name in names}
    scales = {name: np.zeros(operands[name].shape) for name in names}
    for z in np.ndindex(parameters["outer"]):
        found = one(parameters, {name: array[z] for name, array in operands.items()})
        for name, (value, scale) in found.items():
            values[name][z], scales[name][z] = value, scale
    if "lse" in names and record.types[1].size > max(record.types[0].size, 4):
        scales["lse"] *= 2.0**29  # it is computed in float32, and has the type of what it is taken off in the gradient
    return {name: (values[name], scales[name]) for name in names}


def _scores(parameters: Parameters, of: Operands) -> tuple[Array, Array]:
    """Returns (queries, keys) scores, and the size of the numbers that each is formed of."""
    scale = parameters["scale"]
    scores = scale * (of["q"] @ of["k"].T) + of["bias"]
    size = abs(scale) * (np.abs(of["q"]) @ np.abs(of["k"]).T) + np.abs(np.where(np.isinf(of["bias"]), 0, of["bias"]))
    ahead = np.arange(parameters["keys"]) - np.arange(parameters["queries"])[:, None]
    seen = (ahead >= parameters["low"]) & (ahead <= parameters["high"])
    return np.where(seen, scores, -np.inf), np.where(seen, size, 0)


def _forward(parameters: Parameters, of: Operands) -> Results:
    scores, size = _scores(parameters, of)
    most = np.max(scores, 1, initial=-np.inf, keepdims=True)
    gone = (most == -np.inf) & bool(parameters["guarded"] or not parameters["keys"])
    exps = np.exp(scores - np.where(gone, 0, most))
    total = np.sum(exps, 1, keepdims=True)
    gone = gone | (np.isnan(total) & (parameters["guarded"] == 2))
    chances = np.where(gone, 0, exps / total)
    lse = np.where(gone, -np.inf, np.where(gone, 0, most) + np.log(total))[:, 0]
    shift = 1 + np.max(size, 1, initial=0, keepdims=True)
    return {
        "y": (chances @ of["v"], shift * (chances @ np.abs(of["v"]))),
        "lse": (lse, shift[:, 0] + np.abs(np.log(total))[:, 0]),
    }


def _gradients(parameters: Parameters, of: Operands) -> Results:
    scores, size = _scores(parameters, of)
    scale, lse, dy, v, y = parameters["scale"], of["lse"][:, None], of["dy"], of["v"], of["y"]
    chances = np.exp(scores - lse)
    if parameters["guarded"]:
        chances = np.where(lse == -np.inf, 0, chances)
    slopes = chances * (dy @ v.T - np.sum(dy * y, 1, keepdims=True))
    shift = chances * (1 + size + np.abs(np.where(np.isfinite(lse), lse, 0)))
    steep = shift * (np.abs(dy) @ np.abs(v).T + np.sum(np.abs(dy * y), 1, keepdims=True))
    return {
        "dq": (scale * (slopes @ of["k"]), abs(scale) * (steep @ np.abs(of["k"]))),
        "dk": (scale * (slopes.T @ of["q"]), abs(scale) * (steep.T @ np.abs(of["q"]))),
        "dv": (chances.T @ dy, shift.T @ np.abs(dy)),
    }
