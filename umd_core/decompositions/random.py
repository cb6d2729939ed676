"""Random numbers by integer arithmetic: Philox in uint64, where a product of two 32-bit words fits.

Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from umd_core.dtypes import DType, bool_, float64, uint64
from umd_core.ir import contiguous_strides
from umd_core.kernels.random import DIGITS, MULTIPLIERS, ROUNDS, WEYL
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, widen
from umd_core.views import View

_BITS = 32
_MASK = (1 << _BITS) - 1


def uniform(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records the words of every counter, then the first bits of each as a fraction."""
    draw = _Draw(recorder, operands)
    recorder.copy(draw.shaped(draw.units(operands["out"].dtype)), operands["out"])


def normal(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records uniform fractions, then the Box-Muller transform of each pair."""
    draw, out = _Draw(recorder, operands), operands["out"]
    units = draw.units(accumulator(out.dtype))
    first, second = draw.columns(View(units.buffer, units.dtype, (units.size // 2, 2), (2, 1)))
    one, minus_two, turn = (recorder.scalar(value, units.dtype) for value in (1, -2, 2 * math.pi))
    radius = draw.new("sub", one, first)
    recorder.expression("log", (radius,), radius)
    recorder.expression("mul", (radius, minus_two), radius)
    recorder.expression("sqrt", (radius,), radius)
    angle = draw.new("mul", second, turn)
    for name, column in (("cos", first), ("sin", second)):
        recorder.expression("mul", (draw.new(name, angle), radius), column)
    recorder.copy(draw.shaped(units), out)


def bernoulli(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records uniform fractions, and whether each is less than its p."""
    draw, chances = _Draw(recorder, operands), widen(recorder, operands["p"])
    recorder.expression("lt", (draw.shaped(draw.units(chances.dtype)), chances), operands["out"])


def integer(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records words of 64 bits, their remainder by high - low, and the sum with low."""
    draw, out = _Draw(recorder, operands), operands["out"]
    low, high = (draw.unsigned(name) for name in ("low", "high"))
    span = draw.new("sub", high, low)
    words = draw.shaped(draw.pairs())
    rest = draw.new("mod", words, span)
    is_whole = recorder.expression("eq", (span, draw.constant(0)), recorder.new(bool_, ()))
    recorder.expression("select", (is_whole, words, rest), rest)
    recorder.copy(recorder.expression("add", (rest, low), rest), out)


class _Draw:
    """The words of one launch: as many blocks of four as its elements need."""

    def __init__(self, recorder: Recorder, operands: Mapping[str, View]) -> None:
        self._recorder = recorder
        self._operands = operands
        self._shape = operands["out"].shape
        self._count = math.prod(self._shape)

    # values

    def constant(self, value: int) -> View:
        """Returns a 0-d uint64."""
        return self._recorder.scalar(value, uint64)

    def unsigned(self, name: str) -> View:
        """Returns a 0-d operand modulo 2^64."""
        return self._recorder.copy(self._operands[name], self._recorder.new(uint64, ()))

    def new(self, name: str, a: View, b: View | None = None) -> View:
        """Returns an expression of one view, or of two that broadcast, as a new tensor."""
        inputs = (a,) if b is None else (a, b)
        shape = max((view.shape for view in inputs), key=len)
        return self._recorder.expression(name, inputs, self._recorder.new(inputs[0].dtype, shape))

    def shaped(self, flat: View) -> View:
        """Returns as many elements of a row-major buffer as are wanted, in the shape of the result."""
        return View(flat.buffer, flat.dtype, self._shape, contiguous_strides(self._shape))

    def columns(self, table: View) -> list[View]:
        """Returns the columns of a view with two axes."""
        return [table.slice(1, at, 1).squeeze(1) for at in range(table.shape[1])]

    # words

    def pairs(self) -> View:
        """Returns words of 64 bits, row-major, to the end of the last block."""
        a, b, c, d = self.columns(self._words(-(-self._count // 2)))
        out = self._recorder.new(uint64, (a.size, 2))
        for low, high, column in zip((a, c), (b, d), self.columns(out), strict=True):
            shifted = self.new("mul", high, self.constant(1 << _BITS))
            self._recorder.expression("add", (shifted, low), column)
        return _flat(out)

    def units(self, dtype: DType) -> View:
        """Returns uniform fractions, row-major, to the end of the last block."""
        wide, digits, recorder = accumulator(dtype), DIGITS[dtype], self._recorder
        words = self.pairs() if dtype is float64 else _flat(self._words(-(-self._count // 4)))
        bits = 2 * _BITS if dtype is float64 else _BITS
        first = self.new("div", words, self.constant(1 << (bits - digits)))
        fractions = recorder.copy(first, recorder.new(wide, first.shape))
        return recorder.expression("mul", (fractions, recorder.scalar(math.ldexp(1, -digits), wide)), fractions)

    def _words(self, blocks: int) -> View:
        """Returns (blocks, 4) words of 32 bits in uint64."""
        block = self._recorder.new(uint64, (blocks,))
        steps = {"start": self.constant(0), "step": self.constant(1), "out": block}
        self._recorder.launch("iota_kernel", {"count": blocks}, steps)
        counter = [*self._halves(block), *self._halves(self.unsigned("offset"))]
        key = self._halves(self.unsigned("seed"))
        for number in range(ROUNDS):
            if number:
                key = [self._low(self.new("add", k, self.constant(w))) for k, w in zip(key, WEYL, strict=True)]
            counter = self._round(counter, key)
        words = self._recorder.new(uint64, (blocks, 4))
        for word, column in zip(counter, self.columns(words), strict=True):
            self._recorder.copy(word, column)
        return words

    def _round(self, counter: list[View], key: list[View]) -> list[View]:
        """Returns the counter's four words after one round."""
        a, b, c, d = counter
        first, second = (self.new("mul", x, self.constant(m)) for x, m in zip((a, c), MULTIPLIERS, strict=True))
        (high_a, low_a), (high_c, low_c) = ((self._high(x), self._low(x)) for x in (first, second))
        return [self._mixed(high_c, b, key[0]), low_c, self._mixed(high_a, d, key[1]), low_a]

    def _mixed(self, a: View, b: View, key: View) -> View:
        return self.new("bitxor", self.new("bitxor", a, b), key)

    def _halves(self, view: View) -> list[View]:
        return [self._low(view), self._high(view)]

    def _low(self, view: View) -> View:
        return self.new("bitand", view, self.constant(_MASK))

    def _high(self, view: View) -> View:
        return self.new("div", view, self.constant(1 << _BITS))


def _flat(view: View) -> View:
    """Returns a row-major view with one axis."""
    return View(view.buffer, view.dtype, (view.size,), (1,))
