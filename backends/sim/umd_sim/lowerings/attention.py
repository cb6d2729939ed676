"""Attention and its gradients, a few heads or a few queries at a time, so that the scores never exist whole."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core.kernels import KernelRecord
from umd_sim.lowerings import attention_short
from umd_sim.lowerings.attention_blocks import BANDED, Block, Split, split, without_hidden
from umd_sim.lowerings.layout import (
    NOTHING,
    Array,
    Call,
    Executable,
    Launch,
    View,
    coalesce,
    compute_type,
    filling,
    in_turn,
)
from umd_sim.scratch import Scratch

SHORT = 1024
"""Sums over at most this many keys are matrix-vector products."""
TAME = 60.0
"""Exponentials of scores up to this, and their products with values, are far from overflow: nothing is taken off."""
MANY = 1 << 14
"""From so many scores on that is worth it; fewer are rounded as softmax rounds them."""
_LEAST = 1e-20
"""A sum of exponentials below this may have lost some to underflow."""
_SCORES, _SLOPES, _QUERIES, _ROWS, _SLOPED = 0, 1, 2, 3, 4
"""Scratch slots: scores, their gradients, scaled queries, what is multiplied or added up along a row, scaled dy."""
_WIDE = 5
"""The first of the slots of operands in another type."""
_KEYED = ("k", "v", "dk", "dv")
Operands = dict[str, Array]


class _Plan(NamedTuple):
    """What is known of a launch.

    Attributes:
        compute: the type that is computed in.
        results: the written operands of that type.
        split: how the scores are taken apart.
        fine: the same in blocks of few queries, where a bias may hide keys from these; None where it cannot.
        ones: (keys, 1), None where there are too many.
    """

    compute: np.dtype[Any]
    results: tuple[str, ...]
    batch: tuple[int, ...]
    scale: float
    guarded: int
    split: Split
    fine: Split | None
    ones: Array | None

    @property
    def is_short(self) -> bool:
        """Whether there are so few scores that they are made at once."""
        block = self.split.blocks[0]
        return self.split.is_whole and math.prod(self.batch) * block.size <= attention_short.FEW


Function = Callable[[_Plan, Sequence[tuple[Block, Operands]], Operands, bool, Scratch], None]
"""function(plan, blocks with what belongs to each, operands, whether one block is all, scratch)."""


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of an attention, or of its gradients."""
    launch = Launch(record, parameters)
    names, rank = [operand.name for operand in record.row.operands], launch.size(0)
    written = {operand.name for operand in record.row.operands if operand.writes}
    batch, steps = coalesce(launch["outer"], *(launch.strides(name)[:rank] for name in names))
    shapes = {name: (*batch, *launch.shape(name)[rank:]) for name in names}
    views = {
        name: _view(launch, name, shapes[name], (*step, *launch.strides(name)[rank:]), whole=name in written)
        for name, step in zip(names, steps, strict=True)
        if 0 not in shapes[name]
    }
    results = [name for name in views if name in written]
    if not results:
        return NOTHING
    if not (launch["queries"] and launch["keys"]):
        values = [-np.inf if name == "lse" else 0.0 for name in results]
        return Executable(tuple(views[name] for name in results), filling(*values))
    empty = {name: np.empty(shapes[name], launch.dtype(name).numpy) for name in names if name not in views}
    plan = _plan(launch, batch, views["bias"])
    return Executable(tuple(views.values()), functools.partial(_bind, plan, tuple(views), empty))


def _view(launch: Launch, name: str, shape: Sequence[int], strides: Sequence[int], *, whole: bool) -> View:
    """Returns a view that broadcasts over the batch, and a bias over the scores too, where its stride is 0."""
    fixed = 0 if name == "bias" else 2
    kept = range(0 if whole else len(shape) - fixed, len(shape))
    own = [e if s or at in kept else 1 for at, (e, s) in enumerate(zip(shape, strides, strict=True))]
    return launch.view(name, own, strides)


def _plan(launch: Launch, batch: tuple[int, ...], bias: View) -> _Plan:
    queries, keys = launch["queries"], launch["keys"]
    low, high = (min(max(launch[name], -queries), keys) for name in ("low", "high"))
    is_bound = -low < queries - 1 or high < keys - 1
    hides = not is_bound and queries >= 2 * BANDED and bias.shape == (*(1 for _ in batch), queries, keys)
    compute = compute_type(launch.record.types[0])
    return _Plan(
        compute,
        ("y",) if launch.record.row.name == "attention_kernel" else ("dq", "dk", "dv"),
        batch,
        launch["scale"],
        launch["guarded"],
        split(batch, queries, keys, low, high, BANDED if is_bound else queries),
        split(batch, queries, keys, low, high, BANDED) if hides else None,
        np.ones((keys, 1), compute) if keys <= SHORT else None,
    )


