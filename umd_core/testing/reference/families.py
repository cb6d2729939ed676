"""Reductions, indexing, products, rows and updates, as their `mathematics` say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from umd_core.errors import IndexRangeError
from umd_core.ir import Array
from umd_core.kernels import KernelRecord
from umd_core.testing.reference.wide import bounds, wrap

Parameters = Mapping[str, Any]
Operands = Mapping[str, Array]
Results = dict[str, tuple[Any, Any]]


def _rows(array: Array, inner: int) -> Array:
    """Returns (outer elements, inner elements)."""
    outer = array.shape[: array.ndim - inner]
    return array.reshape(math.prod(outer), math.prod(array.shape[array.ndim - inner :]))


def reduce(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns one number a row."""
    x, shape = operands["x"], operands["out"].shape
    dtype = record.types[0]
    rows = _rows(x, len(parameters["inner"]))
    value = np.empty(len(rows), object)
    for index, row in enumerate(rows):
        value[index] = _REDUCE[record.row.program](row, dtype)
    if dtype.is_float:
        scale = np.array([_finite_sum(row, record.row.program) for row in rows], np.float64)
        return {"out": (value.astype(rows.dtype).reshape(shape), scale.reshape(shape))}
    return {"out": (wrap(value.reshape(shape), dtype), 0.0)}


def _finite_sum(row: Array, program: str) -> float:
    if program == "mul":
        return 0.0
    total = float(np.sum(np.abs(row[np.isfinite(row)]))) if row.size else 0.0
    return total / max(row.size, 1) if program == "mean" else total


def _largest(row: Array, dtype: Any) -> Any:
    best = bounds(dtype)[0]
    for v in row:
        best = v if v != v or (best == best and v > best) else best
    return best


def _smallest(row: Array, dtype: Any) -> Any:
    best = bounds(dtype)[1]
    for v in row:
        best = v if v != v or (best == best and v < best) else best
    return best


_REDUCE: dict[str, Callable[[Array, Any], Any]] = {
    "add": lambda row, dtype: np.sum(row) if row.size else 0,
    "mul": lambda row, dtype: np.prod(row) if row.size else 1,
    "mean": lambda row, dtype: np.sum(row) / row.size if row.size else np.nan,
    "max": _largest,
    "min": _smallest,
}


