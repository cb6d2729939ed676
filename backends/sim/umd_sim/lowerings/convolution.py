"""Convolution and its gradients as im2col and matrix products, in float32 or float64."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core.kernels import KernelRecord
from umd_sim.lowerings import columns as im2col
from umd_sim.lowerings.columns import COLUMNS, MATRIX, PART, RESULT, Shape, Tile
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
    product,
    running,
)
from umd_sim.lowerings.windows import Axis, axes_of
from umd_sim.scratch import Scratch

PREPARED = 64
"""Tiles up to which the calls are made once, when a launch is bound. They hold on to what they take from scratch, so
that must be little as well."""


class Plan(NamedTuple):
    """What a convolution lowering knows of a launch.

    Attributes:
        shape: as the columns see it.
        rows: channels of the result within a group.
        compute: the type that is computed in.
        last: whether columns have the channels last.
        flat: whether the result's spatial axes are one, and products are written straight into it.
    """

    shape: Shape
    rows: int
    compute: np.dtype[Any]
    last: bool
    flat: bool = False


def _plan(launch: Launch, channels: int, rows: int, axes: tuple[Axis, ...]) -> Plan:
    shape = Shape(launch["batch"], launch["groups"], channels, axes)
    return Plan(shape, rows, compute_type(launch.record.types[0]), im2col.channels_last(shape, rows))


def _zero(view: View) -> Executable:
    """Returns the executable that a sum over nothing needs."""
    return NOTHING if 0 in view.shape else Executable((view,), filling(0))


def lower(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a convolution."""
    launch = Launch(record, parameters)
    x, w, y = (launch.view(name) for name in ("x", "w", "y"))
    if any(0 in view.shape for view in (x, w, y)):
        return _zero(y)
    return _correlation(_plan(launch, launch["in_channels"], launch["out_channels"], axes_of(launch)), x, w, y)