def _bind(
    plan: _Plan, names: tuple[str, ...], empty: Operands, parameters: bytes, arrays: Sequence[Array], scratch: Scratch
) -> Call:
    operands = {**empty, **dict(zip(names, arrays, strict=True))}
    function: Function = _attend if plan.results == ("y",) else _differentiate
    if plan.fine is not None or any(operands[name].dtype != plan.compute for name in operands if name != "lse"):
        return functools.partial(_run, function, plan, operands, scratch)
    if plan.is_short:
        return _short(plan, operands, scratch)
    parts = [_part(operands, index) for index in plan.split.heads]
    return functools.partial(_run_parts, function, plan, [(part, _cut(plan.split, part)) for part in parts], scratch)


def _short(plan: _Plan, operands: Operands, scratch: Scratch) -> Call:
    scoring = attention_short.Scoring(plan.scale, plan.guarded, plan.split.blocks[0], plan.ones)
    calls = attention_short.attend if plan.results == ("y",) else attention_short.differentiate
    return in_turn(tuple(calls(scoring, operands, scratch)))


def _run_parts(
    function: Function,
    plan: _Plan,
    parts: Sequence[tuple[Operands, Sequence[tuple[Block, Operands]]]],
    scratch: Scratch,
) -> None:
    for part, blocks in parts:
        function(plan, blocks, part, plan.split.is_whole, scratch)


def _run(function: Function, plan: _Plan, operands: Operands, scratch: Scratch) -> None:
    """Runs what is not known before: a bias may hide keys, operands may be of another type."""
    found = None if plan.fine is None else without_hidden(plan.fine, plan.batch, operands["bias"])
    chosen = found or plan.split
    for index in chosen.heads:
        part = _part(operands, index)
        wide = _widened(plan, part, scratch)
        function(plan, _cut(chosen, wide), wide, chosen.is_whole, scratch)
        for name in plan.results:
            if wide[name] is not part[name]:
                np.copyto(part[name], wide[name], casting="unsafe")


def _widened(plan: _Plan, part: Operands, scratch: Scratch) -> Operands:
    """Returns the operands in the type that is computed in; the log-sum-exp keeps its own."""
    wide = {}
    for at, (name, array) in enumerate(part.items()):
        wide[name] = array
        if array.dtype != plan.compute and name != "lse":
            wide[name] = scratch.take(_WIDE + at, array.shape, plan.compute)
            if name not in plan.results:
                np.copyto(wide[name], array)
    return wide


def _part(operands: Operands, index: tuple[slice, ...]) -> Operands:
    """Returns what belongs to a part of the batch; axes that an operand broadcasts over stay."""
    return {
        name: array[tuple(slice(None) if extent == 1 else at for extent, at in zip(array.shape, index, strict=False))]
        for name, array in operands.items()
    }


def _cut(chosen: Split, operands: Operands) -> list[tuple[Block, Operands]]:
    """Returns the blocks, each with what belongs to it."""
    return [(block, {n: _of_block(n, array, block) for n, array in operands.items()}) for block in chosen.blocks]


def _of_block(name: str, array: Array, block: Block) -> Array:
    if name == "lse":
        return array[..., block.rows, None]
    if name == "bias":
        rows = slice(None) if array.shape[-2] == 1 else block.rows
        return array[..., rows, slice(None) if array.shape[-1] == 1 else block.keys]
    return array[..., block.keys if name in _KEYED else block.rows, :]


def _scores(plan: _Plan, block: Block, of: Operands, like: Array, scratch: Scratch) -> tuple[Array, Array]:
    """Returns (…, queries, keys) scores and the queries, scaled; `like` is a whole result of the queries."""
    q, k, bias = of["q"], of["k"], of["bias"]
    queries = q
    if plan.scale != 1:
        queries = scratch.take(_QUERIES, q.shape, plan.compute)
        np.multiply(q, plan.scale, out=queries)
    scores = scratch.take(_SCORES, (*like.shape[:-1], k.shape[-2]), plan.compute)
    np.matmul(queries, k.swapaxes(-1, -2), out=scores)
    if bias.size > 1 or bias.item() != 0:
        np.add(scores, bias, out=scores)
    for keys, hidden in block.edges:
        np.copyto(scores[..., keys], -np.inf, where=hidden)
    return scores, queries


