"""Values of a submission → patched parameter blocks."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from umd_core.commands import CommandBuffer, Dispatch, Patch
from umd_core.encoding.layout import ADDING_PATCHES, LAUNCH, PATCH_SIZES
from umd_core.errors import InputCountError, LimitError, UnsupportedError

_WORDS = {4: struct.Struct("<I").pack_into, 8: struct.Struct("<Q").pack_into}
_FEWEST = 16
"""Fields from which on NumPy writes them faster than one by one."""


class _Place(NamedTuple):
    """A patch, and where its field lies in the plan's blocks."""

    at: int
    size: int
    patch: Patch


class PatchPlan:
    """Where the values of a command buffer go: made once, applied at every submission.

    Attributes:
        commands: the dispatches that have patches, ascending.
        value_count: how many values a submission gives.
    """

    __slots__ = ("_bulk", "_single", "_spans", "_template", "commands", "value_count")

    def __init__(self, cb: CommandBuffer) -> None:
        self.value_count: int = 1 + max((patch.symbol for patch in cb.patches), default=-1)
        self.commands: tuple[int, ...] = tuple(sorted({patch.command for patch in cb.patches}))
        start: dict[int, int] = {}
        template = bytearray()
        self._spans: list[tuple[int, int, int]] = []
        for index in self.commands:
            command = cb.commands[index]
            if not isinstance(command, Dispatch):
                raise UnsupportedError(f"command {index} is no dispatch and cannot be patched")
            start[index] = len(template) - LAUNCH.size
            self._spans.append((index, len(template), len(template) + len(command.parameters)))
            template += command.parameters
        self._template = bytes(template)
        places = [_Place(start[p.command] + p.offset, PATCH_SIZES[p.kind], p) for p in cb.patches]
        plain = [place for place in places if place.patch.kind not in ADDING_PATCHES]
        self._bulk = [_Scatter(plain, size) for size in (4, 8)] if len(plain) >= _FEWEST else []
        self._single = [place for place in places if not self._bulk or place.patch.kind in ADDING_PATCHES]

    def apply(self, values: Sequence[int]) -> dict[int, bytes]:
        """Returns the parameter blocks of `commands` with the values written in, by command index.

        Args:
            values: u64 words; a float as its bits.

        Raises:
            InputCountError: not as many values as the patches name.
            LimitError: a value is no u64, or value + addend does not fit in its field.
        """
        if len(values) != self.value_count:
            raise InputCountError("submit", len(values), self.value_count, self.value_count, "values")
        try:
            words = struct.pack(f"<{len(values)}Q", *values)
        except struct.error:
            raise _word_error(values) from None
        blocks = bytearray(self._template)
        for scatter in self._bulk:
            scatter.write(blocks, words)
        for at, size, patch in self._single:
            word = values[patch.symbol] + patch.addend
            if not 0 <= word < 1 << 8 * size:
                raise LimitError(f"value {patch.symbol} in command {patch.command}", word, (1 << 8 * size) - 1)
            _WORDS[size](blocks, at, word)
        done = bytes(blocks)
        return {index: done[first:last] for index, first, last in self._spans}


class _Scatter:
    """Fields of one size whose bits are a value's, written at once."""

    __slots__ = ("_at", "_format", "_places", "_symbols")

    def __init__(self, places: Iterable[_Place], size: int) -> None:
        self._places = [place for place in places if place.size == size]
        self._format = f"<u{size}"
        self._at = np.array([place.at // size for place in self._places], np.int64)
        self._symbols = np.array([place.patch.symbol for place in self._places], np.int64)

    def write(self, blocks: bytearray, words: bytes) -> None:
        """Writes the fields into the blocks."""
        if not self._places:
            return
        chosen = np.frombuffer(words, "<u8")[self._symbols]
        fields = np.frombuffer(blocks, self._format)
        largest = np.iinfo(fields.dtype).max
        if fields.itemsize == 4 and (chosen > largest).any():
            at = int(np.argmax(chosen > largest))
            patch = self._places[at].patch
            raise LimitError(f"value {patch.symbol} in command {patch.command}", int(chosen[at]), int(largest))
        fields[self._at] = chosen


def apply_patches(cb: CommandBuffer, values: Sequence[int]) -> dict[int, bytes]:
    """Returns the parameter blocks that have patches, with the values written in, by command index.

    Make a `PatchPlan` where the same command buffer is submitted more than once.

    Raises: see `PatchPlan.apply`.
    """
    return PatchPlan(cb).apply(values)


def _word_error(values: Sequence[object]) -> LimitError:
    largest = 2**64 - 1
    for at, value in enumerate(values):
        if not isinstance(value, int):
            return LimitError(f"value {at} ({value!r}, floats are given as their bits)", -1, largest)
        if not 0 <= value <= largest:
            return LimitError(f"value {at}", value, largest)
    return LimitError("values", len(values), largest)