def lower_input_grad(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a convolution's gradient by its input."""
    launch = Launch(record, parameters)
    dy, w, dx = (launch.view(name) for name in ("dy", "w", "dx"))
    if any(0 in view.shape for view in (dy, w, dx)):
        return _zero(dx)
    axes = axes_of(launch)
    if all(axis.stride == 1 for axis in axes):  # then it is a convolution of dy with the kernel turned round
        turned = tuple(
            Axis(a.input, a.kernel, a.output, 1, a.dilation, a.dilation * (a.kernel - 1) - a.pad) for a in axes
        )
        plan = _plan(launch, launch["out_channels"], launch["in_channels"], turned)
        return _correlation(plan, dy, _turned(w), dx)
    plan = _plan(launch, launch["in_channels"], launch["out_channels"], axes)
    return Executable((dy, w, dx), running(_run_input_grad, plan))


def _turned(w: View) -> View:
    """Returns the kernel with in- and out-channels exchanged and every spatial axis reversed."""
    groups, rows, channels, *taps = w.shape
    by_group, by_row, by_channel, *steps = w.strides
    end = sum((extent - 1) * step for extent, step in zip(taps, steps, strict=True))
    strides = (by_group, by_channel, by_row, *(-step for step in steps))
    return w._replace(shape=(groups, channels, rows, *taps), strides=strides, offset=w.offset + end)


def _correlation(plan: Plan, x: View, w: View, y: View) -> Executable:
    """Returns the executable of y[n, g, m, o] = sum over c, k of x[n, g, c, i] · w[g, m, c, k]."""
    pointwise = all(a.kernel == 1 and a.stride == 1 and a.inside and a.input == a.output for a in plan.shape.axes)
    flat = _flattened(y, 3) if y.dtype == plan.compute else None
    if flat is None or (plan.last and not pointwise):
        return Executable((x, w, y), functools.partial(_bind_correlation, plan))
    source = _flattened(x, 3) if pointwise else None
    if source is not None:
        matrix = w._replace(shape=w.shape[:3], strides=w.strides[:3])
        return Executable((matrix, source, flat), _bind_pointwise)
    plan = plan._replace(flat=True, last=False)
    return Executable((x, w, flat), functools.partial(_bind_correlation, plan))


def _flattened(view: View, before: int) -> View | None:
    """Returns the view with its spatial axes made one, None when they do not lie in one run."""
    extents, (steps,) = coalesce(view.shape[before:], view.strides[before:])
    if len(extents) > 1:
        return None
    shape = (*view.shape[:before], *(extents or (1,)))
    return view._replace(shape=shape, strides=(*view.strides[:before], *(steps or (view.dtype.itemsize,))))


def _bind_pointwise(parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    w, x, y = arrays
    return functools.partial(np.matmul, w, x, out=y)


def _bind_correlation(plan: Plan, parameters: bytes, arrays: Sequence[Array], scratch: Scratch) -> Call:
    x, w, y = arrays
    tiles = list(itertools.islice(plan.shape.tiles(), PREPARED + 1))
    taken = max(tiles[0].positions * max(plan.shape.depth, plan.rows), w.size)  # columns, products, the kernel
    if len(tiles) <= PREPARED and taken <= im2col.TILE:
        return in_turn(list(_correlations(plan, x, w, y, scratch)))
    return functools.partial(_run_correlation, plan, x, w, y, scratch)


def _run_correlation(plan: Plan, x: Array, w: Array, y: Array, scratch: Scratch) -> None:
    for call in _correlations(plan, x, w, y, scratch):
        call()


def _correlations(plan: Plan, x: Array, w: Array, y: Array, scratch: Scratch) -> Iterator[Call]:
    """Yields the calls of a correlation; each may overwrite what those before the last one left in scratch memory."""
    matrix, ready = _matrix(plan, w, scratch)
    yield from ready
    others = product(plan.shape.outputs[1:])
    for tile in plan.shape.tiles():
        own = matrix[tile.groups]
        columns, filled = _columns(plan, tile, x, scratch)
        yield from filled
        if plan.last:
            result = scratch.take(RESULT, (*columns.shape[:2], plan.rows), plan.compute)
            yield functools.partial(np.matmul, columns, own.transpose(0, 2, 1), result)
            yield _stores(plan, tile, result, y)
        elif plan.flat:
            part = y[tile.samples, tile.groups, :, tile.outputs.start * others : tile.outputs.stop * others]
            yield functools.partial(np.matmul, own, columns, part)
        else:
            target = tile.of(y)
            result = scratch.take(RESULT, (*target.shape[:3], columns.shape[-1]), plan.compute)
            yield functools.partial(np.matmul, own, columns, result)
            yield functools.partial(np.copyto, target, result.reshape(target.shape), casting="unsafe")


def _stores(plan: Plan, tile: Tile, result: Array, y: Array) -> Call:
    """Returns the call that copies (groups, batch · outputs, rows) into the tile's part of y.

    That is (batch, groups, rows, outputs…).
    """
    outputs = tuple(axis.output for axis in tile.axes)
    samples, groups = tile.counts
    given = result.reshape(groups, samples, *outputs, plan.rows)
    given = given.transpose(1, 0, given.ndim - 1, *range(2, given.ndim - 1))
    return functools.partial(np.copyto, tile.of(y), given, casting="unsafe")


def _matrix(plan: Plan, w: Array, scratch: Scratch) -> tuple[Array, list[Call]]:
    """Returns the kernel as (groups, rows, depth), its window in the columns' order, and the calls that make it."""
    ordered = w.transpose(0, 1, *range(3, w.ndim), 2) if plan.last else w
    if ordered.flags.c_contiguous and w.dtype == plan.compute:
        return ordered.reshape(*w.shape[:2], -1), []
    matrix = scratch.take(MATRIX, ordered.shape, plan.compute)
    made = functools.partial(np.copyto, matrix, ordered, casting="unsafe")
    return matrix.reshape(*w.shape[:2], -1), [made]


def _columns(
    plan: Plan, tile: Tile, x: Array, scratch: Scratch, *, summed: bool = False
) -> tuple[Array, Iterator[Call]]:
    """Returns the tile's columns as matrices, and the calls that fill them.

    With channels last (groups, batch · outputs, depth); otherwise (batch, groups, depth, outputs), or, where products
    are summed over the batch, (groups, depth, batch · outputs).
    """
    shape, spatial = plan.shape, len(plan.shape.axes)
    outputs = tuple(axis.output for axis in tile.axes)
    samples, groups = tile.counts
    logical = (samples, groups, shape.channels, *shape.taps, *outputs)
    memory = im2col.order(spatial, last=plan.last, summed=summed)
    columns = im2col.allocate(scratch, COLUMNS, logical, memory, plan.compute)
    filled = im2col.fills(columns, tile.inputs(x), tile.axes, scratch, last=plan.last)
    stored = columns.transpose(memory)
    if plan.last:
        return stored.reshape(groups, -1, shape.depth), filled
    if summed:
        return stored.reshape(groups, shape.depth, -1), filled
    return stored.reshape(samples, groups, shape.depth, -1), filled


def _run_input_grad(plan: Plan, dy: Array, w: Array, dx: Array, scratch: Scratch) -> None:
    matrix, ready = _matrix(plan, w, scratch)
    for call in ready:
        call()
    total = dx if dx.dtype == plan.compute else scratch.take(PART, dx.shape, plan.compute)
    total.fill(0)
    for tile in plan.shape.tiles():
        columns = _spread(plan, tile.of(dy), matrix[tile.groups], scratch)
        im2col.add_columns(tile.inputs(total), columns, tile.axes)
    if total is not dx:
        np.copyto(dx, total, casting="unsafe")


def _spread(plan: Plan, dy: Array, matrix: Array, scratch: Scratch) -> Array:
    """Returns the columns that dy, (batch, groups, rows, outputs…), gives each window, with their logical axes."""
    shape, outputs = plan.shape, tuple(range(3, dy.ndim))
    logical = (*dy.shape[:2], shape.channels, *shape.taps, *dy.shape[3:])
    memory = im2col.order(len(outputs), last=plan.last)
    columns = im2col.allocate(scratch, COLUMNS, logical, memory, plan.compute)
    stored = columns.transpose(memory)
    ordered = dy.transpose(1, 0, *outputs, 2) if plan.last else dy
    flat = scratch.take(RESULT, ordered.shape, plan.compute)
    np.copyto(flat, ordered, casting="unsafe")
    if plan.last:
        flat = flat.reshape(dy.shape[1], -1, plan.rows)
        np.matmul(flat, matrix, out=stored.reshape(dy.shape[1], -1, shape.depth))
    else:
        flat = flat.reshape(*dy.shape[:3], -1)
        np.matmul(matrix.transpose(0, 2, 1), flat, out=stored.reshape(*dy.shape[:2], shape.depth, -1))
    return columns


def lower_weight_grad(record: KernelRecord, parameters: bytes) -> Executable:
    """Returns the executable of a convolution's gradient by its kernel."""
    launch = Launch(record, parameters)
    dy, x, dw = (launch.view(name) for name in ("dy", "x", "dw"))
    if any(0 in view.shape for view in (dy, x, dw)):
        return _zero(dw)
    plan = _plan(launch, launch["in_channels"], launch["out_channels"], axes_of(launch))
    plan = plan._replace(last=im2col.channels_last_for_sum(plan.shape))
    return Executable((dy, x, dw), running(_run_weight_grad, plan))


def _run_weight_grad(plan: Plan, dy: Array, x: Array, dw: Array, scratch: Scratch) -> None:
    shape = plan.shape
    total = scratch.take(MATRIX, (shape.groups, plan.rows, shape.depth), plan.compute)
    for tile in shape.tiles():
        columns, filled = _columns(plan, tile, x, scratch, summed=True)
        for call in filled:
            call()
        given = tile.of(dy).transpose(1, 2, 0, *range(3, dy.ndim))
        flat = scratch.take(RESULT, given.shape, plan.compute)
        np.copyto(flat, given, casting="unsafe")
        flat, own = flat.reshape(given.shape[0], plan.rows, -1), total[tile.groups]
        is_first = tile.samples.start == 0 and tile.outputs.start == 0
        product_of = own if is_first else scratch.take(PART, own.shape, plan.compute)
        np.matmul(flat, columns if plan.last else columns.transpose(0, 2, 1), out=product_of)
        if not is_first:
            np.add(own, product_of, out=own)
    if plan.last:
        ordered = total.reshape(shape.groups, plan.rows, *shape.taps, shape.channels)
        np.copyto(dw.transpose(0, 1, *range(3, dw.ndim), 2), ordered, casting="unsafe")
    else:
        np.copyto(dw, total.reshape(dw.shape), casting="unsafe")
