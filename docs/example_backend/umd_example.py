"""A backend over NumPy in about 100 lines: memory, the level-0 kernels, and the hook that registers it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from umd_core.device import Available, BackendInfo, Binding, Caps, Device, SequentialDevice
from umd_core.errors import IndexRangeError
from umd_core.hookspecs import hookimpl
from umd_core.kernels import BY_NAME, PRIMITIVES, Geometry, KernelRecord

Array = np.ndarray[Any, Any]
LEVEL_0 = {row.name: None for row in BY_NAME.values() if row.level == 0}


class ExampleDevice(SequentialDevice):
    """Memory is a NumPy array of bytes; an executable is the record and the function of its family."""

    def caps(self) -> Caps:
        return Caps(LEVEL_0, memory=1 << 32)

    def allocate_memory(self, size: int) -> Array:
        return np.zeros(size, np.uint8)

    def write_memory(self, memory: Array, offset: int, data: memoryview) -> None:
        memory[offset : offset + len(data)] = data

    def read_memory(self, memory: Array, offset: int, size: int) -> memoryview:
        return memory[offset : offset + size].data

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        return record, FAMILIES[record.row.family]

    def dispatch(self, executable: Any, launch: Geometry, parameters: bytes, bindings: Sequence[Binding]) -> None:
        record, family = executable
        views = [
            np.ndarray(view.shape, view.dtype.numpy, binding.buffer.memory, binding.offset + view.offset, view.strides)
            for view, binding in zip(record.views(parameters), bindings, strict=True)
        ]
        with np.errstate(all="ignore"):
            family(record, record.unpack(parameters), *views)


def wide(x: Array) -> Array:
    """Returns what a kernel computes with: any non-zero byte is true, 16-bit floats become float32."""
    if x.dtype == np.bool_:
        return np.not_equal(x.view(np.uint8), 0)
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


def cast(x: Array, to: np.dtype[Any]) -> Array:
    """Returns x as another type; from float to integer it truncates and saturates, NaN becomes 0."""
    if x.dtype.kind != "f" or to.kind not in "iu":
        return x.astype(to)
    info = np.iinfo(to)
    result = np.where(np.isfinite(x), x, 0).astype(to)
    result[x >= float(info.max)], result[x <= float(info.min)] = info.max, info.min
    return result


def divide(a: Array, b: Array) -> Array:
    """Returns a / b; integers truncate toward zero, and x / 0 is 0."""
    if a.dtype.kind == "f":
        return a / b
    quotient = a // np.where(b == 0, 1, b)
    return np.where(b == 0, 0, quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))).astype(a.dtype)


def power(a: Array, b: Array) -> Array:
    """Returns a to the power b; of integers, 1 / a is 0 unless a is 1 or -1."""
    if a.dtype.kind == "f":
        return np.power(a, b)
    inverse = np.where(a == 1, 1, np.where(a + 1 == 0, 1 - 2 * (b & 1), 0))
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0))).astype(a.dtype)


NUMPY_NAMES = {
    "neg": "negative", "abs": "absolute", "sub": "subtract", "mul": "multiply", "max": "maximum", "min": "minimum",
    "round": "rint", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "and": "logical_and", "or": "logical_or", "xor": "logical_xor", "not": "logical_not",
    "bitand": "bitwise_and", "bitor": "bitwise_or", "bitxor": "bitwise_xor", "bitnot": "invert", "select": "where",
    "shl": "left_shift", "shr": "right_shift",
}  # fmt: skip
PRIMITIVE: dict[str, Any] = {
    **{name: getattr(np, NUMPY_NAMES.get(name, name), divide) for name in PRIMITIVES},
    "div": divide,
    "pow": power,
    "cast": lambda x: x,  # storing the result does it
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x),
}


def expression(record: KernelRecord, p: dict[str, Any], *views: Array) -> None:
    """Runs the row's postfix program over whole arrays."""
    *inputs, out = views
    values = {operand.name: wide(x) for operand, x in zip(record.row.operands, inputs, strict=False)}
    number = wide(np.empty(0, record.types[0].numpy)).dtype.type
    stack: list[Any] = []
    for token in record.row.program.split():
        if token in PRIMITIVE:
            stack[-PRIMITIVES[token] :] = [PRIMITIVE[token](*stack[-PRIMITIVES[token] :])]
        else:
            stack.append(values[token] if token in values else number(float(token)))
    out[...] = cast(stack[0], out.dtype)


def reduce(record: KernelRecord, p: dict[str, Any], x: Array, out: Array) -> None:
    """Reduces the inner extents; the row's program names how."""
    x, axes = wide(x), tuple(range(out.ndim, x.ndim))
    least, most = (-np.inf, np.inf) if x.dtype.kind == "f" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    name, start = {
        "add": ("sum", 0), "mean": ("sum", 0), "mul": ("prod", 1), "max": ("max", least), "min": ("min", most)
    }[record.row.program]  # fmt: skip
    result = getattr(np, name)(x, axes, initial=start)
    out[...] = result / math.prod(p["inner"]) if record.row.program == "mean" else result


def arg_reduce(record: KernelRecord, p: dict[str, Any], x: Array, out: Array) -> None:
    """Finds the first or last extreme of the inner extents."""
    rows = wide(x).reshape(*out.shape, math.prod(p["inner"]))
    find = np.argmax if record.row.program == "max" else np.argmin
    if rows.shape[-1] == 0:
        out[...] = 0
    else:
        out[...] = rows.shape[-1] - 1 - find(rows[..., ::-1], -1) if p["select_last"] else find(rows, -1)


def places(record: KernelRecord, index: Array, extent: int) -> tuple[Array, ...]:
    """Returns the place (e, k) that each index names; one outside [-extent, extent) is an error, never read."""
    wrong = (index < -extent) | (index >= extent)
    if wrong.any():
        raise IndexRangeError(record.row.name, -1, int(index[wrong][0]), extent)  # the base class knows the command
    return (*np.indices(index.shape, sparse=True), np.where(index < 0, index + extent, index))


def gather(record: KernelRecord, p: dict[str, Any], data: Array, index: Array, out: Array) -> None:
    """Reads out[e] = data[e, index[e]]."""
    out[...] = data[places(record, index, p["axis"])]


def scatter(record: KernelRecord, p: dict[str, Any], updates: Array, index: Array, out: Array) -> None:
    """Sets out[e, index[e]], or combines it with the update, one update after the other."""
    at, name = places(record, index, p["axis"]), record.row.program
    if name in PRIMITIVES:
        PRIMITIVE[name].at(out, at, updates)
    else:
        for e in np.ndindex(index.shape):  # NumPy's own assignment keeps no order among equal places
            out[(*e, at[-1][e])] = updates[e]


def iota(record: KernelRecord, p: dict[str, Any], start: Array, step: Array, out: Array) -> None:
    """Counts from start by step."""
    out[...] = wide(start) + np.arange(p["count"]).astype(wide(start).dtype) * wide(step)


def gemm(record: KernelRecord, p: dict[str, Any], a: Array, b: Array, out: Array) -> None:
    """Multiplies batches of matrices."""
    out[...] = np.matmul(wide(a), wide(b))


FAMILIES = {f.__name__: f for f in (expression, reduce, arg_reduce, gather, scatter, iota, gemm)}


def open_device(rest: str) -> Device:
    """Returns the device that "example:" + rest names."""
    return ExampleDevice(f"example:{rest or 0}")


@hookimpl
def umd_register_backends() -> list[BackendInfo]:
    """Returns the one backend of this package."""
    return [BackendInfo("example", lambda: Available(("NumPy, level-0 kernels",)), open_device, priority=-10)]
