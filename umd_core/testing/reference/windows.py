"""Convolution and pooling: every window, one position at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from umd_core.ir import Array
from umd_core.kernels import KernelRecord

Index = tuple[int, ...]
Results = dict[str, tuple[Any, Any]]


def _meetings(parameters: Mapping[str, Any]) -> Iterator[tuple[Index, Index, Index]]:
    """Yields (output position, kernel position, input position) wherever a window meets the input."""
    strides, dilations, pads = parameters["window_strides"], parameters["dilations"], parameters["pads"]
    extents = parameters["input"]
    for o in np.ndindex(tuple(parameters["output"])):
        for k in np.ndindex(tuple(parameters["kernel"])):
            i = tuple(a * s - p + b * d for a, s, p, b, d in zip(o, strides, pads, k, dilations, strict=True))
            if all(0 <= a < extent for a, extent in zip(i, extents, strict=True)):
                yield o, k, i


def _at(position: Index) -> Any:
    """Returns the index of a position in the trailing axes."""
    return (..., *position)


def conv(record: KernelRecord, parameters: Mapping[str, Any], operands: Mapping[str, Array]) -> Results:
    """Returns the convolution, or its gradient by input or weight."""
    first, second, out = (operand.name for operand in record.row.operands)
    value = np.zeros(operands[out].shape, operands[first].dtype)
    scale = np.zeros(value.shape, np.float64)
    for o, k, i in _meetings(parameters):
        places = {"x": _at(i), "w": _at(k), "y": _at(o)}
        places |= {"dx": places["x"], "dw": places["w"], "dy": places["y"]}
        a, b = operands[first][places[first]], operands[second][places[second]]
        formula = _FORMULAS[record.row.name]
        value[places[out]] += np.einsum(formula, a, b)
        scale[places[out]] += np.einsum(formula, np.abs(a), np.abs(b)).astype(np.float64)
    return {out: (value, scale)}


_FORMULAS = {
    "conv_kernel": "ngc,gmc->ngm",
    "conv_input_grad_kernel": "ngm,gmc->ngc",
    "conv_weight_grad_kernel": "ngm,ngc->gmc",
}


def pool(record: KernelRecord, parameters: Mapping[str, Any], operands: Mapping[str, Array]) -> Results:
    """Returns the pooled windows, or the gradient of their average."""
    windows: dict[Index, list[Index]] = {}
    for o, _, i in _meetings(parameters):
        windows.setdefault(o, []).append(i)
    if record.row.name.startswith("max_pool"):
        return _max_pool(record, parameters, operands, windows)
    counts = {o: _count(parameters, o, len(inside)) for o, inside in windows.items()}
    if record.row.name == "average_pool_kernel":
        x = operands["x"]
        y: Any = np.zeros(operands["y"].shape, x.dtype)
        scale: Any = np.zeros(y.shape)
        for o, inside in windows.items():
            window = np.stack([x[_at(i)] for i in inside])
            y[_at(o)] = window.sum(0) / counts[o]
            scale[_at(o)] = np.abs(window).sum(0) / counts[o]
        return {"y": (y, scale)}
    dy = operands["dy"]
    dx: Any = np.zeros(operands["dx"].shape, dy.dtype)
    scale = np.zeros(dx.shape)
    for o, inside in windows.items():
        for i in inside:
            dx[_at(i)] += dy[_at(o)] / counts[o]
            scale[_at(i)] += np.abs(dy[_at(o)]) / counts[o]
    return {"dx": (dx, scale)}


def _count(parameters: Mapping[str, Any], o: Index, inside: int) -> int:
    """Returns by what a window's sum is divided."""
    if not parameters["count_pad"]:
        return inside
    count = 1
    for axis, position in enumerate(o):
        start = position * parameters["window_strides"][axis] - parameters["pads"][axis]
        low, high = -parameters["pads"][axis], parameters["input"][axis] + parameters["pads_end"][axis]
        steps = range(parameters["kernel"][axis])
        count *= sum(low <= start + k * parameters["dilations"][axis] < high for k in steps)
    return count


def _max_pool(
    record: KernelRecord,
    parameters: Mapping[str, Any],
    operands: Mapping[str, Array],
    windows: Mapping[Index, list[Index]],
) -> Results:
    x = operands["x"]
    y = np.full(operands["y"].shape, -np.inf, x.dtype)
    index = np.zeros(y.shape, object)
    plane = tuple(parameters["input"])
    for o, inside in windows.items():
        for n in range(x.shape[0]):
            best = inside[0]
            for i in inside:
                v, held = x[(n, *i)], x[(n, *best)]
                if held == held and (v != v or v > held):
                    best = i
            y[(n, *o)] = x[(n, *best)]
            index[(n, *o)] = int(np.ravel_multi_index(best, plane))
    results: Results = {"y": (y, 0.0)}
    if record.row.name == "max_pool_index_kernel":
        results["index"] = (index, 0.0)
    return results
