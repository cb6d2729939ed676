"""Random numbers: Philox4x32-10 over whole arrays of counters, and what becomes of its words.

Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from umd_core.dtypes import DType, float32, float64
from umd_core.kernels import KernelRecord
from umd_core.kernels.random import DIGITS, MULTIPLIERS, ROUNDS, WEYL
from umd_sim.lowerings.layout import NOTHING, Array, Executable, Launch, compute_type, narrowed, running
from umd_sim.scratch import Scratch

PIECE = 1 << 12
"""Counters at a time: their words stay in the processor's cache."""
_MASK, _WORD = (1 << 32) - 1, np.uint64(32)
_UINT32, _UINT64 = np.dtype(np.uint32), np.dtype(np.uint64)


def philox(counter: Sequence[Array], key: tuple[int, int], scratch: Scratch) -> list[Array]:
    """Returns four arrays of 32-bit words, as uint64, in scratch memory: the counters' words after ten rounds.

    Args:
        counter: four arrays of 32-bit words as uint64, of one shape; they are overwritten.
        key: two 32-bit words.
        scratch: slots 0 and 1 are used.
    """
    a, b, c, d = counter
    first, second = (scratch.take(slot, a.shape, _UINT64) for slot in range(2))
    mask = np.uint64(_MASK)
    low, high = key
    for _ in range(ROUNDS):
        np.multiply(a, np.uint64(MULTIPLIERS[0]), out=first)
        np.multiply(c, np.uint64(MULTIPLIERS[1]), out=second)
        np.right_shift(second, _WORD, out=a)
        np.bitwise_xor(np.bitwise_xor(a, b, out=a), np.uint64(low), out=a)
        np.right_shift(first, _WORD, out=c)
        np.bitwise_xor(np.bitwise_xor(c, d, out=c), np.uint64(high), out=c)
        np.bitwise_and(second, mask, out=b)
        np.bitwise_and(first, mask, out=d)
        low, high = (low + WEYL[0]) & _MASK, (high + WEYL[1]) & _MASK
    return [a, b, c, d]


def _words(seed: int, offset: int, start: int, blocks: int, scratch: Scratch) -> Array:
    """Returns (4 · blocks,) 32-bit words, those of the counters from `start` on."""
    counter = [scratch.take(slot, (blocks,), _UINT64) for slot in range(2, 6)]
    block = np.arange(start, start + blocks, dtype=_UINT64)
    np.bitwise_and(block, np.uint64(_MASK), out=counter[0])
    np.right_shift(block, _WORD, out=counter[1])
    counter[2].fill(offset & _MASK)
    counter[3].fill(offset >> 32)
    words = scratch.take(6, (blocks, 4), _UINT32)
    for column, word in enumerate(philox(counter, (seed & _MASK, seed >> 32), scratch)):
        words[:, column] = word
    return words.reshape(-1)


def _units(words: Array, dtype: DType) -> Array:
    """Returns a fraction in [0, 1) per word of 32 bits, or of 64 bits in float64, with as many digits as fit."""
    whole = words.view(_UINT64) if dtype is float64 else words
    digits = DIGITS[dtype]
    bits = np.right_shift(whole, whole.dtype.type(8 * whole.itemsize - digits))
    number = compute_type(dtype)
    return np.asarray(np.multiply(bits.astype(number), number.type(math.ldexp(1, -digits))))


def _number(dtype: DType) -> DType:
    """Returns the type in which fractions are formed that are not the result themselves."""
    return dtype if dtype is float64 else float32


def _normal(words: Array, dtype: DType) -> Array:
    """Returns the Box-Muller transform of each pair of fractions."""
    pairs = _units(words, _number(dtype)).reshape(-1, 2)
    number = pairs.dtype.type
    radius = np.sqrt(np.log(number(1) - pairs[:, 0]) * number(-2))
    angle = pairs[:, 1] * number(2 * math.pi)
    np.multiply(np.cos(angle), radius, out=pairs[:, 0])
    np.multiply(np.sin(angle), radius, out=pairs[:, 1])
    return pairs.reshape(-1)


def _bernoulli(words: Array, dtype: DType, p: Array) -> Array:
    """Returns whether each fraction is less than its p; the last counter's may have none."""
    units = _units(words, _number(dtype))
    return np.asarray((units[: p.size] if p.ndim else units) < p.astype(units.dtype))


def _integer(words: Array, dtype: DType, low: Array, high: Array) -> Array:
    first, width = int(low[()]), (int(high[()]) - int(low[()])) % (1 << 64)
    wide = words.view(_UINT64)
    if width:
        wide = np.remainder(wide, np.uint64(width))
    return np.asarray((wide + np.uint64(first % (1 << 64))).astype(f"u{dtype.size}").view(dtype.numpy))


_PROGRAMS: dict[str, Callable[..., Array]] = {
    "uniform": _units,
    "normal": _normal,
    "bernoulli": _bernoulli,
    "integer": _integer,
}


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a random kernel."""
    launch = Launch(record, parameters)
    shape = launch.shape("out")
    if 0 in shape:
        return NOTHING
    program, dtype = record.row.program, record.types[0]
    per_counter = 2 if program == "integer" or dtype is float64 else 4
    *names, out = [operand.name for operand in record.row.operands]
    views = [launch.view(name, *narrowed(launch.shape(name), launch.strides(name))) for name in names]
    return Executable((*views, launch.view(out)), running(_draw, _PROGRAMS[program], dtype, per_counter))


def _draw(make: Callable[..., Array], dtype: DType, per_counter: int, seed: Array, offset: Array, *rest: Any) -> None:
    """Fills the last array piece by piece; `per_counter` elements come of one counter."""
    *given, out, scratch = rest
    key, stream = (int(number[()]) % (1 << 64) for number in (seed, offset))
    more = [np.broadcast_to(array, out.shape).reshape(-1) if array.ndim else array for array in given]
    dense = out.flags.c_contiguous
    flat = out.reshape(-1) if dense else np.empty(out.size, out.dtype)
    for start in range(0, out.size, PIECE * per_counter):
        end = min(start + PIECE * per_counter, out.size)
        blocks = -(-(end - start) // per_counter)
        words = _words(key, stream, start // per_counter, blocks, scratch)
        flat[start:end] = make(words, dtype, *(a[start:end] if a.ndim else a for a in more))[: end - start]
    if not dense:
        out[...] = flat.reshape(out.shape)
