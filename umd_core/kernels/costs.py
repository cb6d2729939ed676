"""What one launch asks of a device: arithmetic and bytes, both from the row's declaration.

A kernel's arithmetic is its work (groups of extents) times what its program does to an element. Its bytes are the
elements of its operands' boxes, each once: a broadcast operand counts what it holds, not how often it is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from umd_core.dtypes import DType, float64
from umd_core.kernels import chain
from umd_core.kernels.expressions import PRIMITIVES
from umd_core.kernels.row import Box, KernelRecord
from umd_core.kernels.safety import touched

FUNCTIONS = frozenset((
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "div", "erf", "exp", "expm1", "fmod",
    "log", "log1p", "mod", "pow", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
))  # fmt: skip
"""Primitives that take a device longer than an addition does."""
PRODUCTS: Mapping[str, tuple[int, ...]] = {
    "gemm": (1,),
    "conv": (1,),
    "attention_kernel": (1, 1),
    "attention_grad_kernel": (3, 2),
}
"""Families or kernels whose work is products of matrices: how many multiply-adds each group of their work is."""


class Traffic(NamedTuple):
    """Bytes that a launch reads and writes."""

    read: int
    written: int

    @property
    def total(self) -> int:
        """Both."""
        return self.read + self.written


class Cost(NamedTuple):
    """What one launch asks of a device.

    Attributes:
        dtype: what it computes in.
        products: multiplications and additions of matrix products and convolutions, two a multiply-add.
        simple: other arithmetic, comparisons and choices.
        functions: `FUNCTIONS` by name, how often each.
        traffic: bytes that it has to move, each element once.
    """

    dtype: DType
    products: int
    simple: int
    functions: Mapping[str, int]
    traffic: Traffic

    @property
    def operations(self) -> int:
        """All arithmetic, a function counted as one operation."""
        return self.products + self.simple + sum(self.functions.values())


class PerElement(NamedTuple):
    """Arithmetic on one element."""

    simple: int = 0
    functions: tuple[str, ...] = ()


def cost(record: KernelRecord, parameters: bytes | memoryview) -> Cost:
    """Returns what a launch with this parameter block asks of a device."""
    flat = record.struct.unpack(parameters)
    work = [math.prod(int(flat[extent]) for extent in group) for group in record.work]
    dtype = _computed_in(record)
    moved = traffic(record, flat)
    products = PRODUCTS.get(record.row.family) or PRODUCTS.get(record.row.name)
    if products:
        total = 2 * sum(count * group for count, group in zip(products, work, strict=False))
        return Cost(dtype, total, 0, _exponentials(record, flat), moved)
    each = per_element(record, flat)
    counts = Counter(each.functions)
    return Cost(dtype, 0, each.simple * work[0], {name: n * work[0] for name, n in counts.items()}, moved)


def _exponentials(record: KernelRecord, flat: Sequence[int | float]) -> Mapping[str, int]:
    """Returns how many weights of attention are made of scores; none of other products.

    A score is the sum over the last extent of the first group of work.
    """
    if record.row.family != "attention":
        return {}
    return {"exp": math.prod(int(flat[index]) for index in record.work[0][:-1])}


def _computed_in(record: KernelRecord) -> DType:
    """Returns the type that arithmetic is done in: the first of the record, or float64 where any is."""
    return float64 if float64 in record.types else record.types[0]


# arithmetic on an element


def per_element(record: KernelRecord, flat: Sequence[int | float]) -> PerElement:
    """Returns what a launch does to each element of its work.

    Raises:
        KeyError: the kernel's family has no entry in `FAMILIES`.
    """
    return FAMILIES[record.row.family](record, flat)


def _counted(tokens: Iterable[str]) -> PerElement:
    named = [token for token in tokens if token in PRIMITIVES]
    functions = tuple(name for name in named if name in FUNCTIONS)
    return PerElement(len(named) - len(functions), functions)


def _program(record: KernelRecord, flat: Sequence[int | float]) -> PerElement:
    return _counted(record.row.program.split())


def _chain(record: KernelRecord, flat: Sequence[int | float]) -> PerElement:
    return _counted(chain.words(_tokens(record, flat)))


def _tokens(record: KernelRecord, flat: Sequence[int | float]) -> list[int]:
    first = record.index_of["program"][0]
    return [int(token) for token in flat[first : first + chain.TOKENS]]


def _sort(record: KernelRecord, flat: Sequence[int | float]) -> PerElement:
    """Returns the comparisons of a sort by merging, by element."""
    length = int(flat[record.index_of["length"][0]])
    return PerElement(max(length - 1, 1).bit_length())


_ROWS: Mapping[str, PerElement] = {
    "softmax_kernel": PerElement(3, ("exp", "div")),
    "log_softmax_kernel": PerElement(4, ("exp",)),
    "softmax_grad_kernel": PerElement(4),
    "log_softmax_grad_kernel": PerElement(3, ("exp",)),
    "normalize_kernel": PerElement(6),
    "sgd_kernel": PerElement(4),
    "sgd_momentum_kernel": PerElement(8),
    "adamw_kernel": PerElement(12, ("sqrt", "div")),
    "random_uniform_kernel": PerElement(27),
    "random_normal_kernel": PerElement(30, ("log", "sqrt", "cos")),
    "random_bernoulli_kernel": PerElement(28),
    "random_integer_kernel": PerElement(50, ("mod",)),
}
"""Kernels whose mathematics is no program; a Philox word is 25 operations: 10 rounds over four words."""


def _by_name(record: KernelRecord, flat: Sequence[int | float]) -> PerElement:
    return _ROWS[record.row.name]


def _one(record: KernelRecord, flat: Sequence[int | float]) -> PerElement:
    return PerElement(1)


FAMILIES: Mapping[str, Callable[[KernelRecord, Sequence[int | float]], PerElement]] = {
    "expression": _program,
    "chain": _chain,
    "reduce": _one,
    "arg_reduce": _one,
    "gather": _one,
    "scatter": _one,
    "iota": _one,
    "pool": _one,
    "rows": _by_name,
    "update": _by_name,
    "scan": _one,
    "sort": _sort,
    "random": _by_name,
}
"""What each family that is not a matrix product does to an element."""


# bytes


def traffic(record: KernelRecord, flat: Sequence[int | float], granule: int = 1) -> Traffic:
    """Returns the bytes that a launch moves when memory is read and written in pieces of `granule` bytes.

    With 1 they are the elements' own; a strided box moves more where a piece holds elements that it leaves out.
    """
    read = written = 0
    for box in _used(record, flat):
        moved = _moved(box, record, flat, granule)
        read += moved if "r" in box.operand.access else 0
        written += moved if box.operand.writes else 0
    return Traffic(read, written)


def _used(record: KernelRecord, flat: Sequence[int | float]) -> Sequence[Box]:
    """Returns the operands that a launch touches: a chain only those that its program names."""
    if record.row.family != "chain":
        return record.boxes
    named = chain.used_operands(_tokens(record, flat))
    return [box for number, box in enumerate(record.boxes) if number in named or box.operand.writes]


def _moved(box: Box, record: KernelRecord, flat: Sequence[int | float], granule: int) -> int:
    """Returns the bytes of the pieces that a box touches.

    An operand that an index goes into is touched once for each index, wherever that lies.
    """
    picked = record.extent_at.get("axis", ()) if record.row.family in ("gather", "scatter") else ()
    indexed = any(extent in picked for extent, _ in box.axes)
    axes = [(abs(int(flat[s])), int(flat[e])) for e, s in box.axes if e not in picked and flat[e] != 1]
    if any(extent == 0 for _, extent in axes):
        return 0
    low, high = touched(box, [int(number) for number in flat])
    strided = sorted((stride, extent) for stride, extent in axes if stride or indexed)
    run = 1
    for stride, extent in strided:
        if stride == run:
            run *= extent
    count = math.prod(extent for _, extent in strided)
    pieces = count // run * _up(run * box.dtype.size, granule)
    return min(pieces, _up(high - low, granule))


def _up(size: int, granule: int) -> int:
    return -(-size // granule) * granule
