"""Det: determinants of matrices, by elimination with row exchange."""

from __future__ import annotations

from umd_core.dtypes import FLOATS, bool_, int64
from umd_core.errors import UnsupportedError
from umd_core.recorder import Recorder
from umd_core.shaping import widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape, element_count
from umd_core.views import View

MAX_ROWS = 64
"""Rows of a matrix: each takes a dozen launches."""


def _shape(call: Call) -> tuple[Shape]:
    shape = call.desc(0).shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise call.error(f"has shape {list(shape)}; square matrices along the last two axes would be right", input="X")
    if shape[-1] > MAX_ROWS:
        raise UnsupportedError(f"determinants of {shape[-1]} rows; up to {MAX_ROWS} would be right", op=call.op)
    return (shape[:-2],)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, out = widen(recorder, views[0]), recorder.out(call)
    batch, rows = element_count(out.shape), x.shape[-1]
    if not batch:
        return out
    a = recorder.new(x.dtype, (batch, rows, rows))
    recorder.copy(x, recorder.reshape(a, x.shape))
    det = recorder.fill(recorder.new(x.dtype, (batch,)), 1)
    for step in range(rows - 1):
        _eliminate(recorder, a.slice(1, step, rows - step).slice(2, step, rows - step), det)
    if rows:
        recorder.expression("mul", (det, a.slice(1, rows - 1, 1).slice(2, rows - 1, 1).squeeze(2).squeeze(1)), det)
    return recorder.copy(recorder.reshape(det, out.shape), out)


def _eliminate(recorder: Recorder, a: View, det: View) -> None:
    """Brings the row with the largest first element to the front and takes it off the others; det gets its factor."""
    batch, rows, _ = a.shape
    column = a.slice(2, 0, 1).squeeze(2)
    size = recorder.expression("abs", (column,), recorder.like(column))
    place = recorder.arg_reduce("max", size, (1,), recorder.new(int64, (batch,)))
    places = View(place.buffer, int64, (batch, rows), (1, 0), place.offset)
    by_row = View(a.buffer, a.dtype, (batch, rows, rows), (a.strides[0], a.strides[2], a.strides[1]), a.offset)
    pivot = recorder.gather(by_row, places, recorder.new(a.dtype, (batch, rows)), rows)
    first = recorder.copy(a.slice(1, 0, 1).squeeze(1), recorder.new(a.dtype, (batch, rows)))
    recorder.scatter(first, places, by_row, rows)
    moved = recorder.expression("ne", (place, recorder.scalar(0, int64)), recorder.new(bool_, (batch,)))
    negative = recorder.expression("neg", (det,), recorder.like(det))
    recorder.expression("select", (moved, negative, det), det)
    head = pivot.slice(1, 0, 1)
    recorder.expression("mul", (det, head.squeeze(1)), det)
    none = recorder.expression("eq", (head, recorder.scalar(0, a.dtype)), recorder.new(bool_, head.shape))
    divisor = recorder.expression("select", (none, recorder.scalar(1, a.dtype), head), recorder.like(head))
    below = a.slice(1, 1, rows - 1)
    factor = recorder.expression(
        "div", (below.slice(2, 0, 1), divisor.unsqueeze(2)), recorder.new(a.dtype, (batch, rows - 1, 1))
    )
    rest = below.slice(2, 1, rows - 1)
    part = recorder.expression("mul", (factor, pivot.slice(1, 1, rows - 1).unsqueeze(1)), recorder.like(rest))
    recorder.expression("sub", (rest, part), rest)


TEMPLATES = (
    OpTemplate(
        "Det",
        (Input("X"),),
        (Result("Y"),),
        _shape,
        _emit,
        {"T": FLOATS},
        flops=lambda call: call.desc(0).element_count * call.desc(0).shape[-1],
        doc="Determinants of the square matrices of the last two axes.",
    ),
)
