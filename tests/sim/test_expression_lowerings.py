"""Expression rows against plain formulas, for every kernel and element type."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME, PRIMITIVES, KernelRow
from umd_sim.lowerings import expression

Array = NDArray[Any]
CASES = [
    (row, types)
    for row in BY_NAME.values()
    if row.family == "expression" and row.name != "elementwise_cast_kernel"
    for types in itertools.product(*(allowed for _, allowed in row.types))
]
SHAPES = ((3, 4, 5), (7,), (), (2, 1, 3, 2, 2), (40, 30), (3, 0, 2), (130,), (70, 3), (3, 70), (131,))
ALIASED = (dtypes.float32, dtypes.float16, dtypes.int16, dtypes.bool_)
NAMES = [f"{row.name}-{'-'.join(t.name for t in types)}" for row, types in CASES]


def divide(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def integer_power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64)
    return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)


INTEGER: dict[str, Callable[..., int]] = {
    "neg": lambda x: -x, "abs": abs, "sign": lambda x: (x > 0) - (x < 0), "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": divide,
    "mod": lambda a, b: 0 if b == 0 else a % b, "fmod": lambda a, b: 0 if b == 0 else a - divide(a, b) * b,
    "pow": integer_power, "max": max, "min": min, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b, "xor": lambda a, b: bool(a) != bool(b),
    "not": lambda x: not x, "bitand": lambda a, b: a & b, "bitor": lambda a, b: a | b, "bitxor": lambda a, b: a ^ b,
    "bitnot": lambda x: ~x, "shl": lambda a, b: a << b if 0 <= b < 64 else 0,
    "shr": lambda a, b: a >> min(b, 64) if b >= 0 else -(a < 0), "select": lambda c, a, b: a if c else b,
}  # fmt: skip


def largest(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), np.nan, np.where(a > b, a, b))


def float_mod(a: float, b: float) -> float:
    if not math.isfinite(a) or b == 0:
        return math.nan
    remainder = math.fmod(a, b)
    return remainder + b if remainder and (remainder < 0) != (b < 0) else remainder


def float_fmod(a: float, b: float) -> float:
    return math.nan if math.isinf(a) or b == 0 else math.fmod(a, b)


FLOAT: dict[str, Callable[..., Any]] = {
    "neg": lambda x: -x, "abs": abs, "sign": np.sign, "reciprocal": lambda x: 1 / x, "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "mod": np.vectorize(float_mod, otypes=[float]), "fmod": np.vectorize(float_fmod, otypes=[float]),
    "pow": np.power, "max": largest, "min": lambda a, b: -largest(-a, -b), "exp": np.exp, "log": np.log,
    "log1p": np.log1p, "expm1": np.expm1, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[float]), "floor": np.floor, "ceil": np.ceil, "round": np.round,
    "trunc": np.trunc, "isnan": lambda x: x != x, "isinf": lambda x: abs(x) == np.inf,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "select": np.where,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip


def wrap(value: int, dtype: DType) -> int:
    """Returns an integer modulo 2^bits, in the type's range."""
    if dtype.kind == "b":
        return int(value)
    bits = 8 * dtype.size
    value %= 1 << bits
    return value - (1 << bits) if dtype.kind == "i" and value >= 1 << (bits - 1) else value


def by_integers(token: str, arguments: list[Array], number: DType) -> Array:
    def each(*elements: Any) -> int:
        return wrap(int(INTEGER[token](*(int(e) for e in elements))), number)

    return np.asarray(np.vectorize(each, otypes=[object])(*arguments)) if arguments[0].size else arguments[0]


def by_floats(token: str, arguments: list[Array], number: DType) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(FLOAT[token](*arguments)) if arguments[0].size else arguments[0]


def oracle(row: KernelRow, inputs: dict[str, Array], number: DType) -> tuple[Array, Array]:
    """Returns the program's value, in float64 or Python integers, and the largest magnitude that it passes through."""
    apply, wide = (by_floats, np.float64) if number.is_float else (by_integers, object)
    stack: list[Array] = []
    scale = np.zeros(())
    for token in row.program.split():
        if token in inputs:
            stack.append(inputs[token] if inputs[token].dtype == bool else inputs[token].astype(wide))
        elif token in PRIMITIVES:
            arguments = stack[-PRIMITIVES[token] :]
            del stack[-PRIMITIVES[token] :]
            stack.append(apply(token, arguments, number))
            if stack[-1].dtype == np.float64:
                scale = np.fmax(scale, np.abs(stack[-1]))
        else:
            stack.append(np.asarray(float(token), wide))
    return stack[0], scale


def check(case: tuple[KernelRow, tuple[DType, ...]], shape: tuple[int, ...], seed: int) -> None:
    row, types = case
    rank = sim.rank_class(len(shape))
    launch = sim.launch(
        row.name,
        types,
        (rank,),
        {"extents": sim.padded(shape, rank)},
        seed=seed,
        special=seed % 2 == 1,
        plain=seed % 5 == 0,
    )
    got = launch.run()["out"]
    number = next((launch.record.dtype(o.type) for o in row.operands[:-1] if o.type == "T"), types[0])
    expected, scale = oracle(row, launch.inputs, number)
    if got.size == 0:
        return
    if number.is_float and got.dtype != bool:
        expected, scale = np.broadcast_to(expected, got.shape), np.broadcast_to(scale, got.shape)
        if sum(token in PRIMITIVES for token in row.program.split()) > 2:
            # In a long program 0 · infinity may arise in one precision and not in the other.
            finite = np.isfinite(scale) & np.all([np.isfinite(x) for x in launch.inputs.values()], axis=0)
            got, expected, scale = got[finite], expected[finite], scale[finite]
        sim.close(got, expected, row.tolerance, got.dtype, scale)
    else:
        np.testing.assert_array_equal(got, np.broadcast_to(expected, got.shape).astype(got.dtype))


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_every_kernel_and_type(case: tuple[KernelRow, tuple[DType, ...]]) -> None:
    for seed, shape in enumerate(SHAPES):
        check(case, shape, seed)


@given(
    case=st.sampled_from(CASES),
    shape=st.lists(st.integers(0, 5), max_size=6).map(tuple),
    seed=st.integers(0, 2**32),
)
def test_any_layout(case: tuple[KernelRow, tuple[DType, ...]], shape: tuple[int, ...], seed: int) -> None:
    check(case, shape, seed)


@pytest.mark.parametrize("name", ["gelu", "relu_grad", "sigmoid", "select", "div", "clip", "eq"])
def test_more_than_one_block(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(expression, "BLOCK", 100)
    row = BY_NAME[f"elementwise_{name}_kernel"]
    for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.int32, dtypes.bool_):
        if dtype in row.types[0][1]:
            for seed in range(12):
                for shape in ((1050,), (3, 130), (30, 7), (5, 4, 9)):
                    check((row, (dtype,)), shape, seed)


@pytest.mark.parametrize("alias", ["a", "b", "x", "y", "dy", "low", "high", "c"])
def test_the_result_may_take_the_place_of_an_operand(alias: str) -> None:
    for row, types in CASES:
        if ("out", alias) not in row.alias or types[0] not in ALIASED:
            continue
        launch = sim.launch(row.name, types, (1,), {"extents": (37,)}, seed=3, plain=True)
        expected = launch.run()["out"]
        arrays = {name: array.copy() for name, array in launch.inputs.items()}
        arrays["out"] = arrays[alias]
        sim.run(launch.record, launch.block, [arrays[o.name] for o in row.operands])
        assert arrays[alias].tobytes() == expected.tobytes(), row.name