# forward


def _attend(
    plan: _Plan, blocks: Sequence[tuple[Block, Operands]], operands: Operands, is_whole: bool, scratch: Scratch
) -> None:
    for block, of in blocks:
        scores, _ = _scores(plan, block, of, of["y"], scratch)
        if scores.size < MANY or not scores.max() <= TAME:
            _attend_wild(plan, of, scores)
            continue
        np.exp(scores, out=scores)
        total = _sum(plan, scores)
        if total.min() < _LEAST:
            _attend_wild(plan, of, _scores(plan, block, of, of["y"], scratch)[0])
            continue
        np.matmul(scores, of["v"], out=of["y"])
        np.divide(of["y"], total, out=of["y"])
        np.log(total, out=of["lse"], dtype=of["lse"].dtype, casting="unsafe")


def _attend_wild(plan: _Plan, of: Operands, scores: Array) -> None:
    """Takes the largest score off each query's, and sees to queries that no key is left to."""
    y, lse = of["y"], of["lse"]
    most = np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.subtract(scores, most, out=scores)
    np.exp(scores, out=scores)
    total = _sum(plan, scores)
    np.matmul(scores, of["v"], out=y)
    np.divide(y, total, out=y)
    np.add(np.log(total, dtype=np.float64), most, out=lse, casting="unsafe")
    if plan.guarded:
        dead = most == -np.inf if plan.guarded == 1 else np.isnan(total)
        if dead.any():
            np.copyto(y, 0, where=dead)
            np.copyto(lse, -np.inf, where=dead)


def _sum(plan: _Plan, scores: Array) -> Array:
    """Returns (…, queries, 1) sums."""
    if plan.ones is None:
        return np.asarray(np.add.reduce(scores, axis=-1, keepdims=True))
    return np.asarray(np.matmul(scores, plan.ones[: scores.shape[-1]]))


# gradients


def _differentiate(
    plan: _Plan, blocks: Sequence[tuple[Block, Operands]], operands: Operands, is_whole: bool, scratch: Scratch
) -> None:
    add = _product if is_whole else _add_product
    if not is_whole:
        operands["dk"].fill(0)
        operands["dv"].fill(0)
    for block, of in blocks:
        dy, y, dq = of["dy"], of["y"], of["dq"]
        chances, queries = _scores(plan, block, of, dq, scratch)
        near = of["lse"].astype(plan.compute)
        np.subtract(chances, near, out=chances)
        np.exp(chances, out=chances)
        if plan.guarded:
            _leave_out_dead(chances, near)
        if of["lse"].dtype.itemsize > near.itemsize:
            shape = np.broadcast_shapes(dy.shape, near.shape)
            dy = np.multiply(dy, _rest(of["lse"], near), out=scratch.take(_SLOPED, shape, plan.compute))
        add(chances.swapaxes(-1, -2), dy, of["dv"], scratch)
        slopes = scratch.take(_SLOPES, chances.shape, plan.compute)
        np.matmul(dy, of["v"].swapaxes(-1, -2), out=slopes)
        work = scratch.take(_ROWS, np.broadcast_shapes(dy.shape, y.shape), plan.compute)
        np.multiply(dy, y, out=work)
        common = np.add.reduce(work, axis=-1, keepdims=True, dtype=np.float64)
        np.subtract(slopes, common.astype(plan.compute), out=slopes)
        np.multiply(slopes, chances, out=slopes)
        add(slopes.swapaxes(-1, -2), queries, of["dk"], scratch)
        np.matmul(slopes, of["k"], out=dq)
        if plan.scale != 1:
            np.multiply(dq, plan.scale, out=dq)


def _rest(lse: Array, near: Array) -> Array:
    """Returns what probabilities made by the rounded log-sum-exp are to be multiplied by: (…, queries, 1)."""
    rest = np.exp(np.where(np.isfinite(lse), near - lse, 0))
    return np.asarray(rest.astype(near.dtype))


def _leave_out_dead(chances: Array, lse: Array) -> None:
    """Gives the probabilities 0 to queries that no key is left to."""
    dead = lse == -np.inf
    if dead.any():
        np.copyto(chances, 0, where=dead)


def _product(a: Array, b: Array, out: Array, scratch: Scratch) -> None:
    np.matmul(a, b, out=out)


def _add_product(a: Array, b: Array, out: Array, scratch: Scratch) -> None:
    part = scratch.take(_ROWS, out.shape, out.dtype)
    np.matmul(a, b, out=part)
    np.add(out, part, out=out)
