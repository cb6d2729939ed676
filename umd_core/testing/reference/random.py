"""Random numbers: Philox4x32-10 one counter at a time, and what the rows of the family make of its words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.ir import Array
from umd_core.kernels import KernelRecord
from umd_core.testing.reference.wide import wrap

Words = tuple[int, int, int, int]
Results = dict[str, tuple[Any, Any]]
_MASK = (1 << 32) - 1


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Returns the four words of Philox4x32-10 for a counter and a key, all of 32 bits.

    Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
    """
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (second >> 32) ^ b ^ low, second & _MASK, (first >> 32) ^ d ^ high, first & _MASK
        low, high = (low + 0x9E3779B9) & _MASK, (high + 0xBB67AE85) & _MASK
    return a, b, c, d


def random(record: KernelRecord, parameters: Mapping[str, Any], operands: Mapping[str, Array]) -> Results:
    """Returns the numbers of one launch."""
    shape = operands["out"].shape
    seed, offset = (int(operands[name][()]) % (1 << 64) for name in ("seed", "offset"))
    draw = _Draw(seed, offset)
    value, scale = _PROGRAMS[record.row.program](draw, record.types[0], math.prod(shape), operands)
    return {"out": (np.asarray(value).reshape(shape), np.asarray(scale).reshape(shape) if np.ndim(scale) else scale)}


class _Draw:
    """The words of one seed and offset."""

    def __init__(self, seed: int, offset: int) -> None:
        self._key = (seed & _MASK, seed >> 32)
        self._high = (offset & _MASK, offset >> 32)
        self._blocks: dict[int, Words] = {}

    def word(self, i: int) -> int:
        """Returns the i-th word of 32 bits."""
        block = i // 4
        if block not in self._blocks:
            self._blocks[block] = philox((block & _MASK, block >> 32, *self._high), self._key)
        return self._blocks[block][i % 4]

    def wide(self, i: int) -> int:
        """Returns the i-th word of 64 bits."""
        return self.word(2 * i) + (self.word(2 * i + 1) << 32)

    def unit(self, i: int, dtype: DType) -> Any:
        """Returns the i-th fraction in [0, 1): exact in float64, whatever the type."""
        if dtype is dtypes.float64:
            return math.ldexp(self.wide(i) >> 11, -53)
        return math.ldexp(self.word(i) >> 8, -24)


def _uniform(draw: _Draw, dtype: DType, count: int, operands: Mapping[str, Array]) -> tuple[Any, Any]:
    digits = {dtypes.float16: 11, dtypes.bfloat16: 8}.get(dtype, 53)
    units = [draw.unit(i, dtype) for i in range(count)]
    return np.array([math.ldexp(math.floor(math.ldexp(u, digits)), -digits) for u in units], np.longdouble), 0.0


def _normal(draw: _Draw, dtype: DType, count: int, operands: Mapping[str, Array]) -> tuple[Any, Any]:
    units = np.array([draw.unit(i, dtype) for i in range(count + count % 2)], np.longdouble).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log1p(-units[:, 0]))
    angle = 2 * np.pi * units[:, 1]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return pairs.reshape(-1)[:count], np.repeat(radius, 2)[:count].astype(np.float64)


def _bernoulli(draw: _Draw, dtype: DType, count: int, operands: Mapping[str, Array]) -> tuple[Any, Any]:
    chances = operands["p"].reshape(-1)
    return np.array([draw.unit(i, dtype) < chances[i] for i in range(count)], np.bool_), 0.0


def _integer(draw: _Draw, dtype: DType, count: int, operands: Mapping[str, Array]) -> tuple[Any, Any]:
    low, high = int(operands["low"][()]), int(operands["high"][()])
    span = (high - low) % (1 << 64) or 1 << 64
    values = np.empty(count, object)
    values[:] = [low + draw.wide(i) % span for i in range(count)]
    return wrap(values, dtype), 0.0


_PROGRAMS: dict[str, Callable[[_Draw, DType, int, Mapping[str, Array]], tuple[Any, Any]]] = {
    "uniform": _uniform,
    "normal": _normal,
    "bernoulli": _bernoulli,
    "integer": _integer,
}
