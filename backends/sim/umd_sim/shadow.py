"""Shadow memory for strict mode: what has been written, and checks of what one launch reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umd_core.errors import InternalError
from umd_core.kernels import KernelRecord, Operand, OperandView

Bytes = NDArray[np.uint8]
Marks = NDArray[np.bool_]

POISON = b"\xff\x7f"
"""Repeated, a NaN of float16, bfloat16, float32 and float64, and an integer that is no index."""
_OTHER = b"\x5a\xa5"
_AROUND = 4096
"""Bytes on either side of a written operand that are compared before and after."""


class StrictError(InternalError):
    """A driver bug that strict mode found. Facts: `finding`, and what it is about."""


class Guarded:
    """Memory with a shadow.

    Attributes:
        memory: (size,) uint8.
        written: for each byte, whether anything has written it.
        owned: whether it is the device's, not wrapped host memory.
    """

    __slots__ = ("memory", "owned", "written")

    def __init__(self, memory: Bytes, *, owned: bool) -> None:
        self.memory, self.owned = memory, owned
        self.written: Marks = np.full(memory.size, not owned, np.bool_)

    def spoil(self) -> None:
        """Forgets what was written."""
        self.memory[...] = _repeated(POISON, self.memory.size)
        self.written.fill(False)


class Use(NamedTuple):
    """One operand of one launch: its guarded memory, where its binding starts, and the box within."""

    operand: Operand
    view: OperandView
    guarded: Guarded
    start: int

    def over(self, memory: NDArray[Any], first: int = 0) -> NDArray[Any]:
        """Returns the box's bytes, (extents…, bytes of an element), in an array that begins at byte `first`."""
        view = self.view
        return box(memory, self.start - first + view.offset, view.shape, view.strides, view.dtype.size)

    @property
    def empty(self) -> bool:
        """Whether the box has no element."""
        return 0 in self.view.shape

    def span(self) -> tuple[int, int]:
        """Returns the bytes [low, high) of its memory that a box that is not empty lies in."""
        reach = [(extent - 1) * step for extent, step in zip(self.view.shape, self.view.strides, strict=True)]
        first = self.start + self.view.offset
        return first + sum(r for r in reach if r < 0), first + sum(r for r in reach if r > 0) + self.view.dtype.size

    def meets(self, other: Use) -> bool:
        """Returns whether two operands may share bytes."""
        if self.guarded is not other.guarded or self.empty or other.empty:
            return False
        (low, high), (other_low, other_high) = self.span(), other.span()
        return low < other_high and other_low < high


def box(memory: NDArray[Any], at: int, shape: Sequence[int], strides: Sequence[int], size: int) -> NDArray[Any]:
    """Returns a strided box of elements of `size` bytes, from byte `at` on, as (shape…, size)."""
    return np.ndarray((*shape, size), memory.dtype, memory, at, (*strides, 1))


def first_false(marks: Marks) -> list[int] | None:
    """Returns the index of the first element, of (shape…, size), that is not marked whole; None when all are."""
    if marks.all():
        return None
    return [int(i) for i in np.argwhere(~marks)[0][:-1]]


def _repeated(pattern: bytes, size: int) -> Bytes:
    return np.resize(np.frombuffer(pattern, np.uint8), size)


def checked(record: KernelRecord, uses: Sequence[Use], call: Callable[[], None]) -> None:
    """Runs a kernel and looks at what it read and wrote.

    Raises:
        StrictError: what is wrong.
    """
    kernel = record.row.name
    for use in uses:
        # Which elements of a gather's data are read depends on the indices.
        exempt = record.row.family == "gather" and use.operand.name == "data"
        if "r" in use.operand.access and not use.empty and not exempt:
            _check_initialised(kernel, use)
    written = [use for use in uses if use.operand.writes and not use.empty]
    fresh = [u for u in written if u.operand.access == "w" and not any(u.meets(o) for o in uses if o is not u)]
    _spoil(fresh, POISON)
    before = list(_surroundings(written))
    call()
    _check_surroundings(kernel, written, before)
    _check_complete(kernel, fresh, call, repeatable=len(fresh) == len(written))
    if not record.row.atomic:
        for use in written:
            use.over(use.guarded.written)[...] = True


def _check_initialised(kernel: str, use: Use) -> None:
    at = first_false(use.over(use.guarded.written))
    if at is not None:
        message = f"{kernel} reads element {at} of {use.operand.name}, which nothing has written"
        raise StrictError(message, finding="uninitialised read", operand=use.operand.name, element=at)


def _spoil(uses: Sequence[Use], pattern: bytes) -> None:
    for use in uses:
        elements = use.over(use.guarded.memory)
        elements[...] = _repeated(pattern, elements.shape[-1])


def _surroundings(written: Sequence[Use]) -> Iterator[tuple[int, Bytes]]:
    """Yields, per operand, where its surroundings begin, and a copy of its bytes and of those around it."""
    for use in written:
        low, high = use.span()
        first = max(low - _AROUND, 0)
        yield first, use.guarded.memory[first : high + _AROUND].copy()


def _check_surroundings(kernel: str, written: Sequence[Use], before: Sequence[tuple[int, Bytes]]) -> None:
    for use, (first, old) in zip(written, before, strict=True):
        changed = use.guarded.memory[first : first + old.size] != old
        for other in written:
            if other.guarded is use.guarded:
                _clear(changed, first, other)
        if changed.any():
            offset = first + int(np.argmax(changed)) - use.start
            message = f"{kernel} changes byte {offset} of the binding of {use.operand.name}, outside its box"
            raise StrictError(message, finding="out-of-bounds write", operand=use.operand.name, offset=offset)


def _clear(changed: Marks, first: int, use: Use) -> None:
    """Takes back the marks of an operand's own bytes."""
    low, high = use.span()
    own = np.zeros(high - low, np.bool_)
    use.over(own, low)[...] = True
    start, end = max(low, first), min(high, first + changed.size)
    if start < end:
        changed[start - first : end - first] &= ~own[start - low : end - low]


def _check_complete(kernel: str, fresh: Sequence[Use], call: Callable[[], None], *, repeatable: bool) -> None:
    """Looks for elements that hold the pattern, and hold another one after a second run over that: none wrote them."""
    doubtful = [(use, left) for use, left in ((use, _left(use, POISON)) for use in fresh) if left.any()]
    if not doubtful or not repeatable:
        return
    _spoil(fresh, _OTHER)
    call()
    for use, left in doubtful:
        unwritten = left & _left(use, _OTHER)
        if unwritten.any():
            at = [int(i) for i in np.argwhere(unwritten)[0]]
            message = f"{kernel} leaves element {at} of {use.operand.name} unwritten"
            raise StrictError(message, finding="unwritten result", operand=use.operand.name, element=at)


def _left(use: Use, pattern: bytes) -> Marks:
    """Returns which elements hold the pattern."""
    elements = use.over(use.guarded.memory)
    return np.asarray((elements == _repeated(pattern, elements.shape[-1])).all(axis=-1))
