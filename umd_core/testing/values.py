"""Element values that find faults: ordinary numbers, edges of the types, NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from umd_core.dtypes import DType
from umd_core.ir import Array

Random = np.random.Generator


def values(random: Random, dtype: DType, count: int, *, special: bool = False, style: str = "") -> Array:
    """Returns (count,) elements. `special` mixes in NaN and infinities; `style` names a domain of `STYLES`."""
    if style:
        with np.errstate(over="ignore"):
            styled: Array = STYLES[style](random, count).astype(dtype.numpy)
            return styled
    if dtype.kind == "b":
        return random.choice(np.array([0, 1, 2, 255], np.uint8), count).view(np.bool_)
    if dtype.is_integer:
        return _integers(random, dtype, count)
    array = np.where(random.random(count) < 0.25, random.integers(-4, 5, count), random.normal(0, 2, count))
    if special and count:
        chosen = random.random(count) < 0.2
        array = np.where(chosen, random.choice(np.array([np.nan, np.inf, -np.inf, -0.0, 0.0]), count), array)
    with np.errstate(all="ignore"):
        return array.astype(dtype.numpy)


def _integers(random: Random, dtype: DType, count: int) -> Array:
    info = np.iinfo(dtype.numpy)
    low = -5 if dtype.kind == "i" else 0
    small = random.integers(low, 6, count).astype(dtype.numpy)
    whole = random.integers(info.min, info.max, count, dtype=dtype.numpy, endpoint=True)
    edges = random.choice(np.array([info.min, info.max, info.max - 1], dtype.numpy), count)
    which = random.random(count)
    return np.where(which < 0.6, small, np.where(which < 0.85, whole, edges))


def index_values(random: Random, dtype: DType, count: int, extent: int) -> Array:
    """Returns (count,) indices in [-extent, extent)."""
    return np.asarray(random.integers(-extent, extent, count) if extent else np.zeros(count), dtype.numpy)


def _near_one(random: Random, count: int) -> Any:
    return random.uniform(0.6, 1.6, count) * random.choice(np.array([-1.0, 1.0]), count)


def _wide(random: Random, count: int) -> Any:
    edges = np.array([0.5, -0.5, 1.5, 2.5, 127.6, 128, -129, 255.5, 300, 32768, -40000, 65535, 3e9, -3e9, 1e19, -1e19])
    return np.where(random.random(count) < 0.5, random.choice(edges, count), random.normal(0, 50, count))


STYLES: dict[str, Callable[[Random, int], Any]] = {
    "near_one": _near_one,
    "wide": _wide,
    "positive": lambda random, count: random.uniform(0.1, 3, count),
    "mask": lambda random, count: np.where(random.random(count) < 0.25, -np.inf, random.normal(0, 2, count)),
    "unit": lambda random, count: random.uniform(-1, 1, count),
    "chance": lambda random, count: random.uniform(-0.1, 1.1, count),
    "exponent": lambda random, count: random.choice(np.array([-2, -1, 0, 0.5, 1, 2, 3]), count),
    "rate": lambda random, count: random.choice(np.array([0.5, 0.125, 0.001]), count),
    "step": lambda random, count: random.integers(1, 5, count).astype(np.float64),
}
"""Domains of values by name, for operands that are not meant for every number."""