def arg_reduce(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns one position a row."""
    shape = operands["out"].shape
    largest = record.row.program == "max"
    result = []
    for row in _rows(operands["x"], len(parameters["inner"])):
        best = 0
        for index, v in enumerate(row):
            order = _compare(v, row[best]) if largest else _compare(row[best], v)
            if np.isnan(float(v)) != np.isnan(float(row[best])):
                order = 1 if np.isnan(float(v)) else -1
            if order > 0 or (order == 0 and parameters["select_last"]):
                best = index
        result.append(best)
    return {"out": (np.array([*result, None], object)[:-1].reshape(shape), 0.0)}


def _compare(a: Any, b: Any) -> int:
    """Returns 1 where a > b, -1 where a < b, else 0."""
    return int(a > b) - int(a < b)


def _places(record: KernelRecord, index: Array, axis: int) -> Iterator[tuple[tuple[int, ...], int]]:
    for e in np.ndindex(index.shape):
        k = int(index[e])
        if not -axis <= k < axis:
            raise IndexRangeError(record.row.name, -1, k, axis)
        yield e, k % axis


def gather(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns the chosen elements."""
    data, index = operands["data"], operands["index"]
    out = np.empty(index.shape, data.dtype)
    for e, k in _places(record, index, parameters["axis"]):
        out[e] = data[(*e, k)]
    return {"out": (out, 0.0)}


def scatter(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns the whole of `out`. Its elements may coincide, so each update goes through the strided box itself."""
    updates, index = operands["updates"], operands["index"]
    view = record.views(record.pack(**parameters))[2]
    dtype = record.types[0]
    steps = [s // dtype.size for s in view.strides]
    low = sum((extent - 1) * s for extent, s in zip(view.shape, steps, strict=True) if s < 0)
    held: dict[int, Any] = {}
    scale: dict[int, float] = {}
    at = {e: sum(i * s for i, s in zip(e, steps, strict=True)) - low for e in np.ndindex(view.shape)}
    for e, place in at.items():
        held[place] = operands["out"][e]
        scale[place] = float(abs(held[place])) if dtype.is_float else 0.0
    for e, k in _places(record, index, parameters["axis"]):
        place = at[(*e, k)]
        if record.row.program == "set":
            held[place] = updates[e]
            continue
        held[place] = _SCATTER[record.row.program](held[place], updates[e])
        scale[place] += float(abs(updates[e])) if dtype.is_float and record.row.program == "add" else 0.0
    value = np.empty(view.shape, operands["out"].dtype)
    scales = np.zeros(view.shape)
    for e, place in at.items():
        value[e], scales[e] = held[place], scale[place]
    return {"out": (wrap(value, dtype) if dtype.is_integer else value, np.where(np.isfinite(scales), scales, 0))}


def _larger(a: Any, b: Any) -> Any:
    return b if b != b or (a == a and b > a) else a


def _smaller(a: Any, b: Any) -> Any:
    return b if b != b or (a == a and b < a) else a


_SCATTER: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": _larger,
    "min": _smaller,
}


def iota(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns start + i · step."""
    start, step, count = operands["start"], operands["step"], parameters["count"]
    dtype = record.types[0]
    if dtype.is_integer:
        value = np.array([*(int(start[()]) + i * int(step[()]) for i in range(count)), None], object)[:-1]
        return {"out": (wrap(value, dtype), 0.0)}
    steps = np.arange(count) * step
    return {"out": (start + steps, np.abs(start) + np.abs(steps))}


def gemm(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns the batched product."""
    a, b, shape = operands["a"], operands["b"], operands["out"].shape
    dtype = record.types[0]
    value = np.zeros(shape, a.dtype)
    scale = np.zeros(shape)
    for k in range(parameters["depth"]):
        terms = a[..., :, k, None] * b[..., None, k, :]
        value = value + terms
        if dtype.is_float:
            scale = scale + np.where(np.isfinite(terms), np.abs(terms), 0).astype(np.float64)
    return {"out": (wrap(value, dtype) if dtype.is_integer else value, scale)}


def rows(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns softmax, its relatives and gradients, or the normalised rows."""
    return _ROWS[record.row.name](parameters, operands)


def _inner(parameters: Parameters, array: Array) -> tuple[int, ...]:
    return tuple(range(array.ndim - len(parameters["inner"]), array.ndim))


def _exps(parameters: Parameters, x: Array) -> tuple[Array, Array, Array]:
    axes = _inner(parameters, x)
    shifted = x - np.max(x, axes, keepdims=True, initial=-np.inf)
    return shifted, np.exp(shifted), np.sum(np.exp(shifted), axes, keepdims=True)


def _softmax(parameters: Parameters, operands: Operands) -> Results:
    _, exps, total = _exps(parameters, operands["x"])
    return {"y": (exps / total, np.maximum(1.0, np.abs(operands["x"])) * (exps / total))}


def _log_softmax(parameters: Parameters, operands: Operands) -> Results:
    shifted, _, total = _exps(parameters, operands["x"])
    return {"y": (shifted - np.log(total), np.abs(operands["x"]) + np.abs(np.log(total)))}


def _softmax_grad(parameters: Parameters, operands: Operands) -> Results:
    dy, y = operands["dy"], operands["y"]
    axes = _inner(parameters, y)
    inner = np.sum(dy * y, axes, keepdims=True)
    size = np.sum(np.abs(dy * y), axes, keepdims=True)
    return {"dx": (y * (dy - inner), np.abs(y) * (np.abs(dy) + size))}


def _log_softmax_grad(parameters: Parameters, operands: Operands) -> Results:
    dy, y = operands["dy"], operands["y"]
    axes = _inner(parameters, y)
    total = np.exp(y) * np.sum(dy, axes, keepdims=True)
    size = np.exp(y) * np.sum(np.abs(dy), axes, keepdims=True)
    return {"dx": (dy - total, np.abs(dy) + size * np.maximum(1, np.abs(y)))}


def _normalize(parameters: Parameters, operands: Operands) -> Results:
    x = operands["x"]
    axes = _inner(parameters, x)
    count = math.prod(parameters["inner"])
    mean = np.sum(x, axes, keepdims=True) / count
    variance = np.sum((x - mean) ** 2, axes, keepdims=True) / count
    rstd = 1 / np.sqrt(variance + parameters["epsilon"])
    size = np.max(np.abs(x), axes, keepdims=True, initial=0)
    outer = operands["mean"].shape
    return {
        "y": ((x - mean) * rstd, (np.abs(x) + size) * rstd),
        "mean": (mean.reshape(outer), size.reshape(outer)),
        "rstd": (rstd.reshape(outer), (rstd * (1 + size * rstd)).reshape(outer)),
    }


_ROWS: dict[str, Callable[[Parameters, Operands], Results]] = {
    "softmax_kernel": _softmax,
    "log_softmax_kernel": _log_softmax,
    "softmax_grad_kernel": _softmax_grad,
    "log_softmax_grad_kernel": _log_softmax_grad,
    "normalize_kernel": _normalize,
}


def update(record: KernelRecord, parameters: Parameters, operands: Operands) -> Results:
    """Returns parameters and state after one optimizer step."""
    return _UPDATE[record.row.name](parameters, operands)


def _sgd(parameters: Parameters, operands: Operands) -> Results:
    p, g, lr = operands["p"], operands["g"], operands["lr"]
    step = lr * (g + parameters["weight_decay"] * p)
    return {"p": (p - step, np.abs(p) + np.abs(step))}


def _momentum(parameters: Parameters, operands: Operands) -> Results:
    p, lr = operands["p"], operands["lr"]
    d = operands["g"] + parameters["weight_decay"] * p
    old = operands["m"]
    m = d if operands["step"] == 1 else parameters["momentum"] * old + (1 - parameters["dampening"]) * d
    direction = d + parameters["momentum"] * m if parameters["nesterov"] else m
    size = np.abs(d) + np.abs(old) + np.abs(operands["g"]) + np.abs(p)
    return {"p": (p - lr * direction, np.abs(p) + np.abs(lr) * size), "m": (m, size)}


def _adamw(parameters: Parameters, operands: Operands) -> Results:
    p, g, lr, step = operands["p"], operands["g"], operands["lr"], operands["step"]
    beta1, beta2, decay = parameters["beta1"], parameters["beta2"], parameters["weight_decay"]
    if parameters["decoupled"]:
        p = p * (1 - lr * decay)
    else:
        g = g + decay * p
    m = beta1 * operands["m"] + (1 - beta1) * g
    v = beta2 * operands["v"] + (1 - beta2) * g * g
    move = lr / (1 - beta1**step) * m / (np.sqrt(v) / np.sqrt(1 - beta2**step) + parameters["epsilon"])
    size = np.abs(operands["m"]) + np.abs(operands["g"]) + np.abs(operands["p"])
    return {"p": (p - move, np.abs(p) + np.abs(move) + lr), "m": (m, size), "v": (v, v + g * g)}


_UPDATE: dict[str, Callable[[Parameters, Operands], Results]] = {
    "sgd_kernel": _sgd,
    "sgd_momentum_kernel": _momentum,
    "adamw_kernel": _adamw,
}
