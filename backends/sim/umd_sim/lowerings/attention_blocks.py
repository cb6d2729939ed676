"""Which scores of an attention are made at a time: some heads, some queries, and of the keys those that they see."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from umd_sim.lowerings.layout import Array

PIECE = 1 << 17
"""Scores that are made at a time."""
BANDED = 64
"""Queries that are worked on at a time where they do not see all keys, so that few scores are made in vain."""
_WORTH = 0.9
"""The share of the scores up to which leaving keys out is worth more blocks."""


class Block(NamedTuple):
    """Some queries.

    Attributes:
        rows: which.
        keys: those that some of them see.
        edges: (keys, counted from the block's first; (queries, keys) truths: which scores are left out).
    """

    rows: slice
    keys: slice
    edges: tuple[tuple[slice, Array], ...] = ()

    @property
    def size(self) -> int:
        """Scores of one head."""
        return int((self.rows.stop - self.rows.start) * (self.keys.stop - self.keys.start))


class Split(NamedTuple):
    """How the scores are taken apart.

    Attributes:
        blocks: of the queries, in order.
        heads: slices of the batch axes; every block is made of each.
        is_whole: whether there is one block, with all keys.
    """

    blocks: tuple[Block, ...]
    heads: tuple[tuple[slice, ...], ...]
    is_whole: bool


def split(batch: tuple[int, ...], queries: int, keys: int, low: int, high: int, most: int) -> Split:
    """Returns blocks of at most `most` queries, of which query i sees the keys from i + low to i + high."""
    blocks = tuple(_blocks(queries, keys, low, high, most))
    return _with_heads(batch, blocks, len(blocks) == 1 and blocks[0].keys == slice(0, keys))


def without_hidden(given: Split, batch: tuple[int, ...], bias: Array) -> Split | None:
    """Returns the split without keys to which a block's bias, the same for all heads, is -inf; None if not worth it."""
    table = bias.reshape(bias.shape[-2:])
    blocks = []
    for block in given.blocks:
        seen = np.flatnonzero(np.maximum.reduce(table[block.rows], axis=0) != -np.inf)
        first, last = (int(seen[0]), int(seen[-1])) if seen.size else (0, 0)
        blocks.append(Block(block.rows, slice(first, last + 1)))
    if sum(block.size for block in blocks) > _WORTH * sum(block.size for block in given.blocks):
        return None
    return _with_heads(batch, tuple(blocks), False)


def _with_heads(batch: tuple[int, ...], blocks: tuple[Block, ...], is_whole: bool) -> Split:
    largest = max(block.size for block in blocks)
    return Split(blocks, tuple(_heads(batch, max(1, PIECE // largest))), is_whole)


def _blocks(queries: int, keys: int, low: int, high: int, most: int) -> Iterator[Block]:
    count = min(max(1, PIECE // keys), queries, most)
    for first in range(0, queries, count):
        rows = slice(first, min(first + count, queries))
        begin = min(max(rows.start + low, 0), keys - 1)
        seen = slice(begin, max(min(rows.stop + high, keys), begin + 1))
        yield Block(rows, seen, tuple(_edges(rows, seen, low, high)))


def _edges(rows: slice, keys: slice, low: int, high: int) -> Iterator[tuple[slice, Array]]:
    """Yields the keys of a block that only some of its queries see."""
    count = rows.stop - rows.start
    begin = max(rows.start + high + 1, keys.start)
    if begin < keys.stop:
        yield slice(begin - keys.start, None), _hidden(count, keys.stop - begin, rows.start + high - begin)
    end = min(rows.stop - 1 + low, keys.stop)
    if end > keys.start:
        width = end - keys.start
        yield slice(0, width), _hidden(count, width, rows.start + low - 1 - keys.start, below=True)


@functools.lru_cache(maxsize=64)
def _hidden(rows: int, columns: int, shift: int, below: bool = False) -> Array:
    """Returns (rows, columns) truths: column > row + shift, or else column <= row + shift."""
    ahead = np.arange(columns) - np.arange(rows)[:, None]
    return np.asarray(ahead <= shift if below else ahead > shift)


def _heads(batch: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Yields the batch, about `most` of its elements at a time: a slice of each axis."""
    axis, inner = len(batch), 1
    while axis and inner * batch[axis - 1] <= most:
        axis -= 1
        inner *= batch[axis]
    if not axis:
        yield (slice(None),) * len(batch)
        return
    step, rest = max(1, most // inner), (slice(None),) * (len(batch) - axis)
    for index in itertools.product(*map(range, batch[: axis - 1])):
        for start in range(0, batch[axis - 1], step):
            yield (*(slice(i, i + 1) for i in index), slice(start, start + step), *rest)
