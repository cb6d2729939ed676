"""Sorting by a network of comparisons over numbers that hold a key and a position each, so that no two are equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.errors import LimitError
from umd_core.recorder import Recorder
from umd_core.views import View

_DIGIT = 32
_HALF = 1 << (_DIGIT - 1)
LONGEST = 1 << _DIGIT
"""Elements along the axis: a position is one digit."""


def sort(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records Batcher's merge exchange, about 2.5 · log2(length)² elementwise steps on int64 pairs of key and position.

    Keys of 64 bits are sorted by their lower half, then by their upper one. The values are gathered last.
    """
    x, length = operands["x"], extents["length"]
    if length > LONGEST:
        raise LimitError("length of a sorted axis", length, LONGEST)
    held = min(length, extents["count"])
    if held:
        index = _part(_order(recorder, _key(recorder, x, bool(fields["descending"])), x.dtype.size), 0, held)
        recorder.copy(index, _part(operands["index"], 0, held))
        _gather(recorder, x, index, _part(operands["values"], 0, held))
    rest = extents["count"] - held
    recorder.fill(_part(operands["index"], held, rest), -1)
    recorder.fill(_part(operands["values"], held, rest), 0)


def _order(recorder: Recorder, key: View, size: int) -> View:
    """Returns the positions in order of the keys, which have `size` bytes each."""
    network, digits = _Network(recorder, key.shape[-1]), _digits(recorder, key, size)
    order = network.order_of(next(digits))
    for digit in digits:
        order = network.order_of(digit, order)
    return order


# keys: integers in the order of the elements


def _key(recorder: Recorder, x: View, descending: bool) -> View:
    """Returns an int64 a element, in the order asked for; those of types up to 32 bits are one signed digit."""
    key = _KEYS.get(x.dtype, _small_key)(recorder, x)
    return recorder.expression("bitnot", (key,), recorder.like(key)) if descending else key


def _small_key(recorder: Recorder, x: View) -> View:
    return recorder.copy(x, recorder.new(dtypes.int64, x.shape))


def _uint32_key(recorder: Recorder, x: View) -> View:
    key = _small_key(recorder, x)
    return recorder.expression("sub", (key, recorder.scalar(_HALF, key.dtype)), key)


def _uint64_key(recorder: Recorder, x: View) -> View:
    key = _as(recorder.copy(x, recorder.like(x)), dtypes.int64)
    return recorder.expression("bitxor", (key, recorder.scalar(np.iinfo(np.int64).min, key.dtype)), key)


def _float_key(recorder: Recorder, x: View) -> View:
    """Returns a float's bits as an integer, negative ones turned round; zeros are equal, NaNs too."""
    wide = dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32
    number = recorder.copy(x, recorder.new(wide, x.shape))
    nan = recorder.expression("isnan", (number,), recorder.new(dtypes.bool_, x.shape))
    recorder.expression("add", (number, recorder.scalar(0, wide)), number)  # -0 + 0 is 0
    bits = _as(number, dtypes.int64 if wide is dtypes.float64 else dtypes.int32)
    largest = recorder.scalar(np.iinfo(bits.dtype.numpy).max, bits.dtype)
    turned = recorder.expression("bitxor", (bits, largest), recorder.like(bits))
    negative = recorder.expression("lt", (bits, recorder.scalar(0, bits.dtype)), recorder.new(dtypes.bool_, x.shape))
    recorder.expression("select", (negative, turned, bits), bits)
    recorder.expression("select", (nan, largest, bits), bits)
    return bits if bits.dtype is dtypes.int64 else _small_key(recorder, bits)


_KEYS = {
    dtypes.uint32: _uint32_key,
    dtypes.uint64: _uint64_key,
    **dict.fromkeys(dtypes.FLOATS, _float_key),
}


def _digits(recorder: Recorder, key: View, size: int) -> Iterator[View]:
    """Yields a key as signed digits of 32 bits, the least significant first."""
    if size <= _DIGIT // 8:
        yield key
        return
    base = recorder.scalar(1 << _DIGIT, key.dtype)
    low = recorder.expression("mod", (key, base), recorder.like(key))
    high = recorder.expression("sub", (key, low), recorder.like(key))
    yield recorder.expression("sub", (low, recorder.scalar(_HALF, key.dtype)), low)
    yield recorder.expression("div", (high, base), high)


