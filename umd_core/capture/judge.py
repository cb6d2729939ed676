"""Whether two devices agree on what one command wrote: bit by bit, or within its kernel's stated tolerance."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from umd_core.dtypes import DType
from umd_core.errors import IndexRangeError
from umd_core.ir import Array
from umd_core.kernels import KernelRecord, KernelRow
from umd_core.testing.compare import LARGEST, epsilon, smallest, wrong_elements
from umd_core.testing.reference import Case, Expected, reference

WORK, WINDOWS, PRODUCTS = 1 << 20, 1 << 16, 1 << 27
"""Element operations up to which the reference is asked: it is slow on purpose."""


class Verdict(NamedTuple):
    """What is wrong with an operand.

    Attributes:
        wrong: which elements, shaped like the operand's box.
        at_fault: for each device whether the reference contradicts it; None when the reference was not asked.
        expected: the reference's values, None when it was not asked.
    """

    wrong: Array
    at_fault: tuple[bool, bool] | None
    expected: Array | None


class Launch:
    """One launch, for the reference: the kernel, its parameters and what its operands held before."""

    record: KernelRecord

    def __init__(self, record: KernelRecord, parameters: bytes, before: Mapping[str, Array]) -> None:
        self.record, self._parameters, self._before = record, parameters, before

    @functools.cached_property
    def expected(self) -> Mapping[str, Expected] | None:
        """What each written operand should hold, None when the launch is too large for the reference."""
        if not self._is_small():
            return None
        try:
            return reference(Case(self.record, self._parameters, self._before))
        except IndexRangeError:
            return None

    def _is_small(self) -> bool:
        flat = self.record.unpack(self._parameters)
        work = sum(math.prod(_values(flat, group)) for group in self._groups())
        if self.record.row.family in ("conv", "pool"):
            windows = math.prod(flat["output"]) * math.prod(flat["kernel"])
            return windows <= WINDOWS and work <= PRODUCTS
        return work <= (PRODUCTS if self.record.row.family == "gemm" else WORK)

    def _groups(self) -> tuple[tuple[str, ...], ...]:
        row = self.record.row
        return row.work or (tuple(extent.name for extent in row.extents),)

    def had_nonfinite(self) -> bool:
        """Returns whether NaN or an infinity was among the inputs or the parameters."""
        read = {operand.name for operand in self.record.row.operands if "r" in operand.access}
        if any(holds_nonfinite(array) for name, array in self._before.items() if name in read):
            return True
        numbers = self.record.struct.unpack(self._parameters)
        return any(isinstance(number, float) and not math.isfinite(number) for number in numbers)

    def verdict(self, name: str, dtype: DType, a: Array, b: Array) -> Verdict | None:
        """Returns what is wrong with an operand that the two devices wrote, None when they agree.

        Both may be as far from the exact result as the kernel's tolerance allows. Where they are further from each
        other than that, the float64 reference decides, and says which of them is wrong. A launch that is too large for
        it is judged by the largest number of the operand.
        """
        tolerance = tolerance_of(self.record.row, dtype)
        doubtful = _far(a, b, dtype, tolerance)
        if not doubtful.any():
            return None
        if self.expected is not None:
            expected = self.expected[name]
            wrongs = [doubtful & wrong_elements(got, expected, dtype, tolerance) for got in (a, b)]
            wrong = wrongs[0] | wrongs[1]
            at_fault = (bool(wrongs[0].any()), bool(wrongs[1].any()))
            return Verdict(wrong, at_fault, expected.value) if wrong.any() else None
        if dtype.is_float:
            finite = [np.abs(x[np.isfinite(x)].astype(np.float64)).max(initial=0.0) for x in (a, b)]
            doubtful = _far(a, b, dtype, tolerance, float(max(finite)))
        return Verdict(doubtful, None, None) if doubtful.any() else None


def tolerance_of(row: KernelRow, dtype: DType) -> float:
    """Returns in which distance from the exact result a kernel may be, in epsilons of the type."""
    return min(row.tolerance, LARGEST / epsilon(dtype)) if dtype.is_float else 0.0


def _values(flat: Mapping[str, Any], names: tuple[str, ...]) -> list[int]:
    found: list[int] = []
    for name in names:
        value = flat[name]
        found += value if isinstance(value, tuple) else [value]
    return found


def _far(a: Array, b: Array, dtype: DType, tolerance: float, scale: float = 0.0) -> Array:
    """Returns which elements differ by more than `tolerance` epsilons of themselves or of `scale`."""
    if not dtype.is_float:
        if dtype.kind == "b":
            a, b = (np.frombuffer(x.tobytes(), np.uint8).reshape(x.shape) != 0 for x in (a, b))
        return np.asarray(a != b, np.bool_)
    wide: Any = np.longdouble if dtype.size == 8 else np.float64
    x, y = (np.asarray(v.astype(wide), wide) for v in (a, b))
    with np.errstate(all="ignore"):
        size = np.maximum(*(np.where(np.isfinite(v), np.abs(v), 0) for v in (x, y)))
        near = np.abs(x - y) <= tolerance * epsilon(dtype) * np.maximum(size, scale) + smallest(dtype)
    return np.asarray(~(near | (x == y) | (np.isnan(x) & np.isnan(y))), np.bool_)


def holds_nonfinite(array: Array) -> bool:
    """Returns whether NaN or an infinity is among the elements."""
    return is_float(array) and not bool(np.isfinite(array).all())


def is_float(array: Array) -> bool:
    """Returns whether the elements are floats, bfloat16 among them."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def nonfinite(array: Array) -> Array:
    """Returns which elements are NaN or infinite, shaped like the array."""
    return np.asarray(~np.isfinite(array), np.bool_) if is_float(array) else np.zeros(array.shape, np.bool_)


_WORDS: Mapping[int, Any] = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def ulps(a: Any, b: Any) -> int | None:
    """Returns how many numbers of their type lie between two floats, None for others and for NaN and infinities."""
    pair = np.array([a, b])
    if not is_float(pair) or holds_nonfinite(pair):
        return None
    sign = 1 << (8 * pair.itemsize - 1)
    words = [int(word) for word in pair.view(_WORDS[pair.itemsize])]
    first, second = (word if word < sign else sign - word for word in words)
    return abs(first - second)
