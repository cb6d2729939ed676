"""Attention and its gradients over few scores: one plain sequence of NumPy calls, made when the launch is bound."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from umd_sim.lowerings.attention_blocks import Block
from umd_sim.lowerings.layout import Array, Call
from umd_sim.lowerings.short import is_short, reduce_rows
from umd_sim.scratch import Scratch

FEW = 1 << 13
"""Scores up to which calls cost more than what they do."""
_SCORES, _SLOPES, _ROWS, _FIRST, _SECOND, _WIDE, _HALVES = 0, 1, 2, 3, 4, 5, 6
"""Scratch slots: scores, their gradients, what is added up along a row; a number of each query, another one, and one in
float64; what maxima of short rows take."""
Operands = Mapping[str, Array]


class Scoring(NamedTuple):
    """What is known of a launch.

    Attributes:
        scale: what products of queries and keys are multiplied by.
        guarded: which queries give 0, as the kernel table has it.
        block: the only one, with all keys.
        ones: (keys, 1), None where there are too many.
    """

    scale: float
    guarded: int
    block: Block
    ones: Array | None


def attend(scoring: Scoring, of: Operands, scratch: Scratch) -> Iterator[Call]:
    """Yields the calls that write y and lse."""
    y, lse, v = of["y"], of["lse"][..., None], of["v"]
    rows = y.shape[:-1]
    scores = scratch.take(_SCORES, (*rows, v.shape[-2]), y.dtype)
    most, total = (scratch.take(slot, (*rows, 1), y.dtype) for slot in (_FIRST, _SECOND))
    logarithm = scratch.take(_WIDE, total.shape, np.dtype(np.float64))
    yield from _scores(scoring, of, scores)
    yield _maxima(scores, most, scratch)
    yield functools.partial(np.subtract, scores, most, scores)
    yield functools.partial(np.exp, scores, scores)
    yield _sums(scoring, scores, total)
    yield functools.partial(np.matmul, scores, v, y)
    yield functools.partial(np.divide, y, total, y)
    yield functools.partial(np.log, total, logarithm, dtype=np.float64)
    yield functools.partial(np.add, logarithm, most, lse, casting="unsafe")
    if scoring.guarded:
        yield functools.partial(_empty_dead, scoring.guarded, most, total, y, lse)


def differentiate(scoring: Scoring, of: Operands, scratch: Scratch) -> Iterator[Call]:
    """Yields the calls that write dq, dk and dv."""
    y, dy, lse, q, k, v = (of[name] for name in ("y", "dy", "lse", "q", "k", "v"))
    lse, dq = lse[..., None], of["dq"]
    chances, slopes = (scratch.take(slot, (*dq.shape[:-1], k.shape[-2]), dq.dtype) for slot in (_SCORES, _SLOPES))
    work = scratch.take(_ROWS, np.broadcast_shapes(dy.shape, y.shape), dq.dtype)
    common = scratch.take(_WIDE, (*work.shape[:-1], 1), np.dtype(np.float64))
    yield from _scores(scoring, of, chances)
    yield functools.partial(np.subtract, chances, lse, chances, casting="unsafe")
    yield functools.partial(np.exp, chances, chances)
    if scoring.guarded:
        yield functools.partial(_leave_out_dead, chances, lse)
    yield functools.partial(np.matmul, chances.swapaxes(-1, -2), dy, of["dv"])
    yield functools.partial(np.matmul, dy, v.swapaxes(-1, -2), slopes)
    yield functools.partial(np.multiply, dy, y, work)
    yield functools.partial(np.add.reduce, work, axis=-1, keepdims=True, dtype=np.float64, out=common)
    yield functools.partial(np.subtract, slopes, common, slopes, casting="unsafe")
    yield functools.partial(np.multiply, slopes, chances, slopes)
    if scoring.scale != 1:
        yield functools.partial(np.multiply, slopes, scoring.scale, slopes)
    yield functools.partial(np.matmul, slopes.swapaxes(-1, -2), q, of["dk"])
    yield functools.partial(np.matmul, slopes, k, dq)


def _scores(scoring: Scoring, of: Operands, scores: Array) -> Iterator[Call]:
    bias: Array = of["bias"]
    yield functools.partial(np.matmul, of["q"], of["k"].swapaxes(-1, -2), scores)
    if scoring.scale != 1:
        yield functools.partial(np.multiply, scores, scoring.scale, scores)
    if bias.size > 1:
        yield functools.partial(np.add, scores, bias, scores)
    else:
        yield functools.partial(_add_number, scores, bias)
    for keys, hidden in scoring.block.edges:
        yield functools.partial(np.copyto, scores[..., keys], -np.inf, where=hidden)


def _add_number(scores: Array, bias: Array) -> None:
    if bias.item() != 0:
        np.add(scores, bias, out=scores)


def _maxima(scores: Array, most: Array, scratch: Scratch) -> Call:
    if is_short(most.size, scores.shape[-1]):
        table = scores.reshape(most.size, scores.shape[-1])
        return functools.partial(reduce_rows, np.maximum, table, most.reshape(-1), scratch, _HALVES)
    return functools.partial(np.maximum.reduce, scores, axis=-1, keepdims=True, out=most)


def _sums(scoring: Scoring, scores: Array, total: Array) -> Call:
    if scoring.ones is None:
        return functools.partial(np.add.reduce, scores, axis=-1, keepdims=True, out=total)
    return functools.partial(np.matmul, scores, scoring.ones, total)


def _empty_dead(guarded: int, most: Array, total: Array, y: Array, lse: Array) -> None:
    """Lets queries that no key is left to give 0; their exponentials add up to NaN, any other query's to 1 or more."""
    if np.minimum.reduce(total, axis=None) > 0:
        return
    dead: Any = most == -np.inf if guarded == 1 else np.isnan(total)
    np.copyto(y, 0, where=dead)
    np.copyto(lse, -np.inf, where=dead)


def _leave_out_dead(chances: Array, lse: Array) -> None:
    """Gives the probabilities 0 to queries that no key is left to."""
    if not np.minimum.reduce(lse, axis=None) > -np.inf:
        np.copyto(chances, 0, where=lse == -np.inf)