class _Network:
    """Stable sorts by one digit."""

    def __init__(self, recorder: Recorder, length: int) -> None:
        self._recorder = recorder
        self._positions = recorder.new(dtypes.int64, (length,))
        zero, one = (recorder.scalar(number, dtypes.int64) for number in (0, 1))
        recorder.launch("iota_kernel", {"count": length}, {"start": zero, "step": one, "out": self._positions})

    def order_of(self, digit: View, before: View | None = None) -> View:
        """Returns the positions of the elements in order of a digit, ties as they come in the order `before`."""
        recorder = self._recorder
        if before is not None:
            digit = _gather(recorder, digit, before, recorder.like(digit))
        pair = recorder.expression("mul", (digit, recorder.scalar(1 << _DIGIT, digit.dtype)), recorder.like(digit))
        recorder.expression("add", (pair, self._positions), pair)
        for step in _exchanges(pair.shape[-1]):
            pair = self._exchange(pair, *step)
        mask = recorder.scalar((1 << _DIGIT) - 1, pair.dtype)
        place = recorder.expression("bitand", (pair, mask), recorder.like(pair))
        return place if before is None else _gather(recorder, before, place, recorder.like(place))

    def _exchange(self, pair: View, block: int, first: int, apart: int) -> View:
        """Records one layer of the network: the smaller of elements `apart` goes first."""
        recorder, out = self._recorder, self._recorder.like(pair)
        recorder.copy(pair, out)
        for start, shape in _blocks(block, first, pair.shape[-1] - apart):
            (low, low_out), (high, high_out) = (
                [_blocked(view, start + shift, block, shape) for view in (pair, out)] for shift in (0, apart)
            )
            recorder.expression("min", (low, high), low_out)
            recorder.expression("max", (low, high), high_out)
        return out


def _exchanges(length: int) -> Iterator[tuple[int, int, int]]:
    """Yields (block, first, apart) per layer: elements i and i + apart are compared where i & block == first.

    Source: D. E. Knuth, The Art of Computer Programming, vol. 3, 5.2.2, algorithm M (Batcher's merge exchange).
    """
    largest = 1 << max(length - 1, 0).bit_length() >> 1
    block = largest
    while block:
        step, first, apart = largest, 0, block
        yield block, first, apart
        while step != block:
            first, apart = block, step - block
            step >>= 1
            yield block, first, apart
        block >>= 1


def _blocks(block: int, first: int, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields (start, shape) of the i in [0, end) with i & block == first: the whole blocks, then the rest of one."""
    whole = max(end - first + block, 0) // (2 * block)
    if whole:
        yield first, (whole, block)
    start = first + 2 * block * whole
    if start < end:
        yield start, (end - start,)


# views


def _as(view: View, dtype: DType) -> View:
    """Returns the bytes of a view as another type of the same size."""
    return View(view.buffer, dtype, view.shape, view.strides, view.offset)


def _part(view: View, start: int, count: int) -> View:
    """Returns elements along the last axis."""
    return view.slice(view.rank - 1, start, count)


def _blocked(view: View, start: int, block: int, shape: tuple[int, ...]) -> View:
    """Returns elements along the last axis from `start` on: consecutive ones, or every second block of them."""
    step = view.strides[-1]
    steps = (2 * block * step, step)[2 - len(shape) :]
    return View(view.buffer, view.dtype, view.shape[:-1] + shape, view.strides[:-1] + steps, view.offset + start * step)


def _gather(recorder: Recorder, data: View, index: View, out: View) -> View:
    """Records out[o, j] = data[o, index[o, j]]; returns `out`."""
    length = data.shape[-1]
    strides = (*data.strides[:-1], 0, data.strides[-1])
    spread = View(data.buffer, data.dtype, (*index.shape, length), strides, data.offset)
    return recorder.gather(spread, index, out, length)
